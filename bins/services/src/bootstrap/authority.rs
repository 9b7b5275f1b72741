//! When the vault's authorities expire: long before that, the controller requests others. If they do not come,
//! the admin is warned.

use std::time::Duration;

use tec_core::time::Timestamp;
use x509_cert::Certificate;

/// Remaining life of an authority below which it is replaced.
const DUE: Duration = Duration::from_hours(365 * 24);
/// Remaining life of an authority below which the admin is warned: something prevents its replacement. In an
/// authority's last days, certificates would outlive it and are refused.
const NOTICE: Duration = Duration::from_hours(180 * 24);

/// How long until the first of these authorities (PEM) expires; `None` if they cannot be read.
fn left(authorities: &str, now: Timestamp) -> Option<Duration> {
    let chain = Certificate::load_pem_chain(authorities.as_bytes()).ok()?;
    let end = |certificate: &Certificate| {
        let until = certificate.tbs_certificate().validity().not_after;
        i64::try_from(until.to_unix_duration().as_secs()).ok()
    };
    let ends: Option<Vec<i64>> = chain.iter().map(end).collect();
    let left = ends?.into_iter().min()?.saturating_sub(now.unix_seconds());
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// Whether the authorities that sign (PEM) are to be replaced at `now`.
pub(crate) fn is_due(signers: &str, now: Timestamp) -> bool {
    left(signers, now).is_some_and(|left| left < DUE)
}

/// The warning due at `now` about these authorities (PEM), if any.
pub(crate) fn notice(authorities: &str, now: Timestamp) -> Option<String> {
    let Some(left) = left(authorities, now) else {
        return Some("the authorities of the vault cannot be read".to_owned());
    };
    let days = left.as_secs() / (24 * 60 * 60);
    (left < NOTICE).then(|| {
        format!(
            "an authority of the vault expires in {days} days and was not replaced: see the \
             controller's log"
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
    fn the_authority_that_ends_first_is_due_a_year_before_and_told_of_half_a_year_before() {
        let both = authority(5 * 365) + &authority(10 * 365);
        let at = |days: i64| Timestamp::from_unix_seconds(days * DAY);
        assert!(!is_due(&both, at(4 * 365)));
        assert!(is_due(&both, at(4 * 365 + 1)) && is_due(&both, at(6 * 365)));
        assert_eq!(notice(&both, at(5 * 365 - 180)), None);
        assert!(notice(&both, at(5 * 365 - 179)).unwrap().contains("179 days"));
        assert!(notice(&both, at(6 * 365)).is_some());
        let unreadable = "no PEM";
        assert!(!is_due(unreadable, at(0)) && notice(unreadable, at(0)).is_some());
    }
}
