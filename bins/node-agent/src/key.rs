//! `node-agent ak`: manages the attestation key manually.

use std::fs;
use std::path::Path;

use serde_json::json;
use tec_core::ak::PublicKey;
use tec_core::id::MachineId;
use tec_core::port::Entropy;
use tec_tpm::ak::AkHandle;

use crate::cli::Output;
use crate::failure::Failure;
use crate::register::{HttpRegistrar, RegisterPorts, register as register_key};
use crate::settings::Flags;
use crate::tpm::NodeTpm;

/// The attestation key, as displayed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shown {
    /// Its handle.
    pub handle: AkHandle,
    /// The public key.
    pub public: PublicKey,
    /// The machine it was just registered for.
    pub registered_for: Option<MachineId>,
}

impl Shown {
    /// The output, without a final newline.
    pub fn render(&self, output: Output) -> String {
        let handle = self.handle.to_string();
        let fingerprint = self.public.fingerprint().to_string();
        match output {
            Output::Json => json!({
                "handle": handle,
                "fingerprint": fingerprint,
                "public_key": self.public.to_pem(),
                "registered_for": self.registered_for,
            })
            .to_string(),
            Output::Text => {
                let registered = self.registered_for.map(|id| format!("registered  {id}\n"));
                format!(
                    "handle      {handle}\nfingerprint {fingerprint}\n{}{}",
                    registered.unwrap_or_default(),
                    self.public.to_pem().trim_end()
                )
            }
        }
    }
}

/// Creates the key unless it exists.
///
/// # Errors
/// `Tpm`.
pub fn create(flags: &Flags) -> Result<Shown, Failure> {
    let tpm = NodeTpm::open(flags)?;
    let identity = tpm.ensure_ak()?;
    Ok(Shown { handle: tpm.handle(), public: identity.public, registered_for: None })
}

/// Reads the key from the TPM.
///
/// # Errors
/// `NoAk` if there is none.
pub fn show(flags: &Flags) -> Result<Shown, Failure> {
    let tpm = NodeTpm::open(flags)?;
    let (public, handle) = (tpm.find_ak()?, tpm.handle());
    Ok(Shown {
        handle,
        public: public
            .ok_or(Failure::NoAk { handle, hint: "create it with `node-agent ak create`" })?,
        registered_for: None,
    })
}

/// Registers the key for a machine, creating it first if necessary.
///
/// # Errors
/// `Io` for the CA file, `Tpm`, `Register`.
pub async fn register(
    flags: &Flags,
    url: &str,
    machine: MachineId,
    ca: Option<&Path>,
    entropy: &dyn Entropy,
) -> Result<Shown, Failure> {
    let ca = match ca {
        Some(path) => fs::read_to_string(path)
            .map_err(Failure::io(format!("read the CA from {}", path.display())))?,
        None => String::new(),
    };
    let registrar = HttpRegistrar::new(url, &ca, flags.timeout()).map_err(Failure::Register)?;
    let tpm = NodeTpm::open(flags)?;
    let identity = tpm.ensure_ak()?;
    let ports = RegisterPorts { registrar: &registrar, activator: &tpm, entropy };
    register_key(ports, &identity, machine, None).await.map_err(Failure::Register)?;
    Ok(Shown { handle: tpm.handle(), public: identity.public, registered_for: Some(machine) })
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn the_key_is_shown_for_people_and_programs() {
        let shown = Shown {
            handle: AkHandle::DEFAULT,
            public: sample::public_key(1),
            registered_for: Some(sample::machine_id(7)),
        };
        let text = shown.render(Output::Text);
        assert!(text.starts_with("handle      0x81010002\nfingerprint "));
        assert!(text.ends_with("-----END PUBLIC KEY-----"));
        let json: serde_json::Value = serde_json::from_str(&shown.render(Output::Json)).unwrap();
        assert_eq!(json["handle"], "0x81010002");
        assert_eq!(json["registered_for"], sample::machine_id(7).to_string());
        assert_eq!(json["public_key"], sample::public_key(1).to_pem());
    }
}
