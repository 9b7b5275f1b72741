//! The attestation key, managed manually.

use std::fs;
use std::path::Path;

use tec_core::ak::PublicKey;
use tec_core::id::MachineId;
use tec_core::port::Entropy;
use tec_tpm::ak::AkHandle;

use crate::failure::Failure;
use crate::register::{HttpRegistrar, RegisterPorts, register as register_key};
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// The attestation key, as displayed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its handle.
    pub handle: AkHandle,
    /// The public key.
    pub public: PublicKey,
    /// The machine it was just registered for.
    pub registered_for: Option<MachineId>,
}

/// Creates the key unless it exists.
pub fn create(settings: &Settings) -> Result<Shown, Failure> {
    let identity = NodeTpm::open(settings)?.ensure_ak()?;
    Ok(Shown { handle: settings.ak_handle, public: identity.public, registered_for: None })
}

/// Reads the key from the TPM.
///
/// # Errors
/// `NoAk` if there is none.
pub fn show(settings: &Settings) -> Result<Shown, Failure> {
    let public = NodeTpm::open(settings)?.find_ak()?;
    let handle = settings.ak_handle;
    Ok(Shown {
        handle,
        public: public
            .ok_or(Failure::NoAk { handle, hint: "create it with `node-agent ak create`" })?,
        registered_for: None,
    })
}

/// Registers the key for a machine, creating it first if necessary.
pub async fn register(
    settings: &Settings,
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
    let registrar = HttpRegistrar::new(url, &ca, settings).map_err(Failure::Register)?;
    let tpm = NodeTpm::open(settings)?;
    let identity = tpm.ensure_ak()?;
    let ports = RegisterPorts { registrar: &registrar, activator: &tpm, entropy };
    register_key(ports, &identity, machine, None).await.map_err(Failure::Register)?;
    Ok(Shown { handle: settings.ak_handle, public: identity.public, registered_for: Some(machine) })
}
