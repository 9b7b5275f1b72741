//! Keeps the CAs that the pins of all disks trust in sync with their servers.
//!
//! ```text
//! pin ─ GET authorities, over TLS of a CA that the pin trusts ─► bundle ─ the server is trusted by
//!   the bundle alone, and releases the key ─► token rewritten as by `rebind` ─► every disk ─► report
//! ```
//! A server's answer changes only what is trusted for that server. The report comes last, after every disk
//! has been refreshed: once every machine has reported the next CA, the old one stops signing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::ignition::HeaderConfig;
use tec_core::port::{Entropy, chain};
use tec_core::rollover::fingerprints;
use tec_core::secret::SecretArray;

use crate::disk;
use crate::disk::{Cryptsetup, Header};
use crate::failure::Failure;
use crate::fetch::Stage;
use crate::kbs::{client, fetch_error};
use crate::pin::released_key;
use crate::rebind::{bound_token, move_token, parsed};
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// Outcome for the pins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refreshed {
    /// The refreshed disks.
    pub disks: Vec<String>,
    /// Servers whose CAs changed.
    pub changed: Vec<String>,
    /// Servers that are replacing their CA and now know that this machine trusts the next one.
    pub reported: Vec<String>,
}

/// The key brokers of a pin.
#[async_trait]
trait Brokers: fmt::Debug + Send + Sync {
    /// The CAs that this server hands out, over TLS that trusts those in `server`; `None` if the server has
    /// no such path.
    async fn bundle(&self, server: &Endpoint) -> Result<Option<String>, Failure>;

    /// The disk key, from servers trusted as in `wanted`.
    async fn key(&self, wanted: &HeaderConfig) -> Result<SecretArray<32>, Failure>;

    /// Reports what the pin trusts for this server.
    async fn report(
        &self,
        server: &Endpoint,
        trusts: &BTreeSet<Sha256Digest>,
    ) -> Result<(), Failure>;
}

/// Updates the CAs in the pins of all disks to those that their servers hand out, and reports the result to
/// the servers: of every disk that is bound to servers, and of the given devices.
///
/// # Errors
/// `Disk`, `Tpm`, `Servers`, `Fetch`, `Resource`, `Bundle`. The disks open as before, and nothing was
/// reported.
pub async fn refresh(
    settings: &Settings,
    devices: &[PathBuf],
    entropy: &Arc<dyn Entropy>,
) -> Result<Refreshed, Failure> {
    let brokers = Remote { settings: settings.clone(), entropy: Arc::clone(entropy) };
    let disks = disk::bound(devices)?;
    // Held while keys are fetched too: a rotation in the meantime would make them the old ones.
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    if let Some(disk) = disks.first() {
        let config = parsed(&bound_token(disk)?)?.config().clone();
        if let Err(failure) = mark_once(settings, &config, entropy).await {
            tracing::info!(error = chain(&failure), "the root file system gets no mark");
        }
    }
    let named = |disk| (Cryptsetup::device(disk).display().to_string(), disk as &dyn Header);
    let disks: Vec<_> = disks.iter().map(named).collect();
    follow(&disks, &brokers, &**entropy).await
}

/// Marks this root file system if it may still get the key: in the first boot of a machine, whose running system may
/// not need the key again for a long time. It asks once.
async fn mark_once(
    settings: &Settings,
    config: &HeaderConfig,
    entropy: &Arc<dyn Entropy>,
) -> Result<(), Failure> {
    let (mark, directory) = (&settings.root_mark, settings.root_mark.parent());
    if mark.exists() || !directory.is_some_and(Path::is_dir) {
        return Ok(());
    }
    let tpm = NodeTpm::open(settings)?;
    match released_key(settings, &tpm, config, Stage::LaterBoot, entropy).await {
        Err(Failure::Fetch(error)) if error.code() == Code::InitramfsEnded => {
            std::fs::write(mark, "none\n").map_err(Failure::io("mark the root file system"))
        }
        released => released.map(drop),
    }
}

/// What a pin trusts for a server.
#[derive(Debug)]
struct Trust {
    server: Endpoint,
    authorities: BTreeSet<Sha256Digest>,
    /// Whether the server confirmed it now.
    is_current: bool,
}

/// Can be run again after a crash at any point.
async fn follow(
    disks: &[(String, &dyn Header)],
    brokers: &dyn Brokers,
    entropy: &dyn Entropy,
) -> Result<Refreshed, Failure> {
    let (mut refreshed, mut trusts) = (Refreshed::default(), Vec::new());
    let mut failed = None;
    for (device, header) in disks {
        match follow_one(*header, brokers, entropy, &mut refreshed.changed).await {
            Ok(trusted) => trusts.extend(trusted),
            Err(failure) => {
                tracing::warn!(device, error = chain(&failure), "the pin was not refreshed");
                failed = Some(failure);
            }
        }
        refreshed.disks.push(device.clone());
    }
    // The server takes one report for all disks of the machine.
    if let Some(failure) = failed {
        return Err(failure);
    }
    for (server, authorities) in common(&trusts) {
        brokers.report(server, &authorities).await?;
        refreshed.reported.push(server.url.to_string());
    }
    Ok(refreshed)
}

