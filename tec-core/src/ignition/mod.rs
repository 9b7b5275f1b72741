//! What a node receives on its first boot: an Ignition config with a LUKS volume that a Clevis pin
//! named `trustee` unlocks.
//!
//! ```text
//! installer's config ── merge ──► GET registration server ──► PinGenerator::render_ignition
//!   (render_merge)                                              └─ luks.clevis.custom.config = PinConfig
//! ```

mod pin;
mod render;

pub use self::pin::{
    AkRegistration, AttestationKeyConfig, HeaderConfig, NumRetries, PIN_NAME, ParsePinConfigError,
    PinConfig,
};
#[cfg(any(test, feature = "test-util"))]
pub use self::render::MockPinGenerator;
pub use self::render::{ClevisPinGenerator, MergeSource, PinGenerator, RenderError, render_merge};
