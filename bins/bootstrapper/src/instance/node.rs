//! The parts of this node, assembled from the settings.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::CryptoProvider;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::code::Code;
use tec_core::port::{Attester, Clock, Entropy, PortError, PortErrorKind};
use tec_core::system::{SystemClock, SystemEntropy};
use tec_node::TpmMarker;
use tec_node::atls::{
    ChannelBinding, Endpoint, EndpointBuilder, Issuer, LiveMeasurements, Measurements, Variant,
    VtpmIssuer, VtpmValidator,
};
use tec_node::host::{
    AwsMetadata, AzureCertificates, AzureMetadata, FileMetadata, GcpMetadata, HostPrograms,
    KubeadmPaths, LuksDisk, QemuMetadata, StateDirectory, lies_on,
};
use tec_node::journal::Phase;
use tec_node::lock::{BootstrapMarker, MarkerState, NodeLock};
use tec_node::metadata::MetadataSource;
use tec_node::port::{KeyServices, NodeStore as _, StateDisk as _};
use tec_node::rpc::Endorser;
use tec_support::exit::CodedError;
use tec_tpm::ak::{AkAlgorithm, AkHandle};
use tec_tpm::direct::Tpm;
use tec_tpm::tpm::{AnyTpm as _, TpmAttester};

use crate::instance::azure::AzureSource;
use crate::instance::endorser::TpmEndorser;
use crate::instance::keys;
use crate::instance::settings::{Metadata, Settings, TpmSettings};
use crate::instance::trust::Trust;

/// Free space that a node must have before it is locked: journal, state, keys and certificates need only a
/// small part of it.
const LEAST_FREE: u64 = 16 * 1024 * 1024;

/// An open TPM that attests for this machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attestation {
    /// Type of the evidence.
    pub variant: Variant,
    /// Creates attestation documents.
    pub issuer: Arc<dyn Issuer>,
    /// Proves the machine to Trustees.
    pub attester: Arc<dyn Attester>,
    /// Proves the attestation key by the endorsement key.
    pub endorser: Arc<dyn Endorser>,
    /// PCR 15.
    pub marker: Arc<dyn BootstrapMarker>,
    /// The attestation key.
    pub ak: Fingerprint,
    /// Its public part.
    pub key: PublicKey,
}

impl Attestation {
    /// Opens the TPM; creates the attestation key if there is none.
    pub fn open(settings: &TpmSettings) -> anyhow::Result<Self> {
        let variant = variant(&settings.variant)?;
        let handle = match &settings.ak_handle {
            Some(handle) => handle.parse()?,
            // Evidence is about the paravisor's key, and no other.
            None if variant == Variant::AzureSevSnp => AkHandle::AZURE,
            None => AkHandle::DEFAULT,
        };
        let tpm =
            Tpm::open(&settings.tcti).with_context(|| format!("cannot open {}", settings.tcti))?;
        let tpm = Arc::new(tpm);
        let ak = tpm.ensure_ak(handle, AkAlgorithm::Rsa2048);
        let ak = ak.context("cannot find or create the attestation key")?;
        let quoter = Arc::new(TpmAttester::new(Arc::clone(&tpm), handle));
        let attester: Arc<dyn Attester> = Arc::clone(&quoter) as _;
        let mut issuer = VtpmIssuer::new(variant, quoter);
        if variant == Variant::AzureSevSnp {
            let (url, file) = (settings.vcek_url.clone(), settings.vcek_file.clone());
            let certificates = AzureCertificates::new(url, file);
            let source = AzureSource::new(Arc::clone(&tpm), certificates);
            issuer = issuer.with_info(Arc::new(source));
        }
        Ok(Self {
            variant,
            issuer: Arc::new(issuer),
            attester,
            endorser: Arc::new(TpmEndorser::new(Arc::clone(&tpm) as _, handle)),
            marker: Arc::new(TpmMarker::new(tpm)),
            ak: ak.key.public().fingerprint(),
            key: ak.key.public().clone(),
        })
    }
}

/// The type of evidence with this name.
fn variant(name: &str) -> anyhow::Result<Variant> {
    let usable = || Variant::ALL.iter().copied().filter(|one| *one != Variant::Dummy);
    usable().find(|one| one.as_str() == name).with_context(|| {
        let names: Vec<&str> = usable().map(Variant::as_str).collect();
        let names = names.join(", ");
        format!("cannot verify evidence of the type {name:?}: set tpm.variant to one of {names}")
    })
}