/// What every pin trusts for a server that is replacing its CA. A server with a single CA waits for no report
/// of this machine.
fn common(trusts: &[Trust]) -> Vec<(&Endpoint, BTreeSet<Sha256Digest>)> {
    let mut servers = BTreeMap::new();
    for trust in trusts.iter().filter(|trust| trust.is_current) {
        servers.entry(&trust.server.url).or_insert(&trust.server);
    }
    let of_all = |server: &Endpoint| {
        let mut same = trusts.iter().filter(|trust| trust.server.url == server.url);
        let first = same.next().map(|trust| trust.authorities.clone()).unwrap_or_default();
        same.fold(first, |common, trust| &common & &trust.authorities)
    };
    let all = servers.into_values().map(|server| (server, of_all(server)));
    all.filter(|(_, authorities)| authorities.len() > 1).collect()
}

/// Refreshes the pin of one disk.
async fn follow_one(
    header: &dyn Header,
    brokers: &dyn Brokers,
    entropy: &dyn Entropy,
    changed: &mut Vec<String>,
) -> Result<Vec<Trust>, Failure> {
    let token = bound_token(header)?;
    let config = parsed(&token)?.config().clone();
    let (mut wanted, mut news) = (config.clone(), Vec::new());
    let (mut trusts, mut answered, mut failed) = (Vec::new(), false, None);
    for server in &mut wanted.servers {
        // Plain HTTP, or the platform's roots: there is no CA to follow.
        let Some(pinned) = fingerprints(&server.cert) else {
            continue;
        };
        let learned = match learned(brokers, server).await {
            Ok(learned) => {
                answered = true;
                learned
            }
            Err(failure) => {
                tracing::warn!(server = %server.url, error = chain(&failure), "no CAs learned");
                failed = Some(failure);
                None
            }
        };
        let is_current = learned.is_some();
        let (bundle, authorities) =
            learned.unwrap_or_else(|| (server.cert.clone(), pinned.clone()));
        if authorities != pinned {
            server.cert = bundle;
            news.push(server.url.to_string());
        }
        trusts.push(Trust { server: server.clone(), authorities, is_current });
    }
    if let Some(failure) = failed.filter(|_| !answered) {
        return Err(failure);
    }
    // More than one token: an earlier try was interrupted.
    if wanted != config || header.tokens()?.len() > 1 {
        let key = brokers.key(&wanted).await?;
        move_token(header, &wanted, &key, entropy)?;
    }
    changed.extend(news);
    changed.sort_unstable();
    changed.dedup();
    Ok(trusts)
}

/// The CAs of a server. It must be reachable when trusting only those, so that no pin is written that locks
/// out its server.
async fn learned(
    brokers: &dyn Brokers,
    server: &Endpoint,
) -> Result<Option<(String, BTreeSet<Sha256Digest>)>, Failure> {
    let Some(bundle) = brokers.bundle(server).await? else {
        return Ok(None);
    };
    let unusable = |reason| Failure::Bundle { server: server.url.to_string(), reason };
    let authorities = fingerprints(&bundle)
        .ok_or_else(|| unusable("it is not PEM with one to eight certificates"))?;
    let by_these = Endpoint::new(server.url.clone(), bundle.clone());
    let again = brokers.bundle(&by_these).await?;
    if again.as_deref().and_then(fingerprints).as_ref() != Some(&authorities) {
        return Err(unusable("its replicas disagree for now"));
    }
    Ok(Some((bundle, authorities)))
}

/// Uses the network, and the TPM of this machine.
#[derive(Debug)]
struct Remote {
    settings: Settings,
    entropy: Arc<dyn Entropy>,
}

#[async_trait]
impl Brokers for Remote {
    async fn bundle(&self, server: &Endpoint) -> Result<Option<String>, Failure> {
        let one = std::slice::from_ref(server);
        let client = client(&self.settings, one, &self.entropy)?;
        let bundle = client.authorities().await;
        bundle.map_err(|error| Failure::Fetch(fetch_error(one, error)))
    }

    async fn key(&self, wanted: &HeaderConfig) -> Result<SecretArray<32>, Failure> {
        let tpm = NodeTpm::open(&self.settings)?;
        released_key(&self.settings, &tpm, wanted, Stage::LaterBoot, &self.entropy).await
    }

    async fn report(
        &self,
        server: &Endpoint,
        trusts: &BTreeSet<Sha256Digest>,
    ) -> Result<(), Failure> {
        let one = std::slice::from_ref(server);
        let client = client(&self.settings, one, &self.entropy)?;
        let tpm = NodeTpm::open(&self.settings)?;
        let attester = tpm.attester(self.settings.read_event_log());
        let reported = client.report_trust(trusts, &attester).await;
        reported.map_err(|error| Failure::Fetch(fetch_error(one, error)))
    }
}

#[cfg(test)]
mod tests;
