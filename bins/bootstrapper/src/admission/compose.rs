//! Assembles the parts of the service from the settings.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use tec_core::port::{Clock, Entropy, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_core::system::{SystemClock, SystemEntropy};
use tec_k8s::client::KubeRegistry;
use tec_node::grant::ControlPlanes;
use tec_node::host::StateDirectory;
use tec_node::member::{KubeEnrollments, KubeTurns};
use tec_node::port::{DataKeys, Pause as _};
use tec_node::rpc::{Enrollments, JoinServicePorts, Settled};
use tec_node::uri::{KmsUri, StorageUri, UriError};

use crate::admission::facts;
use crate::admission::facts::Facts;
use crate::admission::renewal::Renewals;
use crate::admission::settings::Settings;
use crate::admission::signer::Signer;
use crate::instance::authority::Authority;
use crate::instance::founder;
use crate::instance::founder::Founder;
use crate::instance::node::Attestation;
use crate::instance::pause::JitteredPause;

/// First wait before a key service that was unavailable is asked again.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The parts of the program over an API server.
#[derive(Debug)]
pub struct Parts {
    /// The ports of the service; [`keep`] keeps its keys usable.
    pub ports: JoinServicePorts,
    /// Answers kubelets that need a new serving certificate.
    pub renewals: Renewals,
}

/// The parts over an API server. The control plane that they run on is enrolled with the claim that it
/// recorded when it was bootstrapped.
pub async fn parts(
    settings: &Settings,
    client: Client,
    attestation: &Attestation,
) -> anyhow::Result<Parts> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let namespace = &settings.namespace;
    let registry = KubeRegistry::new(client.clone(), namespace, Arc::clone(&clock));
    let enrollments: Arc<dyn Enrollments> = Arc::new(KubeEnrollments::new(registry));
    if let Some(founder) = founder::read(&settings.state_directory)? {
        enroll(&*enrollments, &founder).await?;
    }
    let state = StateDirectory::new(&settings.state_directory).read_state()?;
    let state = state.context("this node has no state: it is not a member of a cluster")?;
    let reserved = facts::api_server_names(&settings.pki)?;
    let renewals = Renewals::new(client.clone(), Arc::clone(&enrollments), reserved.clone());
    let authority = Authority::new(&settings.pki, Arc::clone(&clock), entropy);
    let keys = keys(settings, attestation).await?;
    let ports = JoinServicePorts {
        keys,
        salt: state.measurement_salt,
        enrollments,
        // Those of the settings, as they are at that time.
        control_planes: ControlPlanes::Closed,
        turns: Arc::new(KubeTurns::new(client.clone(), Arc::clone(&clock))),
        signer: Arc::new(Signer::new(authority.reserving(reserved.addresses), client.clone())),
        facts: Arc::new(Facts::new(client, settings)),
    };
    Ok(Parts { ports, renewals })
}

/// Makes this service's own node a member like any other, as if it had asked for a ticket.
async fn enroll(
    enrollments: &dyn Enrollments,
    Founder { claim, key }: &Founder,
) -> anyhow::Result<()> {
    // `Existed` is fine if it is this claim: from an earlier start, or from a join.
    enrollments.add(claim).await?;
    anyhow::ensure!(
        enrollments.list().await?.iter().any(|one| one.is_of_same_member(claim)),
        "the claim of this node could not be recorded, or another node has its name or disk"
    );
    let settled = enrollments.settle(claim, key, None).await;
    let settled = settled.context("cannot register the machine of this node")?;
    if settled != Settled::Bound {
        tracing::warn!(?settled, machine.id = %claim.machine_id(), "the key of this node is not approved");
    }
    Ok(())
}

/// Interval between checks whether a refused key service was replaced.
const GIVEN: Duration = Duration::from_mins(5);

/// Keeps the access to the key service from expiring; never returns.
pub async fn keep(keys: &dyn DataKeys) {
    let pause = JitteredPause::new(FIRST_WAIT, Arc::new(SystemEntropy));
    let mut failures = 0;
    loop {
        match keys.renew().await {
            Ok(Some(wait)) => {
                failures = 0;
                tokio::time::sleep(wait).await;
            }
            Ok(None) => break,
            Err(error)
                if matches!(error.kind(), PortErrorKind::Denied | PortErrorKind::Invalid) =>
            {
                let error = chain(&error);
                tracing::error!(error, "the key service has to be given to this service anew");
                tokio::time::sleep(GIVEN).await;
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "the key service is asked again");
                pause.pause(failures).await;
                failures = failures.saturating_add(1);
            }
        }
    }
    std::future::pending::<()>().await;
}

async fn keys(settings: &Settings, attestation: &Attestation) -> anyhow::Result<Arc<dyn DataKeys>> {
    let kms = uri(&settings.kms_uri, KmsUri::parse)?;
    let storage = match &settings.storage_uri {
        Some(path) => uri(path, StorageUri::parse)?,
        None => StorageUri::NoStore,
    };
    let services = crate::instance::keys::services(Arc::clone(&attestation.attester), Vec::new());
    Ok(services.open(kms, storage).await?.into())
}

