//! When the vault's authorities expire: nothing renews them, so the admin is warned long before.

use std::time::Duration;

use tec_core::time::Timestamp;
use x509_cert::Certificate;

/// Remaining life of an authority below which the admin is warned. In an authority's last days, certificates
/// would outlive it and are refused.
const NOTICE: Duration = Duration::from_hours(365 * 24);

/// When the first of these authorities (PEM) expires; `None` if they cannot be read.
fn first_end(authorities: &str) -> Option<Timestamp> {
    let chain = Certificate::load_pem_chain(authorities.as_bytes()).ok()?;
    let end = |certificate: &Certificate| {
        let until = certificate.tbs_certificate().validity().not_after;
        i64::try_from(until.to_unix_duration().as_secs()).ok()
    };
    let ends: Option<Vec<i64>> = chain.iter().map(end).collect();
    ends?.into_iter().min().map(Timestamp::from_unix_seconds)
}

/// The warning due at `now` about these authorities (PEM), if any.
pub(crate) fn notice(authorities: &str, now: Timestamp) -> Option<String> {
    let Some(end) = first_end(authorities) else {
        return Some("the authorities of the vault cannot be read".to_owned());
    };
    let left = end.unix_seconds().saturating_sub(now.unix_seconds());
    let days = left / (24 * 60 * 60);
    let is_soon = u64::try_from(left).unwrap_or(0) < NOTICE.as_secs();
    is_soon.then(|| {
        format!(
            "an authority of the vault ends in {days} days, and nothing renews it: see the reference \
             of services-bootstrap"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    /// An authority that expires this many days after 1970-01-01.
    fn authority(days: i64) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(1970, 1, 1);
        params.not_after =
            params.not_before + Duration::from_secs(u64::try_from(days * DAY).unwrap());
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn the_authority_that_ends_first_is_told_of_a_year_before() {
        let both = authority(5 * 365) + &authority(10 * 365);
        let at = |days: i64| notice(&both, Timestamp::from_unix_seconds(days * DAY));
        assert_eq!(at(4 * 365), None);
        assert!(at(4 * 365 + 1).unwrap().contains("364 days"));
        assert!(at(6 * 365).is_some());
        assert!(notice("no PEM", Timestamp::from_unix_seconds(0)).is_some());
    }
}