/// An endpoint with this program's provider, clock and entropy.
pub fn endpoint() -> EndpointBuilder {
    let provider: CryptoProvider = rustls::crypto::ring::default_provider();
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Endpoint::builder(Arc::new(provider), clock, entropy)
}

/// Reads measurements from a file.
pub fn measurements(path: &Path) -> anyhow::Result<Measurements> {
    let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = Measurements::from_json(&json);
    let read = read.with_context(|| format!("cannot use {}", path.display()))?;
    let is_empty = read == Measurements::default();
    anyhow::ensure!(!is_empty, "{} contains no measurements", path.display());
    Ok(read)
}

/// Whether the node must still be bootstrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The node is a member.
    Member,
    /// A process of this boot began, but died.
    Begun,
    /// Nothing has been done yet.
    New,
}

/// This node.
#[derive(Debug)]
#[non_exhaustive]
pub struct Node {
    /// Evidence, and the marker.
    pub attestation: Attestation,
    /// The lock of this process.
    pub lock: Arc<NodeLock>,
    /// The state disk.
    pub disk: Arc<LuksDisk>,
    /// Journal and state.
    pub store: Arc<StateDirectory>,
    /// The platform.
    pub metadata: Arc<dyn MetadataSource>,
    /// Programs of the host.
    pub programs: Arc<HostPrograms>,
    /// Paths of the host.
    pub paths: KubeadmPaths,
    own_disk: Vec<PathBuf>,
    takes_foreign_disks: bool,
}

impl Node {
    /// Assembles the parts. Nothing is changed except that the attestation key is created if there was none.
    pub fn open(settings: &Settings) -> anyhow::Result<Self> {
        let attestation = Attestation::open(&settings.tpm)?;
        let mut programs = HostPrograms::new();
        for (name, command) in &settings.programs {
            programs = programs.with(name, command.clone());
        }
        let programs = Arc::new(programs);
        let paths = KubeadmPaths::under(&settings.root);
        let state = settings.state_directory.clone();
        let own_disk = vec![settings.disk.device.clone(), paths.state(), state];
        let (device, key_file) = (&settings.disk.device, &settings.disk.key_file);
        let mut disk = LuksDisk::new(device, key_file, paths.scratch(), Arc::clone(&programs));
        if settings.disk.dangerous_without_integrity {
            tracing::warn!("the state disk may be without integrity: it can be rolled back");
            disk = disk.dangerous_without_integrity();
        }
        Ok(Self {
            lock: Arc::new(NodeLock::new(Arc::clone(&attestation.marker))),
            attestation,
            disk: Arc::new(disk),
            store: Arc::new(StateDirectory::new(&settings.state_directory)),
            metadata: metadata(&settings.metadata),
            programs,
            paths,
            own_disk,
            takes_foreign_disks: settings.disk.dangerous_formatted_elsewhere,
        })
    }

    /// Where data keys may come from.
    pub fn keys(&self) -> Arc<dyn KeyServices> {
        let attester = Arc::clone(&self.attestation.attester);
        keys::services(attester, self.own_disk.clone())
    }

    /// Whether no cluster owns the state disk yet. Recovery replaces the first passphrase with a cluster's
    /// key, and records that beforehand.
    /// Errors: the header cannot be read, or is refused, or the first passphrase opens a disk that this boot did not
    /// create: whoever created it may know its volume key.
    pub async fn has_new_disk(&self) -> Result<bool, PortError> {
        if self.recovering().exists() || !self.disk.is_new().await? {
            return Ok(false);
        }
        if self.disk.is_made_here()? {
            return Ok(true);
        }
        if self.takes_foreign_disks {
            tracing::warn!("whoever formatted the state disk may know its volume key");
            return Ok(true);
        }
        let operation = "take the state disk: key_file opens it, and `bootstrapper prepare` of this boot \
                         did not make it";
        Err(PortError::new(PortErrorKind::Conflict, operation)
            .with_code(Code::BootstrapForeignDisk))
    }

