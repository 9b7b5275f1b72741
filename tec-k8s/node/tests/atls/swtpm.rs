//! Quotes of a real TPM 2.0 implementation.

use std::sync::Arc;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_node::atls::{
    AnyAk, AtlsError, Expectation, LiveMeasurements, Measurements, Severity, ValidateError,
    Variant, VtpmIssuer, VtpmValidator,
};
use tec_tpm::ak::{AkAlgorithm, AkHandle};
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::{Tpm, TpmAttester};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joined_a_cluster_passes_only_where_that_cluster_is_expected() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = Arc::new(Tpm::open(&swtpm.tcti()).unwrap());
    let made = tpm.ensure_ak(AkHandle::DEFAULT, AkAlgorithm::EccP256).unwrap();
    let quoter = Arc::new(TpmAttester::new(Arc::clone(&tpm), AkHandle::DEFAULT));
    let issuer = VtpmIssuer::new(Variant::QemuVtpm, quoter);
    let server = super::endpoint(1).with_issuer(Arc::new(issuer)).build().unwrap();

    let unused = Expectation { expected: Sha256Digest::ZERO, severity: Severity::Enforce };
    let marker = PcrIndex::new(15).unwrap();
    let measurements = Measurements::default().with(marker, unused);
    let live = Arc::new(LiveMeasurements::new(measurements));
    let validator = VtpmValidator::new(Variant::QemuVtpm, Arc::new(AnyAk), live);
    let client = super::endpoint(2).with_validator(Arc::new(validator)).build().unwrap();

    let meet = async || {
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::join!(server.accept(near), client.connect(far)).1
    };
    let stream = meet().await.unwrap();
    let peer = stream.peer().unwrap();
    assert_eq!(peer.ak(), Some(made.key.public()));
    assert!(peer.is_channel_bound());

    tpm.pcr_extend(marker, &Sha256Digest::of("another cluster")).unwrap();
    assert!(matches!(meet().await, Err(AtlsError::Document(ValidateError::Measurements(_)))));
}
