//! The Clevis pin: seals and opens a passphrase with a key that is released after attestation.

use std::sync::Arc;

use tec_core::code::Code;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::{AttestationKeyConfig, HeaderConfig, NumRetries, PinConfig};
use tec_core::luks::content_key;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis;
use tec_trustee::clevis::SealedPassphrase;
use tokio::time::Instant;

use crate::disk;
use crate::disk::DiskError;
use crate::failure::Failure;
use crate::fetch::{FetchError, Stage, fetch_key};
use crate::kbs::KbsRound;
use crate::kept::{is_current, keep, kept, mark, opened};
use crate::register::{AkIdentity, HttpRegistrar, RegisterError, RegisterPorts, register};
use crate::report::Report;
use crate::settings::Settings;
use crate::stopwatch::Stopwatch;
use crate::tpm::NodeTpm;

/// First boot: creates and registers the attestation key, fetches the machine's key, and seals.
///
/// # Security
/// Everything in the configuration that can be checked is checked before anything is sent.
pub async fn encrypt(
    settings: &Settings,
    config: &str,
    plaintext: &SecretBytes,
    entropy: &Arc<dyn Entropy>,
) -> Result<String, Report> {
    let config = PinConfig::parse(config).map_err(|error| Failure::Config(error).report(None))?;
    let machine = machine_of(&config);
    try_encrypt(settings, &config, plaintext, entropy)
        .await
        .map_err(|failure| failure.report(machine))
}

fn machine_of(config: &PinConfig) -> Option<MachineId> {
    let registration = config.attestation_key.as_ref();
    config.path.machine().or_else(|| registration.map(|key| key.registration.uuid))
}

async fn try_encrypt(
    settings: &Settings,
    config: &PinConfig,
    plaintext: &SecretBytes,
    entropy: &Arc<dyn Entropy>,
) -> Result<String, Failure> {
    let mut header = config.to_header();
    for server in config.servers.iter().filter(|one| !one.url.is_tls()) {
        // Later boots need no warning: a key from anyone else opens nothing.
        tracing::warn!(server = %server.url, "the key is fetched without TLS, as configured");
    }
    let registrar = config
        .attestation_key
        .as_ref()
        .map(|AttestationKeyConfig { registration, .. }| {
            let (url, cert) = (&registration.url, &registration.cert);
            HttpRegistrar::new(url, cert, settings)
                .map(|registrar| (registrar, registration.uuid))
                .map_err(Failure::Register)
        })
        .transpose()?;
    let tpm = NodeTpm::open(settings)?;
    let identity = tpm.ensure_ak()?;
    if let Some((registrar, machine)) = &registrar {
        let ports = RegisterPorts { registrar, activator: &tpm, entropy: &**entropy };
        let retries = settings.retries(config.num_retries);
        let own = register_as(ports, &identity, (*machine, &header.path), retries).await?;
        if own != *machine {
            header.path = ResourcePath::luks_root(&own);
        }
    }
    let key = released_key(settings, &tpm, &header, Stage::FirstBoot, entropy).await?;
    clevis::seal(&header, &key, plaintext, &mut EntropyRng::new(&**entropy))
        .map_err(|source| Failure::Sealed { operation: "seal the passphrase", source })
}

/// Registers the key for the machine, or for the machine it already belongs to: a power failure during a
/// first boot leaves a bound key, and the next first boot gets a new ID. Returns the effective ID.
async fn register_as(
    ports: RegisterPorts<'_>,
    identity: &AkIdentity,
    (machine, path): (MachineId, &ResourcePath),
    retries: Option<NumRetries>,
) -> Result<MachineId, Failure> {
    match register(ports, identity, machine, retries).await {
        Ok(()) => Ok(machine),
        // An admin chose a custom path, for that machine.
        Err(RegisterError::Elsewhere(own)) if path.machine() == Some(machine) => {
            tracing::warn!(machine = %own, "this TPM is registered already: the node goes on as that machine");
            let known = register(ports, identity, own, retries).await;
            known.map(|()| own).map_err(Failure::Register)
        }
        Err(error) => Err(Failure::Register(error)),
    }
}

