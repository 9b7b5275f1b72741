//! Parts that the program supplies: Trustees to publish to, labels of images, and the files of a Trustee.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use rand_core::CryptoRng;
use tec_core::ak::PublicKey;
use tec_core::boot::Pins;
use tec_core::id::MachineId;
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::port::PortError;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_core::trustee::TrusteeIntent;

use crate::api::{PublishSpec, TargetStatus, TrustedExecutionCluster};

/// Which Trustees have the facts about one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Names of the Trustees that have them, sorted.
    pub targets: Vec<String>,
    /// Whether every Trustee has them; true if there is no Trustee.
    pub is_complete: bool,
}

impl Published {
    /// Names of the Trustees that have the facts, and the number of all Trustees.
    pub fn new(mut targets: Vec<String>, all: usize) -> Self {
        targets.sort_unstable();
        Self { is_complete: targets.len() == all, targets }
    }
}

/// The result of a publishing round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// The state of every Trustee, by name.
    pub targets: Vec<TargetStatus>,
    /// When the next round is due even if nothing changes.
    pub again: Option<Duration>,
}

impl Round {
    /// A round.
    pub fn new(targets: Vec<TargetStatus>, again: Option<Duration>) -> Self {
        Self { targets, again }
    }
}

/// Trustees, supplied with what they should hold.
///
/// *Contract*: level-triggered. The setters record the desired state, and are cheap; [`round`](Self::round)
/// publishes it to every Trustee and removes everything else. The controllers set everything before the first
/// round. *Implemented by* the program, over `tec_trustee::publish`.
#[async_trait]
pub trait Trust: fmt::Debug + Send + Sync {
    /// Sets the Trustees.
    async fn configure(
        &self,
        cluster: &TrustedExecutionCluster,
        publish: &PublishSpec,
    ) -> Result<(), PortError>;

    /// Which registers must match an image.
    fn pins(&self) -> Pins;

    /// Whether the disk key of a machine is known, so that it need not be read again.
    fn knows_key(&self, machine: &MachineId) -> bool;

    /// Sets the facts about a machine; without `key`, the known key stays. Returns whether anything is new.
    fn set_machine(
        &self,
        machine: &MachineId,
        ak: Option<&PublicKey>,
        key: Option<SecretBytes>,
    ) -> Result<bool, PortError>;

    /// Records that the disk key of a machine is lost here: what Trustees hold of it stays, and no key is
    /// sent to any of them. A known key stays known. Returns whether anything is new.
    fn keep_machine(&self, machine: &MachineId, ak: Option<&PublicKey>) -> Result<bool, PortError>;

    /// Records that there is no such machine. Returns whether that is new.
    fn forget_machine(&self, machine: &MachineId) -> bool;

    /// Sets the images that may boot; without any, no boot is accepted.
    fn set_images(&self, images: Vec<ApprovedImage>) -> Result<bool, PortError>;

    /// Which Trustees have the facts about a machine, or have removed them.
    fn published(&self, machine: &MachineId) -> Published;

    /// Runs one round.
    async fn round(&self) -> Round;

    /// The Trustee with this name may have lost what it held.
    async fn distrust(&self, target: &str);
}

/// Reads an image's own labels.
#[async_trait]
pub trait LabelReader: fmt::Debug + Send + Sync {
    /// The label `org.coreos.pcrs` of an image, if it has one. `credentials` is the content of a
    /// Secret of type kubernetes.io/dockerconfigjson.
    async fn label(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<ExpectedPcrs>, PortError>;
}

/// Looks tags up in registries.
///
/// *Contract*: one look, without a cache; its duration is bounded by the caller. The kind of the error tells
/// an absent tag (`NotFound`), a refusal (`Denied`) and a failure that may pass (`Unavailable`) apart; a
/// reference that is not that of a tag has the code TEC-I407. *Implemented by* the program, over
/// `tec_registry`.
#[async_trait]
pub trait TagReader: fmt::Debug + Send + Sync {
    /// The image that a tag points to now, by digest: `registry.example/os@sha256:…`. `credentials` is the
    /// content of a Secret of type kubernetes.io/dockerconfigjson.
    async fn resolve(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<String, PortError>;

    /// When an image, by digest, was built, as its configuration states, if it does.
    async fn built_at(
        &self,
        reference: &str,
        credentials: Option<SecretBytes>,
    ) -> Result<Option<Timestamp>, PortError>;
}

/// An admin's key pair for a Trustee, PEM.
#[derive(Debug)]
pub struct AdminPair {
    /// Signs tokens.
    pub private: SecretBytes,
    /// Verifies them.
    pub public: String,
}

/// Signer of attestation tokens, PEM.
#[derive(Debug)]
pub struct SignerFiles {
    /// Its key.
    pub key: SecretBytes,
    /// Its certificate.
    pub certificate: String,
    /// The CA that tokens must chain to.
    pub authority: String,
}

/// A certificate with its private key, PEM.
#[derive(Debug)]
pub struct CertificatePair {
    /// The certificate, and those between it and its CA.
    pub chain: String,
    /// PKCS #8.
    pub key: SecretBytes,
}

/// Generates what a Trustee starts with.
pub trait TrusteeMaker: fmt::Debug + Send + Sync {
    /// The configuration that implements the intent.
    fn config(&self, intent: &TrusteeIntent) -> Result<String, PortError>;

    /// A new key pair of the admin.
    fn admin_pair(&self, rng: &mut dyn CryptoRng) -> Result<AdminPair, PortError>;

    /// A new signer.
    fn signer(&self, rng: &mut dyn CryptoRng, now: Timestamp) -> Result<SignerFiles, PortError>;

    /// Whether a new signer is due, since the one with this certificate expires soon.
    fn is_signer_due(&self, certificate: &str, now: Timestamp) -> bool;

    /// A new CA for server certificates. Nodes pin it, so it is valid for years.
    fn authority(&self, now: Timestamp) -> Result<CertificatePair, PortError>;

    /// When a CA expires; `None` if its certificate, PEM, cannot be parsed.
    fn authority_ends(&self, certificate: &str) -> Option<Timestamp>;

    /// A server certificate with these names, and when to renew it: when a third of its lifetime is left.
    fn certificate(
        &self,
        authority: &CertificatePair,
        names: &[String],
        now: Timestamp,
    ) -> Result<(CertificatePair, Timestamp), PortError>;
}
