//! What a node is handed on its first boot: an Ignition config with a LUKS volume that a Clevis pin
//! named `trustee` unlocks.
//!
//! ```text
//! installer's config ── merge ──► GET registration server ──► PinGenerator::render_ignition
//!   (render_merge)                                              └─ luks.clevis.custom.config = PinConfig
//! ```

mod pin;
mod render;

pub use self::pin::AkRegistration;
pub use self::pin::AttestationKeyConfig;
pub use self::pin::HeaderConfig;
pub use self::pin::NumRetries;
pub use self::pin::PIN_NAME;
pub use self::pin::ParsePinConfigError;
pub use self::pin::PinConfig;
pub use self::render::ClevisPinGenerator;
pub use self::render::MergeSource;
pub use self::render::PinGenerator;
pub use self::render::RenderError;
pub use self::render::render_merge;
