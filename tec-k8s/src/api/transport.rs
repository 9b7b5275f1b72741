//! The transport of a cluster's servers, and the Secret that holds each certificate.

use super::cluster::TrustedExecutionCluster;
use super::condition::{ConditionKind, Reason};

/// A server that nodes reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsServer {
    /// The guard in front of the key broker.
    KeyBroker,
    /// The registration server.
    Registration,
    /// The attestation key server.
    AttestationKeys,
}

impl TlsServer {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::KeyBroker, Self::Registration, Self::AttestationKeys];

    /// The Secret that the operator issues for it.
    pub const fn issued_secret(self) -> &'static str {
        match self {
            Self::KeyBroker => "tec-kbs-tls",
            Self::Registration => "tec-register-server-tls",
            Self::AttestationKeys => "tec-attestation-key-register-tls",
        }
    }

    /// The Secret that cert-manager writes for it. Never the same as the Secret that the operator issues,
    /// whose CA nodes pin.
    pub const fn managed_secret(self) -> &'static str {
        match self {
            Self::KeyBroker => "tec-kbs-managed-tls",
            Self::Registration => "tec-register-server-managed-tls",
            Self::AttestationKeys => "tec-attestation-key-register-managed-tls",
        }
    }

    /// The field of the cluster object that names a different one.
    pub const fn field(self) -> &'static str {
        match self {
            Self::KeyBroker => "trusteeSecret",
            Self::Registration => "registerServerSecret",
            Self::AttestationKeys => "attestationKeyRegisterSecret",
        }
    }
}

/// Transport of the servers for which the cluster object names no Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TLS, with certificates that the operator issues.
    Tls,
    /// Plain HTTP: the cluster was installed before TLS was the default, and its nodes are configured for it.
    /// An admin decides when to change this.
    Undecided,
    /// Plain HTTP, as set in the cluster object.
    DangerousPlain,
}

impl TrustedExecutionCluster {
    /// Transport of servers without a named Secret.
    ///
    /// # Security
    /// A cluster that serves TLS never returns to plain HTTP, whatever its object says later: its nodes pin
    /// https.
    pub fn transport(&self) -> Transport {
        let spoken = self.condition(ConditionKind::Tls);
        if spoken == Some(Reason::TlsEverywhere.as_str()) {
            return Transport::Tls;
        }
        let is_undecided = spoken.map_or_else(
            || self.is_installed(),
            |reason| reason == Reason::PlainHttpUndecided.as_str(),
        );
        match self.spec.dangerous_plain_http {
            Some(true) => Transport::DangerousPlain,
            None if is_undecided => Transport::Undecided,
            _ => Transport::Tls,
        }
    }

    /// The Secret with the certificate of a server: the one that the object names, or the one that
    /// cert-manager or the operator issues; `None` if the server uses plain HTTP.
    pub fn tls_secret(&self, server: TlsServer) -> Option<&str> {
        let secret = match self.spec.certificate_issuer {
            Some(_) => server.managed_secret(),
            None => server.issued_secret(),
        };
        let issued = || (self.transport() == Transport::Tls).then_some(secret);
        self.named_secret(server).or_else(issued)
    }

    /// The Secret that the object names for a server.
    pub fn named_secret(&self, server: TlsServer) -> Option<&str> {
        let spec = &self.spec;
        let named = match server {
            TlsServer::KeyBroker => &spec.trustee_secret,
            TlsServer::Registration => &spec.register_server_secret,
            TlsServer::AttestationKeys => &spec.attestation_key_register_secret,
        };
        named.as_deref()
    }

    fn is_installed(&self) -> bool {
        self.condition(ConditionKind::Installed) == Some(Reason::InstallationCompleted.as_str())
    }

    /// The reason of a condition.
    fn condition(&self, kind: ConditionKind) -> Option<&str> {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        let found = conditions.find(|condition| condition.type_ == kind.as_str());
        found.map(|condition| condition.reason.as_str())
    }
}
