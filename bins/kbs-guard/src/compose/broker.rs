//! The key broker over an API server.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tec_core::port::Clock;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_support::reserve::Reserve;
use tec_support::sparing::Sparing;
use tec_support::{SystemClock, SystemEntropy, input};
use tec_tpm::combine::MixedStates;
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;

use super::{ApiServer, authorities};
use crate::cli::broker::Args;

/// Largest key file.
const MAX_KEY: u64 = 16 * 1024;

/// A key broker whose decisions depend only on the objects of the API server.
pub fn key_broker(args: &Args, api: &ApiServer) -> anyhow::Result<Kbs> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let verifier = args.evidence.verifier(&clock)?;
    let tees: Vec<_> = verifier.tees().collect();
    // The policies demand what all images pin; the backend checks the rest for each image.
    let pins = args.pins.pins()?;
    let intent = PolicyIntent::new(pins.of_policies(), tees.iter().copied())?;
    let registry = &api.registry;
    // There is no disk to fill: the API server bounds what it stores.
    let reserve = Arc::new(Reserve::of(Path::new("/"), 0));
    let (attempts, audit) = (Arc::clone(&api.attempts) as _, Arc::clone(registry) as _);
    let records = Arc::new(Sparing::new(Arc::clone(registry) as _, attempts, audit, reserve));
    let ports = LivePorts::new(
        Arc::clone(registry) as _,
        Arc::clone(&api.images) as _,
        Arc::clone(registry) as _,
        Arc::clone(&records) as _,
        (Arc::clone(registry) as _, Arc::clone(registry) as _),
        records,
        Arc::clone(&clock),
    );
    // Machines are updated one component at a time, and may boot between two updates.
    let states = Arc::new(MixedStates::default());
    let backend = LiveBackend::new(ports, &intent).with_pins(pins).with_states(states);
    let signer = TokenSigner::from_pem(&key(&args.signer_key)?)
        .with_context(|| format!("cannot use {}", args.signer_key.display()))?;
    let (backend, verifier) = (Arc::new(backend), Arc::new(verifier));
    let config = KbsConfig::new(backend, verifier, signer, clock, Arc::new(SystemEntropy));
    let mut config = config.with_tees(tees);
    if let Some(path) = &args.session_key {
        config = config.with_shared_sessions(session_key(path)?);
    } else {
        tracing::warn!("sessions belong to this process: run no other replica");
    }
    if let Some(file) = &args.ca_path {
        config = config.with_authorities(authorities(file, api));
    }
    Ok(Kbs::new(config))
}

fn session_key(path: &Path) -> anyhow::Result<SecretArray<32>> {
    let bytes = key(path)?;
    let bytes = <[u8; 32]>::try_from(bytes.expose("it is copied into a secret of its length"));
    let bytes =
        bytes.with_context(|| format!("{} does not contain exactly 32 bytes", path.display()))?;
    Ok(SecretArray::new(bytes))
}

fn key(path: &Path) -> anyhow::Result<SecretBytes> {
    Ok(SecretBytes::new(input::read(path, MAX_KEY)?))
}