/// The URI in a file.
fn uri<T>(path: &Path, parse: impl Fn(&str) -> Result<T, UriError>) -> anyhow::Result<T> {
    let what = || format!("read {}", path.display());
    let text = fs::read(path).map(SecretBytes::new).with_context(what)?;
    let text = std::str::from_utf8(text.expose("parse it").trim_ascii()).with_context(what)?;
    parse(text).with_context(what)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tec_core::ak::{Fingerprint, PublicKey};
    use tec_core::port::{CreateOutcome, PortError};
    use tec_core::testing::sample;
    use tec_node::derive::DataKeyId;
    use tec_node::grant::Claim;
    use tec_node::state::Role;
    use tec_node::ticket::NodeName;
    use tokio::time::Instant;

    use super::*;

    #[derive(Debug, Default)]
    struct Members {
        claims: Mutex<Vec<Claim>>,
        machines: Mutex<Vec<PublicKey>>,
    }

    #[async_trait]
    impl Enrollments for Members {
        async fn list(&self) -> Result<Vec<Claim>, PortError> {
            Ok(self.claims.lock().unwrap().clone())
        }

        async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
            let mut claims = self.claims.lock().unwrap();
            if claims.iter().any(|one| one.name == claim.name) {
                return Ok(CreateOutcome::Existed);
            }
            claims.push(claim.clone());
            Ok(CreateOutcome::Created)
        }

        async fn was_removed(&self, _name: &NodeName) -> Result<bool, PortError> {
            unreachable!("nobody left")
        }

        async fn readdress(&self, _claim: &Claim) -> Result<(), PortError> {
            unreachable!("nobody joins")
        }

        async fn settle(
            &self,
            _claim: &Claim,
            key: &PublicKey,
            _ek: Option<Fingerprint>,
        ) -> Result<Settled, PortError> {
            self.machines.lock().unwrap().push(key.clone());
            Ok(Settled::Bound)
        }

        async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
            Ok(self.list().await?.contains(claim))
        }
    }

    #[tokio::test]
    async fn the_founding_node_becomes_a_machine_with_its_key_at_every_start() {
        let members = Members::default();
        let of = |number| Founder {
            claim: Claim {
                ak: sample::public_key(number).fingerprint(),
                name: "plane-0".parse().unwrap(),
                role: Role::ControlPlane,
                disk: "00000000-0000-0000-0000-0000000000aa".parse().unwrap(),
                addresses: BTreeSet::new(),
            },
            key: sample::public_key(number),
        };
        for _ in 0..2 {
            enroll(&members, &of(1)).await.unwrap();
        }
        assert!(enroll(&members, &of(2)).await.is_err());
        let machines = members.machines.into_inner().unwrap();
        assert_eq!(machines, [sample::public_key(1), sample::public_key(1)]);
    }

    /// Returns these answers in order, and records the time of each request.
    #[derive(Debug)]
    struct Lease {
        answers: Mutex<Vec<Result<Option<Duration>, PortErrorKind>>>,
        asked: Mutex<Vec<Instant>>,
    }

    #[async_trait]
    impl DataKeys for Lease {
        async fn data_key(&self, _: &DataKeyId, _: usize) -> Result<SecretBytes, PortError> {
            unreachable!("nobody asks for a key")
        }

        async fn existing_data_key(
            &self,
            _: &DataKeyId,
            _: usize,
        ) -> Result<SecretBytes, PortError> {
            unreachable!("nobody asks for a key")
        }

        async fn renew(&self) -> Result<Option<Duration>, PortError> {
            self.asked.lock().unwrap().push(Instant::now());
            let answer = self.answers.lock().unwrap().remove(0);
            answer.map_err(|kind| PortError::new(kind, "renew"))
        }
    }

    /// The waits before each request.
    async fn waits(answers: Vec<Result<Option<Duration>, PortErrorKind>>) -> Vec<Duration> {
        let (mut before, count) = (Instant::now(), answers.len());
        let lease = Lease { answers: Mutex::new(answers), asked: Mutex::default() };
        let _ = tokio::time::timeout(Duration::from_hours(24), keep(&lease)).await;
        let asked = lease.asked.into_inner().unwrap();
        assert_eq!(asked.len(), count);
        let wait = |at: Instant| at.duration_since(std::mem::replace(&mut before, at));
        asked.into_iter().map(wait).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_in_time_and_a_service_that_was_away_is_asked_again() {
        let (hour, away) = (Duration::from_hours(1), Err(PortErrorKind::Unavailable));
        let waits = waits(vec![Ok(Some(hour)), away, away, Ok(Some(hour)), Ok(None)]).await;
        assert_eq!((waits[0], waits[1]), (Duration::ZERO, hour));
        assert!(waits[2] + waits[3] < Duration::from_secs(10));
        assert_eq!(waits[4], hour);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_refused_is_asked_for_rarely() {
        for kind in [PortErrorKind::Denied, PortErrorKind::Invalid] {
            let waits = waits(vec![Err(kind), Err(kind), Ok(None)]).await;
            assert_eq!(waits, [Duration::ZERO, GIVEN, GIVEN]);
        }
    }
}
