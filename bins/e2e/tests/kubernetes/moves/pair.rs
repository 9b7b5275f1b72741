//! Two anchors, each behind a link that can be cut, and the invariants that must always hold.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tec_core::id::MachineId;
use tec_core::migrate::{Authority, Role, TrustAnchor as _, TrustUnit};
use tec_core::port::{
    AkRegistry as _, Clock, ImageRegistry as _, MachineRegistry as _, PortError, SecretStore as _,
    UnclaimedLimit,
};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Link, cluster};
use tec_e2e::process::Transcript;
use tec_e2e::settings::own_program;
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tempfile::TempDir;

/// Keys by machine.
pub(crate) type Keys = BTreeMap<MachineId, Vec<u8>>;

/// A namespace, and a link to its API server.
pub(crate) struct Place {
    pub(crate) bench: Bench,
    pub(crate) link: Link,
    kubeconfig: PathBuf,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let bench = Bench::new().await.unwrap();
        bench.create(&cluster("cluster")).await.unwrap();
        let link = Link::new(bench.admin().unwrap()).await.unwrap();
        let kubeconfig = bench.kubeconfig_at("tool", link.url()).unwrap();
        Self { bench, link, kubeconfig }
    }

    pub(crate) fn registry(&self) -> KubeRegistry {
        self.registry_at(Arc::new(SystemClock))
    }

    pub(crate) fn registry_at(&self, clock: Arc<dyn Clock>) -> KubeRegistry {
        KubeRegistry::new(self.bench.admin().unwrap(), &self.bench.namespace, clock)
    }

    pub(crate) async fn authority(&self) -> Authority {
        self.registry().authority().await.unwrap()
    }

    /// A machine with its keys, all acknowledged, or the first refusal.
    pub(crate) async fn admit(&self, number: u64) -> Result<(), PortError> {
        let (registry, line) = (self.registry(), sample::line());
        let machine = sample::machine(number);
        registry.create(&machine, UnclaimedLimit::Unlimited).await?;
        let ak = sample::approved_ak(number, number);
        registry.bind(&ak, &line).await?;
        let path = sample::secret_path(number);
        registry.put_new(&path, &sample::secret(number), &line).await?;
        Ok(())
    }

    /// The disk keys of this anchor.
    pub(crate) async fn keys(&self) -> Keys {
        let units = self.registry().export(None, 10_000).await.unwrap();
        let key = |unit: TrustUnit| match unit {
            TrustUnit::Machine(unit) => {
                let secret = unit.secret?;
                Some((unit.machine.id, secret.expose("the test compares").to_vec()))
            }
            _ => None,
        };
        units.into_iter().filter_map(key).collect()
    }

    fn flags(&self, end: &str) -> [String; 2] {
        [
            format!("--{end}-namespace={}", self.bench.namespace),
            format!("--{end}-kubeconfig={}", self.kubeconfig.display()),
        ]
    }
}

/// Two anchors, and an admin's tool.
pub(crate) struct Pair {
    pub(crate) source: Place,
    pub(crate) target: Place,
    /// Acknowledged keys.
    pub(crate) keys: Keys,
    logs: Transcript,
    _directory: TempDir,
}

impl Pair {
    /// This many machines at the source.
    pub(crate) async fn with(machines: u64) -> Self {
        let (source, target) = (Place::new().await, Place::new().await);
        source.registry().put(&sample::image(1)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut pair = Self {
            source,
            target,
            keys: Keys::new(),
            logs: Transcript::new(directory.path().join("logs")).unwrap(),
            _directory: directory,
        };
        for number in 1..=machines {
            pair.source.admit(number).await.unwrap();
            pair.expect(number);
        }
        pair
    }

    /// Records that this key must never be lost from now on.
    pub(crate) fn expect(&mut self, number: u64) {
        let key = sample::secret(number).expose("the test compares").to_vec();
        self.keys.insert(sample::machine_id(number), key);
    }

    /// `tec migrate` from the source to the target.
    pub(crate) fn command(&self, verb: &str, more: &[&str]) -> Command {
        self.command_to(&self.target, verb, more)
    }

    pub(crate) fn command_to(&self, target: &Place, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(own_program("tec").unwrap());
        command.args(["--output=json", "--log=warn", "--state-dir=/nonexistent"]);
        command.args(["migrate", verb]).args((verb == "retire").then_some("--yes"));
        command.args(self.source.flags("from")).args(target.flags("to"));
        command.args(more);
        command
    }

    /// Runs a command to its end; returns its output or its error.
    pub(crate) fn run(&self, mut command: Command) -> Result<Value, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let ran = self.logs.run(&mut command);
        let ran = ran.map_err(|error| failed(&error))?;
        if !ran.status.success() {
            return Err(String::from_utf8_lossy(&ran.stderr).into_owned());
        }
        serde_json::from_slice(&ran.stdout).map_err(|error| failed(&error))
    }

    pub(crate) fn migrate(&self, verb: &str) -> Result<Value, String> {
        self.run(self.command(verb, &[]))
    }

    pub(crate) async fn roles(&self) -> [Role; 2] {
        let (source, target) = (self.source.authority().await, self.target.authority().await);
        [source.role(), target.role()]
    }

    /// No key is lost or changed, and there is at most one authority.
    pub(crate) async fn holds(&self, when: &str) {
        let records = [self.source.authority().await, self.target.authority().await];
        // A target that nothing was moved to yet is the authority over nothing.
        let rules = |record: &&Authority| record.role() == Role::Active;
        let counts = records.iter().filter(rules);
        let alone = records[1].is_alone();
        assert!(alone || counts.count() <= 1, "{when}: two authorities: {records:?}");
        let held = [self.source.keys().await, self.target.keys().await];
        for (machine, key) in &self.keys {
            let mut served = false;
            for (keys, record) in held.iter().zip(&records) {
                let here = keys.get(machine);
                assert!(here.is_none_or(|here| here == key), "{when}: {machine} has another key");
                let serves = matches!(record.role(), Role::Active | Role::ServeOnly);
                served |= here.is_some() && serves;
            }
            assert!(served, "{when}: nobody releases the key of {machine}: {records:?}");
        }
    }
}
