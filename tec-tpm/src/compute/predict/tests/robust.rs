use super::super::super::authenticode::Signature;
use super::*;

#[test]
fn signatures_and_certificates_that_are_cut_off_are_refused_at_every_length() {
    let signer = &keys().firmware.1;
    let signature = signer.sign(&[1; 32]);
    assert!(Signature::parse(&signature).is_ok());
    for end in 0..signature.len() {
        assert!(Signature::parse(&signature[..end]).is_err());
    }
    for end in 0..signer.certificate.len() {
        assert!(Certificate::parse(&signer.certificate[..end]).is_err());
    }
}
