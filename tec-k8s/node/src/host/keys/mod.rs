//! Key services and stores of wrapped keys, as named by the URIs of a request.
//!
//! ```text
//!  kms://cluster-kms ──────────────────────────────► MasterSecret, derives
//!  kms://trustee ────── released to this node ─────► MasterSecret, derives
//!  kms://openbao, aws, azure, gcp ─► KeyWrapper ──┐
//!  storage://file, s3, azure, gcp ─► WrappedKeys ─┴► EnvelopeKeys
//! ```
//!
//! AWS needs the feature `aws`; Azure and Google Cloud need `experimental-clouds`, because no test runs their
//! key services and logins against an independent server. Without the feature, such a URI is refused with an
//! error that names the feature.

#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "experimental-clouds")]
mod azure;
#[cfg(feature = "experimental-clouds")]
mod bucket;
#[cfg(feature = "aws")]
mod connect;
mod file;
#[cfg(feature = "experimental-clouds")]
mod gcp;
mod http;
#[cfg(feature = "aws")]
mod object;
mod openbao;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::derive::MasterSecret;
use crate::envelope::{EnvelopeKeys, KeyWrapper, WrappedKeys};
use crate::port::{DataKeys, KeyServices, ReleasedSecrets};
use crate::uri::{KmsUri, StorageUri};
use async_trait::async_trait;
use tec_core::port::{Entropy, PortError, PortErrorKind};

use self::file::{FileKeys, is_on};
pub use self::http::CallError;
use self::openbao::OpenBaoTransit;

/// URIs that this program cannot use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyServiceError {
    /// The URIs name no store, and keys that are not derived must be stored.
    #[error("the key service generates random keys, but storage://no-store does not store them")]
    NoStore,
    /// This program was not built with the service.
    #[error("this program was built without {uri} (build it with the feature {feature})")]
    NotBuilt {
        /// Scheme and type.
        uri: &'static str,
        /// The feature that the service needs.
        feature: &'static str,
    },
    /// The keys would be stored on the disk that they open.
    #[error("the directory of storage://file is on the disk that its keys open")]
    OnItsOwnDisk,
    /// This program cannot attest to a Trustee.
    #[error("this program cannot attest its machine to a Trustee")]
    NoTrustee,
    /// A type that this program does not know yet.
    #[error("unknown URI type")]
    Unknown,
}

fn refused(error: KeyServiceError) -> PortError {
    PortError::new(PortErrorKind::Invalid, "open a key service").because(error)
}

/// Opens every service that was built in.
#[derive(Clone, Debug)]
pub struct KeyBackends {
    entropy: Arc<dyn Entropy>,
    released: Option<Arc<dyn ReleasedSecrets>>,
    own_disk: Vec<PathBuf>,
}

impl KeyBackends {
    /// New data keys are drawn from `entropy`.
    pub fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self { entropy, released: None, own_disk: Vec::new() }
    }

    /// Refuses a `storage://file` on a disk of this machine that the keys open: takes its device and its
    /// mount point.
    pub fn with_own_disk(mut self, places: Vec<PathBuf>) -> Self {
        self.own_disk = places;
        self
    }

    /// Uses this for `kms://trustee`.
    pub fn with_released(mut self, released: Arc<dyn ReleasedSecrets>) -> Self {
        self.released = Some(released);
        self
    }

    async fn master(&self, kms: KmsUri) -> Result<Result<MasterSecret, KmsUri>, PortError> {
        let key = match kms {
            KmsUri::Cluster(master) => return Ok(Ok(master)),
            KmsUri::Trustee(key) => key,
            other => return Ok(Err(other)),
        };
        let released = self.released.as_ref();
        let released = released.ok_or_else(|| refused(KeyServiceError::NoTrustee))?;
        let json = released.release(&key).await?;
        let master = MasterSecret::from_json(json.expose("derive data keys from it"));
        master.map(Ok).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "take the master secret of a Trustee")
                .because(error)
        })
    }
}

