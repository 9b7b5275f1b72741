//! Configuration of a KBS: patched, compared, and checked (Trustee, KBS configuration).
//!
//! ```text
//! text ─ Schema::patch(intent) ─► text that expresses the intent, with nothing insecure
//! text ─ lint(mounts) ──────────► findings, each with a fix
//! text, text ─ changes ─────────► a diff for people
//! ```
//! A patch touches only what it must: unknown keys, comments and layout are preserved. Only `[admin]` is
//! rewritten as a whole, since the KBS rejects unknown keys there. Settings that turn checks off are removed,
//! together with the comment above them. `insecure_http` is set only when the intent names no TLS files,
//! since the KBS does not start otherwise.
//!
//! ```
//! use tec_core::trustee::{Patched, TrusteeConfigurator, TrusteeIntent};
//! use tec_trustee::config::{Schema, lint};
//! let signer = ("/etc/kbs/signer.key".into(), "/etc/kbs/signer.crt".into());
//! let mut intent =
//!     TrusteeIntent::new("0.0.0.0:8080", signer, vec!["/etc/kbs/ca.crt".into()], "/data");
//! intent.tls = Some(("/etc/tls/tls.crt".into(), "/etc/tls/tls.key".into()));
//! let Patched::Changed(text) = Schema.patch("", &intent)? else { unreachable!() };
//! assert_eq!(Schema.patch(&text, &intent)?, Patched::Unchanged);
//! assert!(lint(&text, None)?.is_empty());
//! # Ok::<(), tec_core::trustee::PatchError>(())
//! ```

mod apply;
mod diff;
mod lint;
mod settings;
#[cfg(test)]
mod tests;

use tec_core::trustee::{PatchError, Patched, TrusteeConfigurator, TrusteeIntent};
use toml::Table;
use toml_edit::DocumentMut;

pub use self::diff::{Change, changes};
pub use self::lint::{Finding, Rule, Severity, lint};
use self::settings::Settings;

/// Policies that the attestation service writes at startup when they are missing, so they must exist when their
/// directory is read-only (Trustee, attestation service).
pub const DEFAULT_POLICIES: [&str; 4] =
    ["default_cpu", "default_gpu", "default_switch", "default_ppcie"];

/// Schema of the configuration of Trustee v0.21 and later. It follows from the code of the KBS, not from the
/// tag of its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schema;

impl TrusteeConfigurator for Schema {
    fn patch(&self, current: &str, intent: &TrusteeIntent) -> Result<Patched, PatchError> {
        let before = parse(current)?;
        let mut document: DocumentMut = current
            .parse()
            .map_err(|error: toml_edit::TomlError| PatchError::Parse(Box::new(error)))?;
        apply::apply(&mut document, &before, Settings::of(intent, &before))?;
        let text = document.to_string();
        Ok(if text == current { Patched::Unchanged } else { Patched::Changed(text) })
    }
}

fn parse(text: &str) -> Result<Table, PatchError> {
    text.parse().map_err(|error: toml::de::Error| PatchError::Parse(Box::new(error)))
}