    /// Checks that journal and state would be on the state disk, the only encrypted one, and that there is
    /// room for them.
    /// Errors: they would be elsewhere, there is no room, or the disk's header is refused.
    pub async fn keeps_state_on_disk(&self, settings: &Settings) -> anyhow::Result<()> {
        check_room(&settings.state_directory)?;
        if settings.disk.dangerous_state_elsewhere {
            tracing::warn!("the state of this node may lie on a disk that is not encrypted");
            return Ok(());
        }
        let directory = &settings.state_directory;
        if lies_on(directory, &self.disk.id().await?)? {
            return Ok(());
        }
        let (shown, device) = (directory.display(), settings.disk.device.display());
        let context = format!(
            "{shown} is not on {device}; `systemctl status {}` says what kept it from being mounted",
            settings.disk.units.join(" ")
        );
        Err(CodedError::new(Code::BootstrapNotPrepared, context).into())
    }

    /// Path of a file in memory, which exists if recovery may have replaced the first passphrase in this
    /// boot.
    pub fn recovering(&self) -> PathBuf {
        self.paths.scratch().join("recovering")
    }

    /// Holds this node for one process, until the file is dropped: the lock of a process keeps init and join
    /// apart, but two processes could still extend the register twice.
    /// Errors: another process has it.
    pub fn hold(&self) -> anyhow::Result<File> {
        let path = self.paths.scratch().join("lock");
        let what = || format!("lock {}", path.display());
        std::fs::create_dir_all(self.paths.scratch()).with_context(what)?;
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(what)?;
        file.try_lock()
            .with_context(what)
            .context("another bootstrapper is running on this node")?;
        Ok(file)
    }

    /// The bootstrap state of this node, according to its marker and journal.
    /// Errors: the TPM or the journal cannot be read, or the marker does not match the journal.
    pub async fn standing(&self) -> Result<Standing, PortError> {
        let marker = self.attestation.marker.read().await?;
        if marker == MarkerState::Unset {
            return Ok(Standing::New);
        }
        let intent = self.store.read_intent().await?;
        match intent.filter(|one| marker.is_of(&one.cluster)) {
            Some(one) if one.phase == Phase::Done => Ok(Standing::Member),
            Some(_) => Ok(Standing::Begun),
            None => Err(PortError::new(
                PortErrorKind::Conflict,
                "find the journal of what set the TPM's marker; reboot, and recover the disk",
            )),
        }
    }

    /// The server end. Clients of this node evaluate its evidence; it evaluates none itself. Older clients,
    /// which cannot receive evidence over the connection, find it in the certificate, and decide what they
    /// require.
    pub fn server(&self) -> anyhow::Result<Endpoint> {
        let issuer = Arc::clone(&self.attestation.issuer);
        Ok(endpoint()
            .with_issuer(issuer)
            .with_channel_binding(ChannelBinding::WherePeerCan)
            .build()?)
    }

    /// The client end, which proves this node to join services and evaluates their evidence.
    pub fn client(&self, trust: &Trust) -> anyhow::Result<Endpoint> {
        let expected = match &trust.measurements {
            Some(path) => measurements(path)?,
            None => Measurements::default(),
        };
        let live = Arc::new(LiveMeasurements::new(expected));
        let validator = VtpmValidator::new(self.attestation.variant, trust.keys(), live);
        let issuer = Arc::clone(&self.attestation.issuer);
        Ok(endpoint()
            .with_issuer(issuer)
            .with_validator(Arc::new(validator))
            .with_channel_binding(trust.binding())
            .build()?)
    }
}

/// Checks that there is room for what a locked node must write.
fn check_room(directory: &Path) -> Result<(), PortError> {
    let nearest = directory.ancestors().find(|one| one.exists()).unwrap_or(directory);
    let found = rustix::fs::statvfs(nearest).map_err(|error| {
        let operation = format!("read the free space of {}", nearest.display());
        PortError::new(PortErrorKind::Unavailable, operation).because(error)
    })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= LEAST_FREE {
        return Ok(());
    }
    let operation = format!("keep the state in {}: {free} bytes are free", directory.display());
    Err(PortError::new(PortErrorKind::Unavailable, operation).with_code(Code::BootstrapStateFull))
}

fn metadata(settings: &Metadata) -> Arc<dyn MetadataSource> {
    match settings {
        Metadata::File { path } => Arc::new(FileMetadata::new(path)),
        Metadata::Qemu { url } => Arc::new(QemuMetadata::new(url.clone())),
        Metadata::Azure { url } => Arc::new(AzureMetadata::new(url.clone())),
        Metadata::Aws { url } => Arc::new(AwsMetadata::new(url.clone())),
        Metadata::Gcp { url } => Arc::new(GcpMetadata::new(url.clone())),
    }
}
