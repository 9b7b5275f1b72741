//! Machine-readable details of a refusal, in the form that every gRPC client reads: `google.rpc.Status` with
//! `ErrorInfo` and `RetryInfo` (google/rpc/error_details.proto) in the trailer `grpc-status-details-bin`.

use std::time::Duration;

use crate::caller::Refusal;
use prost::Message;
use tonic::Code;

/// The domain of the reasons.
pub(super) const DOMAIN: &str = "trusted-execution-clusters.io";
/// The type URL prefix of the details.
const TYPES: &str = "type.googleapis.com/google.rpc";

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Span>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

fn any(name: &str, value: &impl Message) -> Any {
    Any { type_url: format!("{TYPES}.{name}"), value: value.encode_to_vec() }
}

/// When the same call may succeed; `None` if it never will.
fn retry_after(refusal: Refusal) -> Option<Duration> {
    match refusal {
        // An account has a call again after half a second, with the default of 120 per minute.
        Refusal::Rate | Refusal::PodPending => Some(Duration::from_secs(1)),
        refusal if refusal.is_transient() => Some(Duration::from_secs(2)),
        _ => None,
    }
}

/// The content of the trailer.
pub(super) fn encoded(code: Code, message: &str, refusal: Refusal) -> Vec<u8> {
    let info = ErrorInfo { reason: refusal.reason().to_owned(), domain: DOMAIN.to_owned() };
    let mut details = vec![any("ErrorInfo", &info)];
    if let Some(delay) = retry_after(refusal) {
        let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let retry_delay = Some(Span { seconds, nanos: 0 });
        details.push(any("RetryInfo", &RetryInfo { retry_delay }));
    }
    let status = Status { code: code.into(), message: message.to_owned(), details };
    status.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(refusal: Refusal) -> Vec<Any> {
        let bytes = encoded(Code::Unavailable, "text", refusal);
        let status = Status::decode(&*bytes).unwrap();
        assert_eq!((status.code, &*status.message), (14, "text"));
        status.details
    }

    #[test]
    fn a_refusal_names_its_reason_and_when_to_come_again() {
        let passing = details(Refusal::VaultSealed);
        let [info, retry] = passing.as_slice() else { panic!("{passing:?}") };
        assert_eq!(info.type_url, "type.googleapis.com/google.rpc.ErrorInfo");
        let info = ErrorInfo::decode(&*info.value).unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("VAULT_SEALED", DOMAIN));
        assert_eq!(retry.type_url, "type.googleapis.com/google.rpc.RetryInfo");
        let retry = RetryInfo::decode(&*retry.value).unwrap();
        assert_eq!(retry.retry_delay.unwrap().seconds, 2);
    }

    #[test]
    fn what_stays_refused_has_no_time_to_come_again() {
        assert_eq!(details(Refusal::NotBound).len(), 1);
        assert_eq!(details(Refusal::TokenInvalid).len(), 1);
    }
}
