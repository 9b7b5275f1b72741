//! What one way creates, the other finds.

use tec_tpm::ak::{AkAlgorithm, AkHandle, AkOrigin};
use tec_tpm::ek::EkAlgorithm;
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm;
use tec_tpm::{direct, tss};

const AK: AkHandle = AkHandle::DEFAULT;

#[expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]
fn open(swtpm: &Swtpm, way: usize) -> Box<dyn AnyTpm> {
    match way {
        0 => Box::new(tss::Tpm::open(&swtpm.tcti()).unwrap()),
        _ => Box::new(direct::Tpm::open(&swtpm.tcti()).unwrap()),
    }
}

#[test]
fn a_key_that_one_way_made_is_found_and_used_by_the_other() {
    for (algorithm, maker) in [
        (AkAlgorithm::Rsa2048, 0),
        (AkAlgorithm::EccP256, 0),
        (AkAlgorithm::Rsa2048, 1),
        (AkAlgorithm::EccP256, 1),
    ] {
        let swtpm = Swtpm::start().unwrap();
        let made = open(&swtpm, maker).ensure_ak(AK, algorithm).unwrap();
        let other = open(&swtpm, 1 - maker);
        let found = other.ensure_ak(AK, algorithm).unwrap();
        assert_eq!(found.origin, AkOrigin::Found);
        assert_eq!(found.tpm2b_public, made.tpm2b_public);
        let evidence = other.quote(AK, &[7; 32]).unwrap();
        assert!(evidence.quote().verify(made.key.public(), &[7; 32]).is_ok());
    }
}

#[test]
fn both_ways_see_the_same_endorsement_keys_certificates_and_registers() {
    let swtpm = Swtpm::manufacture().unwrap();
    for ek in [EkAlgorithm::Rsa2048, EkAlgorithm::EccP256] {
        let one = tss::Tpm::open(&swtpm.tcti()).unwrap().with_ek(ek);
        let (offer, values) = (one.read_ek().unwrap(), one.pcr_read().unwrap());
        drop(one);
        let two = direct::Tpm::open(&swtpm.tcti()).unwrap().with_ek(ek);
        let other = two.read_ek().unwrap();
        assert_eq!(other.public, offer.public);
        assert_eq!(other.certificate, offer.certificate);
        assert_eq!(two.pcr_read().unwrap(), values);
    }
}
