//! Machine-readable details of a refusal, in the form that every gRPC client reads: `google.rpc.Status` with
//! `ErrorInfo` and `RetryInfo` (google/rpc/error_details.proto) in the trailer `grpc-status-details-bin`.

use std::collections::HashMap;
use std::time::Duration;

use crate::caller::Refusal;
use tonic::{Code, Status};
use tonic_types::{ErrorDetail, ErrorInfo, RetryInfo, StatusExt as _};

/// The domain of the reasons.
const DOMAIN: &str = "trusted-execution-clusters.io";

/// When the same call may succeed; `None` if it never will.
fn retry_after(refusal: Refusal) -> Option<Duration> {
    match refusal {
        // An account has a call again after half a second, with the default of 120 per minute.
        Refusal::Rate | Refusal::PodPending => Some(Duration::from_secs(1)),
        refusal if refusal.is_transient() => Some(Duration::from_secs(2)),
        _ => None,
    }
}

/// The status with the trailer.
pub(super) fn status(code: Code, refusal: Refusal) -> Status {
    let message = format!("{}: {refusal}", refusal.reason());
    let info = ErrorInfo::new(refusal.reason(), DOMAIN, HashMap::new());
    let retry = retry_after(refusal).map(|delay| RetryInfo::new(Some(delay)));
    let details = [ErrorDetail::from(info)].into_iter().chain(retry.map(ErrorDetail::from));
    Status::with_error_details_vec(code, message, details)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tonic_types::pb;

    use super::*;

    fn details(refusal: Refusal) -> Vec<prost_types::Any> {
        let status = status(Code::Unavailable, refusal);
        let trailer = pb::Status::decode(status.details()).unwrap();
        assert_eq!((trailer.code, &*trailer.message), (14, status.message()));
        trailer.details
    }

    #[test]
    fn a_refusal_names_its_reason_and_when_to_come_again() {
        let passing = details(Refusal::VaultSealed);
        let [info, retry] = passing.as_slice() else { panic!("{passing:?}") };
        assert_eq!(info.type_url, "type.googleapis.com/google.rpc.ErrorInfo");
        let info = pb::ErrorInfo::decode(&*info.value).unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("VAULT_SEALED", DOMAIN));
        assert_eq!(retry.type_url, "type.googleapis.com/google.rpc.RetryInfo");
        let retry = pb::RetryInfo::decode(&*retry.value).unwrap();
        assert_eq!(retry.retry_delay.unwrap().seconds, 2);
    }

    #[test]
    fn what_stays_refused_has_no_time_to_come_again() {
        assert_eq!(details(Refusal::NotBound).len(), 1);
        assert_eq!(details(Refusal::TokenInvalid).len(), 1);
    }
}
