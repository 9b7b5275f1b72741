//! The system's random numbers.

use tec_core::port::Entropy;

/// The random numbers of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing to configure")]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness no key may be made, and nothing that goes on would be safe.
        #[expect(
            clippy::expect_used,
            reason = "getrandom fails only on kernels without it"
        )]
        getrandom::fill(bytes).expect("the kernel gives random numbers");
    }
}
