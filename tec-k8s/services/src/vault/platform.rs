//! The platform: names, accounts, lifetimes.

use std::time::Duration;

use crate::caller::{Account, Role};

/// The pod's position in its StatefulSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordinal {
    /// The only pod that initializes.
    First,
    /// A pod that joins.
    Follower,
}

impl Ordinal {
    /// Parses the name of a pod of a StatefulSet; `None` if it has no ordinal.
    pub fn of_pod(name: &str) -> Option<Self> {
        let (_, number) = name.rsplit_once('-')?;
        match number.parse::<u32>().ok()? {
            0 => Some(Self::First),
            _ => Some(Self::Follower),
        }
    }
}

/// What protects the vault's root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealKind {
    /// A key that must be provided at each start.
    Shamir,
    /// A key that the vault reads by itself; the wrapped key is then the recovery key.
    Static,
}

/// Whether there are other pods of the same vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// This is the only pod.
    Alone,
    /// A pod with empty storage may join them.
    Raft,
}

/// Whether the part of the desired state that needs a root token is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootPart {
    /// Only if this platform differs from the applied one.
    IfChanged,
    /// Always, because drift was detected.
    Always,
}

/// The platform whose secrets the vault keeps.
#[derive(Clone, Debug)]
pub struct Platform {
    /// Namespace of the vault.
    pub namespace: String,
    /// StatefulSet of the vault.
    pub stateful_set: String,
    /// Required audience of callers' tokens.
    pub audience: String,
    /// Address of the API server, from the vault's point of view.
    pub kubernetes_host: String,
    /// CA of the API server in PEM, for a vault that does not run in a pod.
    pub kubernetes_ca: Option<String>,
    /// The controller.
    pub controller: Account,
    /// NATS servers.
    pub nats: Vec<Account>,
    /// OpenSearch nodes.
    pub opensearch: Vec<Account>,
    /// Collectors of telemetry.
    pub collectors: Vec<Account>,
    /// Senders of telemetry.
    pub tracers: Vec<Account>,
    /// Programs that show telemetry to people.
    pub viewers: Vec<Account>,
    /// Namespaces whose service accounts may act as components.
    pub component_namespaces: Vec<String>,
    /// Lifetime of the certificates that the vault issues.
    pub certificate_life: Duration,
    /// What protects the vault's root key.
    pub seal: SealKind,
    /// Other pods of the vault.
    pub peers: Peers,
}

impl Platform {
    /// Accounts that may log in with this role; components are identified by their namespace.
    pub fn accounts(&self, role: Role) -> &[Account] {
        match role {
            Role::Controller | Role::Peer | Role::Snapshot => {
                std::slice::from_ref(&self.controller)
            }
            Role::Nats => &self.nats,
            Role::OpenSearch => &self.opensearch,
            Role::Component => &[],
            Role::Collector => &self.collectors,
            Role::Tracer => &self.tracers,
            Role::Viewer => &self.viewers,
        }
    }

    /// Whether this account may have this role.
    ///
    /// # Security
    /// The vault's own roles list namespaces and names independently: `a/x` and `b/y` let `b/x` log
    /// in as well. Code that acts for a caller must check here too.
    pub fn admits(&self, role: Role, account: &Account) -> bool {
        match role {
            Role::Component => {
                self.component_namespaces.iter().any(|namespace| namespace == account.namespace())
            }
            role => self.accounts(role).contains(account),
        }
    }
}
