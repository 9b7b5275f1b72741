//! Configuration of a KBS: patched, compared, and checked (Trustee, KBS configuration).
//!
//! ```text
//! text ─ Generation::patch(intent) ─► text that expresses the intent, with nothing insecure
//! text ─ lint(generation, facts) ───► findings, each with a fix
//! text, text ─ changes ─────────────► a diff for people
//! ```
//! A patch touches only what it must: unknown keys, comments and layout are preserved. Only `[admin]` is
//! rewritten as a whole, since the KBS rejects unknown keys there. Settings that turn checks off are removed,
//! together with the comment above them. `insecure_http` is set only when the intent names no TLS files,
//! since the KBS does not start otherwise.
//!
//! ```
//! use tec_core::trustee::{Patched, TrusteeConfigurator, TrusteeIntent};
//! use tec_trustee::config::{Facts, Generation, lint};
//! let signer = ("/etc/kbs/signer.key".into(), "/etc/kbs/signer.crt".into());
//! let mut intent =
//!     TrusteeIntent::new("0.0.0.0:8080", signer, vec!["/etc/kbs/ca.crt".into()], "/data");
//! intent.tls = Some(("/etc/tls/tls.crt".into(), "/etc/tls/tls.key".into()));
//! let Patched::Changed(text) = Generation::V0_21.patch("", &intent)? else { unreachable!() };
//! assert_eq!(Generation::V0_21.patch(&text, &intent)?, Patched::Unchanged);
//! assert!(lint(Generation::V0_21, &text, &Facts::default())?.is_empty());
//! # Ok::<(), tec_core::trustee::PatchError>(())
//! ```

mod apply;
mod diff;
mod lint;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;

use tec_core::trustee::{PatchError, Patched, TrusteeConfigurator, TrusteeIntent};
use toml::Table;
use toml_edit::DocumentMut;

pub use self::diff::{Change, changes};
pub use self::lint::{Facts, Finding, Rule, Severity, lint};
use self::settings::Settings;

/// Schema generation of a KBS configuration, and so of the input that policies receive. It follows from the
/// code of the KBS, not from the tag of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Generation {
    /// v0.16 to v0.18: everything is a mounted file; `type` and `personas` under `[admin]`.
    Mounted,
    /// v0.19 and v0.20: one storage for everything, with the older admin and token keys.
    Unified,
    /// v0.21 and later: `authorization_mode`, `insecure_header_jwk`.
    V0_21,
}

impl Generation {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::Mounted, Self::Unified, Self::V0_21];

    /// Name for programs and command lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mounted => "mounted",
            Self::Unified => "unified",
            Self::V0_21 => "v0.21",
        }
    }

    /// Default policies that the attestation service writes at startup when they are missing, so they must
    /// exist when their directory is read-only (Trustee, attestation service; Trustee, KBS configuration).
    pub fn default_policies(self) -> &'static [&'static str] {
        match self {
            Self::Mounted => &["default_cpu", "default_gpu"],
            Self::Unified | Self::V0_21 => {
                &["default_cpu", "default_gpu", "default_switch", "default_ppcie"]
            }
        }
    }

    /// Whether files in a directory make attestation keys trusted, in addition to any policy.
    pub fn has_key_directory(self) -> bool {
        self == Self::Mounted
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TrusteeConfigurator for Generation {
    fn patch(&self, current: &str, intent: &TrusteeIntent) -> Result<Patched, PatchError> {
        let before = parse(current)?;
        let mut document: DocumentMut = current
            .parse()
            .map_err(|error: toml_edit::TomlError| PatchError::Parse(Box::new(error)))?;
        apply::apply(&mut document, &before, Settings::of(*self, intent, &before))?;
        let text = document.to_string();
        Ok(if text == current { Patched::Unchanged } else { Patched::Changed(text) })
    }
}

fn parse(text: &str) -> Result<Table, PatchError> {
    text.parse().map_err(|error: toml::de::Error| PatchError::Parse(Box::new(error)))
}
