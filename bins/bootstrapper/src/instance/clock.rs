//! Checks whether the clock of this node can be right.

use tec_core::code::Code;
use tec_core::port::{Clock, PortError, PortErrorKind};
use x509_cert::Certificate;
use x509_cert::der::DecodePem as _;

/// 2026-01-01T00:00:00Z: no release is older.
const EARLIEST: i64 = 1_767_225_600;

fn wrong(operation: String) -> PortError {
    PortError::new(PortErrorKind::Unavailable, operation).with_code(Code::BootstrapClock)
}

/// Checks that the clock is not behind this release: certificates of a cluster would begin in the past, and
/// those of others would not be valid yet.
pub(super) fn check(clock: &dyn Clock) -> Result<(), PortError> {
    let now = clock.now().unix_seconds();
    if now >= EARLIEST {
        return Ok(());
    }
    Err(wrong(format!("trust the clock: it shows {now} seconds since 1970, before this release")))
}

/// Checks that a certificate, PEM, that the cluster has just issued is valid by this clock. Text that is not
/// a certificate is accepted here.
pub(super) fn check_certificate(pem: &str, clock: &dyn Clock) -> Result<(), PortError> {
    let Ok(certificate) = Certificate::from_pem(pem) else {
        return Ok(());
    };
    let validity = certificate.tbs_certificate().validity();
    let [from, until] = [validity.not_before, validity.not_after].map(|time| {
        let seconds = time.to_unix_duration().as_secs();
        i64::try_from(seconds).unwrap_or(i64::MAX)
    });
    let now = clock.now().unix_seconds();
    if (from..=until).contains(&now) {
        return Ok(());
    }
    Err(wrong(format!(
        "take the kubelet's certificate: it is valid from {from} to {until}, and the clock shows {now} \
         (seconds since 1970)"
    )))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tec_core::testing::ManualClock;
    use tec_core::time::Timestamp;

    use super::*;

    const NOW: i64 = EARLIEST + 86_400;
    const YEAR: i64 = 366 * 86_400;

    fn at(seconds: i64) -> ManualClock {
        ManualClock::new(Timestamp::from_unix_seconds(seconds))
    }

    #[test]
    fn a_clock_that_is_years_behind_is_found() {
        check(&at(NOW)).unwrap();
        for seconds in [0, EARLIEST - 1] {
            assert_eq!(check(&at(seconds)).unwrap_err().code(), Some(Code::BootstrapClock));
        }
    }

    #[test]
    fn a_clock_that_is_years_off_either_way_is_found_by_the_certificate_of_the_cluster() {
        let mut params = CertificateParams::default();
        let time = |seconds| time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        (params.not_before, params.not_after) = (time(NOW - 7200), time(NOW + YEAR));
        let issued = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        check_certificate(&issued, &at(NOW)).unwrap();
        for seconds in [NOW - YEAR, NOW + 2 * YEAR] {
            let refused = check_certificate(&issued, &at(seconds)).unwrap_err();
            assert_eq!(refused.code(), Some(Code::BootstrapClock));
        }
        check_certificate("no certificate", &at(0)).unwrap();
    }
}