/// Later boots: fetches the machine's key and opens what was sealed.
pub async fn decrypt(
    settings: &Settings,
    sealed: &str,
    entropy: &Arc<dyn Entropy>,
) -> Result<SecretBytes, Report> {
    let sealed = SealedPassphrase::parse(sealed).map_err(|source| {
        let operation = "read the sealed passphrase";
        Failure::Sealed { operation, source }.report(None)
    })?;
    let machine = sealed.config().path.machine();
    try_decrypt(settings, &sealed, entropy).await.map_err(|failure| failure.report(machine))
}

async fn try_decrypt(
    settings: &Settings,
    sealed: &SealedPassphrase,
    entropy: &Arc<dyn Entropy>,
) -> Result<SecretBytes, Failure> {
    check_headers(settings)?;
    let tpm = NodeTpm::open(settings)?;
    // A key created now would not be registered, and would hide what happened.
    let key = released_key(settings, &tpm, sealed.config(), Stage::LaterBoot, entropy)
        .await
        .map_err(|failure| match failure {
            Failure::Fetch(error) if error.is_for_want_of_ak() => Failure::NoAk {
                handle: settings.ak_handle,
                hint: "the TPM was cleared or replaced after this disk was sealed, and a new key \
                       would not be registered",
            },
            other => other,
        })?;
    // Again, since a disk may have come while the servers were asked.
    check_headers(settings)?;
    if settings.keeps_key {
        opened(&settings.kept_key, &key).map_err(Failure::io("record that a disk is opened"))?;
    }
    sealed.open(&key).map_err(|source| Failure::Sealed {
        operation: "open the passphrase: the key that was released is another one",
        source,
    })
}

fn check_headers(settings: &Settings) -> Result<(), DiskError> {
    match disk::check_all() {
        // Where nothing opens disks, another file was sealed.
        Err(DiskError::Start { .. }) if !settings.keeps_key => Ok(()),
        checked => checked,
    }
}

/// The key that the initramfs of this boot kept. The servers have attested this machine and refuse its phase alone.
async fn kept_key<A: Attester>(
    settings: &Settings,
    round: &KbsRound<A>,
    (header, stage): (&HeaderConfig, Stage),
    refused: FetchError,
) -> Result<SecretArray<32>, Failure> {
    let Some(key) = kept(&settings.kept_key, &header.path) else {
        return Err(Failure::Fetch(refused));
    };
    // A disk must not be bound to servers that have another key.
    let is_right = match round.names().await.map_err(Failure::Fetch)? {
        Some(names) => is_current(&names, &key),
        None => stage != Stage::Moving,
    };
    if !is_right {
        return Err(Failure::Fetch(refused));
    }
    tracing::info!("the key that the initramfs kept is used");
    content_key(&key).map_err(Failure::Resource)
}

pub(crate) async fn released_key(
    settings: &Settings,
    tpm: &NodeTpm,
    header: &HeaderConfig,
    stage: Stage,
    entropy: &Arc<dyn Entropy>,
) -> Result<SecretArray<32>, Failure> {
    if header.initdata.is_some() {
        tracing::warn!("initdata of the pin's configuration is not supported, and ignored");
    }
    let (attester, in_tpm) = Stopwatch::new(tpm.attester(settings.read_event_log()));
    let round = KbsRound::new(settings, header, attester, entropy)?;
    let begin = Instant::now();
    let retries = settings.retries(header.num_retries);
    let waits = |error: &FetchError| settings.tell(&error.report(header.path.machine()));
    let fetched = fetch_key(&round, retries, stage, &**entropy, &waits).await;
    let resource = match fetched {
        Err(error) if error.code() == Code::InitramfsEnded => {
            return kept_key(settings, &round, (header, stage), error).await;
        }
        fetched => fetched.map_err(Failure::Fetch)?,
    };
    let noted = if settings.keeps_key {
        keep(&settings.kept_key, &header.path, &resource)
    } else {
        mark(&settings.root_mark, &resource)
    };
    if let Err(error) = noted {
        tracing::warn!(%error, "the key cannot be kept for a running system");
    }
    let in_tpm = in_tpm.total();
    tracing::info!(
        tpm_ms = in_tpm.as_millis(),
        servers_ms = begin.elapsed().saturating_sub(in_tpm).as_millis(),
        "the key was released"
    );
    content_key(&resource).map_err(Failure::Resource)
}
