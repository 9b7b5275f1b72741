//! Converts messages to and from domain types; the only module that reads their content.

use crate::derive::{DiskId, MeasurementSalt, MeasurementSecret};
use crate::drive::OfferedKeys;
use crate::init::{InitRequest, KubeProxy};
use crate::state::Role;
use crate::ticket::{Component, ComponentForm, JoinTicket, TicketError};
use crate::uri::{KmsUri, StorageUri, UriError};
use prost::Message as _;
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::{SecretArray, SecretBytes};
use zeroize::Zeroizing;

use super::{Reason, generated as pb};

/// An invalid message. No value is part of the text.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("kms_uri: {0}")]
    Kms(UriError),
    #[error("storage_uri: {0}")]
    Storage(UriError),
    #[error(transparent)]
    Member(#[from] TicketError),
    #[error("master_secret is not accepted on its own: pass the master secret in kms_uri")]
    MasterSecret,
}

impl From<MessageError> for tonic::Status {
    fn from(error: MessageError) -> Self {
        let reason = match error {
            MessageError::Kms(_) => Reason::KmsUri,
            MessageError::Storage(_) => Reason::StorageUri,
            MessageError::Member(_) => Reason::Member,
            MessageError::MasterSecret => Reason::MasterSecret,
        };
        reason.status(tonic::Code::InvalidArgument, error.to_string())
    }
}

/// The secrets taken out of a message, so that the rest contains none.
pub(super) struct InitSecrets {
    pub(super) init_secret: SecretBytes,
    kms_uri: Zeroizing<String>,
    storage_uri: Zeroizing<String>,
    has_master_secret: bool,
}

/// Splits a request into its public part and its secrets. A check belongs to no cluster.
pub(super) fn take_secrets(message: &mut pb::init::InitRequest) -> InitSecrets {
    message.check = false;
    let [master_secret, _salt] = [&mut message.master_secret, &mut message.salt]
        .map(|part| SecretBytes::new(std::mem::take(part)));
    InitSecrets {
        init_secret: SecretBytes::new(std::mem::take(&mut message.init_secret)),
        kms_uri: Zeroizing::new(std::mem::take(&mut message.kms_uri)),
        storage_uri: Zeroizing::new(std::mem::take(&mut message.storage_uri)),
        has_master_secret: !master_secret.is_empty(),
    }
}

/// Identifies a request: the keys and the store that it names, and the rest without secrets. Credentials are
/// excluded, since an init that has begun may outlive them.
fn digest(message: &pb::init::InitRequest, kms: &KmsUri, storage: &StorageUri) -> Sha256Digest {
    let (kms, storage) = (kms.identity(), storage.identity());
    let rest = message.encode_to_vec();
    Sha256Digest::of([REQUEST, kms.as_bytes(), storage.as_bytes(), &rest].concat())
}

/// Label of a request's digest.
const REQUEST: &[u8] = b"tec-init-request/1\0";

pub(super) fn uris(
    kms: &Zeroizing<String>,
    storage: &Zeroizing<String>,
) -> Result<(KmsUri, StorageUri), MessageError> {
    // In the order in which older peers report errors.
    let storage = StorageUri::parse(storage).map_err(MessageError::Storage)?;
    let kms = KmsUri::parse(kms).map_err(MessageError::Kms)?;
    Ok((kms, storage))
}

impl InitSecrets {
    /// Older clients send the master secret in addition to a URI that also has it. Alone, or with a URI that has
    /// no key, it is refused.
    pub(super) fn uris(self) -> Result<(KmsUri, StorageUri), MessageError> {
        if self.has_master_secret && is_without_key(&self.kms_uri) {
            return Err(MessageError::MasterSecret);
        }
        uris(&self.kms_uri, &self.storage_uri)
    }
}

/// Whether a URI leaves the master secret to another member.
fn is_without_key(kms: &str) -> bool {
    let no_key = UriError::Missing("key");
    kms.is_empty() || matches!(KmsUri::parse(kms), Err(error) if error == no_key)
}

pub(super) fn init_request(
    message: &pb::init::InitRequest,
    kms: &KmsUri,
    storage: &StorageUri,
) -> Result<InitRequest, MessageError> {
    let components = message.kubernetes_components.iter();
    Ok(InitRequest {
        digest: digest(message, kms, storage),
        kubernetes_version: version(&message.kubernetes_version)?,
        components: components
            .map(|one| component(&one.url, &one.hash, &one.install_path, one.extract))
            .collect::<Result<_, _>>()?,
        proxy: if message.conformance_mode { KubeProxy::Kept } else { KubeProxy::Replaced },
    })
}

/// Checks that a version is complete: kubeadm looks up any other version on the network, even an empty one.
fn version(text: &str) -> Result<String, TicketError> {
    let is_number = |part: &str| {
        let digits = part.bytes().all(|byte| byte.is_ascii_digit());
        digits && (1..=MAX_DIGITS).contains(&part.len())
    };
    let parts = text.strip_prefix('v').map(|rest| rest.split('.'));
    if parts.is_some_and(|parts| parts.clone().count() == 3 && parts.clone().all(is_number)) {
        return Ok(text.to_owned());
    }
    Err(TicketError::new("kubernetes_version", "a version of the form vX.Y.Z"))
}

/// Maximum number of digits in a part of a version.
const MAX_DIGITS: usize = 4;