impl KeyBackends {
    fn store(&self, storage: StorageUri) -> Result<Arc<dyn WrappedKeys>, PortError> {
        match storage {
            StorageUri::NoStore => Err(refused(KeyServiceError::NoStore)),
            StorageUri::File(directory) => {
                let path = Path::new(&directory.path);
                // A path that cannot be examined is not used either.
                if self.own_disk.iter().any(|own| is_on(path, own).unwrap_or(true)) {
                    return Err(refused(KeyServiceError::OnItsOwnDisk));
                }
                Ok(Arc::new(FileKeys::new(path)))
            }
            other => cloud_store(&other),
        }
    }
}

#[async_trait]
impl KeyServices for KeyBackends {
    async fn open(&self, kms: KmsUri, storage: StorageUri) -> Result<Box<dyn DataKeys>, PortError> {
        let kms = match self.master(kms).await? {
            Ok(master) => return Ok(Box::new(master)),
            Err(kms) => kms,
        };
        let store = self.store(storage)?;
        let keys = EnvelopeKeys::new(wrapper(kms)?, store, Arc::clone(&self.entropy));
        Ok(Box::new(keys))
    }
}

fn wrapper(kms: KmsUri) -> Result<Arc<dyn KeyWrapper>, PortError> {
    match kms {
        KmsUri::OpenBao(key) => Ok(Arc::new(OpenBaoTransit::new(key)?)),
        other => cloud_wrapper(other),
    }
}

#[cfg_attr(
    not(feature = "aws"),
    expect(clippy::needless_pass_by_value, reason = "what is built in takes the secrets along")
)]
fn cloud_wrapper(kms: KmsUri) -> Result<Arc<dyn KeyWrapper>, PortError> {
    match kms {
        #[cfg(feature = "aws")]
        KmsUri::Aws(key) => Ok(Arc::new(aws::AwsKms::new(key)?)),
        #[cfg(feature = "experimental-clouds")]
        KmsUri::Azure(key) => Ok(Arc::new(azure::KeyVault::new(key)?)),
        #[cfg(feature = "experimental-clouds")]
        KmsUri::Gcp(key) => Ok(Arc::new(gcp::GcpKms::new(&key)?)),
        #[cfg(not(feature = "aws"))]
        KmsUri::Aws(_) => Err(not_built("kms://aws", "aws")),
        #[cfg(not(feature = "experimental-clouds"))]
        KmsUri::Azure(_) => Err(not_built("kms://azure", "experimental-clouds")),
        #[cfg(not(feature = "experimental-clouds"))]
        KmsUri::Gcp(_) => Err(not_built("kms://gcp", "experimental-clouds")),
        _ => Err(refused(KeyServiceError::Unknown)),
    }
}

fn cloud_store(storage: &StorageUri) -> Result<Arc<dyn WrappedKeys>, PortError> {
    match storage {
        #[cfg(not(feature = "aws"))]
        StorageUri::S3(_) => Err(not_built("storage://s3", "aws")),
        #[cfg(not(feature = "experimental-clouds"))]
        StorageUri::Azure(_) | StorageUri::AzureConnection(_) => {
            Err(not_built("storage://azure", "experimental-clouds"))
        }
        #[cfg(not(feature = "experimental-clouds"))]
        StorageUri::Gcp(_) => Err(not_built("storage://gcp", "experimental-clouds")),
        #[cfg(feature = "aws")]
        other => Ok(Arc::new(object::ObjectKeys::new(other)?)),
        #[cfg(not(feature = "aws"))]
        _ => Err(refused(KeyServiceError::Unknown)),
    }
}

#[cfg(not(feature = "experimental-clouds"))]
fn not_built(uri: &'static str, feature: &'static str) -> PortError {
    refused(KeyServiceError::NotBuilt { uri, feature })
}

#[cfg(test)]
mod tests;
