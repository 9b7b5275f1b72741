//! Keys, machines and other constants shared by targets and their seeds.

use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::snp::Product;
use tec_tpm::testing::{SoftAzure, SoftSnp, SoftTpm};

/// The machine that owns [`p256_tpm`].
pub(crate) const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
/// Another machine.
pub(crate) const OTHER_MACHINE: &str = "00000000-7425-40de-944b-e07fc1f90ae7";

/// Maximum number of polls of [`ready`]: every future here consists of steps that never wait.
const POLLS: usize = 64;

/// A generator; the same number gives the same stream.
pub(crate) fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn booted(tpm: SoftTpm) -> SoftTpm {
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    tpm.extend(PcrIndex::MOK, &Sha256Digest::of("keys"));
    tpm
}

/// A TPM with a P-256 attestation key.
pub(crate) fn p256_tpm() -> &'static SoftTpm {
    static TPM: OnceLock<SoftTpm> = OnceLock::new();
    TPM.get_or_init(|| booted(SoftTpm::p256(1).with_still_clock()))
}

/// A TPM with an RSA 2048 attestation key.
pub(crate) fn rsa_tpm() -> &'static SoftTpm {
    static TPM: OnceLock<SoftTpm> = OnceLock::new();
    TPM.get_or_init(|| booted(SoftTpm::rsa(1).with_still_clock()))
}

/// A chip of the product Milan.
pub(crate) fn snp_chip() -> &'static SoftSnp {
    static CHIP: OnceLock<SoftSnp> = OnceLock::new();
    CHIP.get_or_init(|| SoftSnp::vcek(Product::Milan, 1))
}

/// An Azure confidential virtual machine on that chip.
pub(crate) fn azure() -> &'static SoftAzure {
    static MACHINE: OnceLock<SoftAzure> = OnceLock::new();
    MACHINE.get_or_init(|| SoftAzure::new(1))
}

/// The result of a future over doubles, which never wait.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
    panic!("a future over doubles waits for something");
}