fn component(
    url: &str,
    hash: &str,
    install_path: &str,
    extract: bool,
) -> Result<Component, TicketError> {
    let form = if extract { ComponentForm::Archive } else { ComponentForm::File };
    Component::new(url, hash, install_path, form)
}

/// The ticket request of a node.
pub(super) struct TicketRequest {
    pub(super) disk: DiskId,
    pub(super) role: Role,
    pub(super) csr: Vec<u8>,
}

pub(super) fn disk_id(text: &str) -> Result<DiskId, MessageError> {
    let malformed = |_| TicketError::new("disk_uuid", "a UUID");
    Ok(text.parse().map_err(malformed)?)
}

pub(super) fn ticket_request(
    message: pb::join::IssueJoinTicketRequest,
) -> Result<TicketRequest, MessageError> {
    Ok(TicketRequest {
        disk: disk_id(&message.disk_uuid)?,
        role: if message.is_control_plane { Role::ControlPlane } else { Role::Worker },
        csr: message.certificate_request,
    })
}

pub(super) fn ticket_message(ticket: &JoinTicket) -> pb::join::IssueJoinTicketResponse {
    const WHY: &str = "hand it to an admitted node over an attested connection";
    let components = ticket.components.iter();
    let files = ticket.files.iter();
    pb::join::IssueJoinTicketResponse {
        state_disk_key: ticket.state_disk_key.expose(WHY).to_vec(),
        measurement_salt: ticket.measurement_salt.as_bytes().to_vec(),
        measurement_secret: ticket.measurement_secret.expose(WHY).to_vec(),
        kubelet_cert: ticket.kubelet_certificate.clone().into_bytes(),
        api_server_endpoint: ticket.api_server.clone(),
        // A node proves itself with its certificate; nobody gets a token (Constellation).
        token: String::new(),
        discovery_token_ca_cert_hash: ticket.ca_pin.to_string(),
        control_plane_files: files
            .map(|(file, data)| pb::join::ControlPlaneCertOrKey {
                name: file.as_str().to_owned(),
                data: data.expose(WHY).to_vec(),
            })
            .collect(),
        kubernetes_version: ticket.kubernetes_version.clone(),
        kubernetes_components: components
            .map(|one| pb::join::KubernetesComponent {
                url: one.url.clone(),
                hash: format!("sha256:{}", one.hash),
                install_path: one.install_path.clone(),
                extract: one.form == ComponentForm::Archive,
            })
            .collect(),
    }
}

pub(super) fn ticket(
    message: pb::join::IssueJoinTicketResponse,
) -> Result<JoinTicket, MessageError> {
    let salt = Zeroizing::new(message.measurement_salt);
    let files = message.control_plane_files.into_iter();
    let components = message.kubernetes_components.iter();
    Ok(JoinTicket {
        state_disk_key: SecretArray::new(*key("state_disk_key", message.state_disk_key)?),
        measurement_salt: MeasurementSalt::new(*key("measurement_salt", salt.to_vec())?),
        measurement_secret: MeasurementSecret::new(*key(
            "measurement_secret",
            message.measurement_secret,
        )?),
        kubelet_certificate: String::from_utf8(message.kubelet_cert)
            .map_err(|_| TicketError::new("kubelet_cert", "PEM"))?,
        api_server: message.api_server_endpoint,
        ca_pin: message.discovery_token_ca_cert_hash.parse()?,
        files: files
            .map(|one| Ok((one.name.parse()?, SecretBytes::new(one.data))))
            .collect::<Result<_, TicketError>>()?,
        components: components
            .map(|one| component(&one.url, &one.hash, &one.install_path, one.extract))
            .collect::<Result<_, _>>()?,
        kubernetes_version: message.kubernetes_version,
    })
}

/// A ticket as bytes, for a file on the encrypted disk of its node.
pub fn ticket_to_bytes(ticket: &JoinTicket) -> SecretBytes {
    SecretBytes::new(ticket_message(ticket).encode_to_vec())
}

/// A ticket from [`ticket_to_bytes`].
pub fn ticket_from_bytes(bytes: &SecretBytes) -> Result<JoinTicket, PortError> {
    const WHY: &str = "take up a join again";
    let malformed = || PortError::new(PortErrorKind::Internal, "read the kept join ticket");
    let message = pb::join::IssueJoinTicketResponse::decode(bytes.expose(WHY));
    let message = message.map_err(|error| malformed().because(error))?;
    ticket(message).map_err(|error| malformed().because(error))
}

pub(super) fn rejoin_ticket(
    message: pb::join::IssueRejoinTicketResponse,
) -> Result<OfferedKeys, MessageError> {
    let disk = key("state_disk_key", message.state_disk_key)?;
    let secret = key("measurement_secret", message.measurement_secret)?;
    Ok(OfferedKeys {
        state_disk_key: SecretBytes::new(disk.to_vec()),
        measurement_secret: MeasurementSecret::new(*secret),
    })
}

fn key(member: &'static str, bytes: Vec<u8>) -> Result<Zeroizing<[u8; 32]>, TicketError> {
    let bytes = Zeroizing::new(bytes);
    <[u8; 32]>::try_from(bytes.as_slice())
        .map(Zeroizing::new)
        .map_err(|_| TicketError::new(member, "32 bytes"))
}
