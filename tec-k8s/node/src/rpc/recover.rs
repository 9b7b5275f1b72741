//! The Recover call.

use std::sync::Arc;
use std::time::Duration;

use crate::derive::{DataKeyId, DiskId, MeasurementSecret};
use crate::drive::OfferedKeys;
use crate::port::{DataKeys, KeyServices, StateDisk};
use crate::uri::{KmsUri, ListedPlaces, StorageUri};
use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tonic::{Code, Request, Response, Status};
use zeroize::Zeroizing;

use super::caller::refusal;
use super::generated::recoverproto::api_server::Api;
use super::generated::recoverproto::{RecoverMessage, RecoverResponse};
use super::{Reason, convert};

/// Serves Recover until someone's keys open the disk. A wrong key is reported as such, and changes nothing.
#[derive(Debug)]
pub struct RecoverService {
    keys: Arc<dyn KeyServices>,
    listed: ListedPlaces,
    disk: Arc<dyn StateDisk>,
    recovered: mpsc::Sender<OfferedKeys>,
    trying: Semaphore,
    asking: Semaphore,
}

/// Length of both keys.
const KEY: usize = 32;
/// Maximum number of concurrent callers for which the node asks other servers: anyone may call.
const ASKING: usize = 4;
/// Time limit for a call to key services, including the wait for its turn.
const ASKING_LIMIT: Duration = Duration::from_mins(1);

impl RecoverService {
    /// Callers must name one of the `listed` key services. Keys that open `disk` are sent to `recovered`; it
    /// needs room for one.
    pub fn new(
        keys: Arc<dyn KeyServices>,
        listed: ListedPlaces,
        disk: Arc<dyn StateDisk>,
        recovered: mpsc::Sender<OfferedKeys>,
    ) -> Self {
        Self {
            keys,
            listed,
            disk,
            recovered,
            // A try takes a copy of the header and the memory of Argon2id, and anyone may ask.
            trying: Semaphore::new(1),
            asking: Semaphore::new(ASKING),
        }
    }

    /// Anyone may call, and whoever names the server chooses to whom this node attests.
    fn ensure_listed(&self, kms: &KmsUri, storage: &StorageUri) -> Result<(), Status> {
        self.listed.admit(kms, storage).map_err(|unlisted| {
            let place = unlisted.0;
            tracing::warn!(%place, "Recover names a key service that is not listed");
            let sentence = format!(
                "{place} is not listed; add it to recovery_key_services in bootstrapper.toml of the node"
            );
            Reason::UnlistedKeyService.status(Code::PermissionDenied, sentence)
        })
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.trying.acquire().await.map_err(|_| too_late())
    }

    /// Opens and asks the service that a caller named. A master secret in the URI needs no request, so that
    /// strangers' slow servers cannot keep its owner away.
    async fn fetch(
        &self,
        kms: KmsUri,
        storage: StorageUri,
        disk: DiskId,
    ) -> Result<OfferedKeys, Status> {
        let sentence = "the key service cannot be used";
        let failed = |error| refusal(Reason::KeyService, sentence, &error);
        let asking = async {
            let _turn = match kms {
                KmsUri::Cluster(_) => None,
                _ => Some(self.asking.acquire().await.map_err(|_| too_late())?),
            };
            let keys = self.keys.open(kms, storage).await.map_err(failed)?;
            self.keys(&*keys, disk).await.map_err(failed)
        };
        let asked = tokio::time::timeout(ASKING_LIMIT, asking).await;
        asked.unwrap_or_else(|_| {
            let sentence = "the key service does not answer in time";
            Err(Reason::KeyService.status(Code::Unavailable, sentence))
        })
    }

    async fn keys(&self, keys: &dyn DataKeys, disk: DiskId) -> Result<OfferedKeys, PortError> {
        let secret = keys.existing_data_key(&DataKeyId::measurement_secret(), KEY).await?;
        let disk = DataKeyId::state_disk(disk);
        Ok(OfferedKeys {
            state_disk_key: keys.existing_data_key(&disk, KEY).await?,
            measurement_secret: MeasurementSecret::from_data_key(&secret).map_err(|error| {
                PortError::new(PortErrorKind::Invalid, "take the measurement secret").because(error)
            })?,
        })
    }
}

#[async_trait]
impl Api for RecoverService {
    async fn recover(
        &self,
        request: Request<RecoverMessage>,
    ) -> Result<Response<RecoverResponse>, Status> {
        let message = request.into_inner();
        let (kms, storage) = (message.kms_uri, message.storage_uri);
        let (kms, storage) = convert::uris(&Zeroizing::new(kms), &Zeroizing::new(storage))?;
        self.ensure_listed(&kms, &storage)?;
        let turn = self.turn().await?;
        let disk = self.disk.id().await.map_err(|error| unreadable(&error))?;
        // A stranger names the service, and it may be slow to answer: nobody waits for that.
        drop(turn);
        let keys = self.fetch(kms, storage, disk).await?;
        let _turn = self.turn().await?;
        let fits = self.disk.opens_with(&keys.state_disk_key).await;
        if !fits.map_err(|error| unreadable(&error))? {
            let sentence = "the key does not open the disk";
            return Err(Reason::WrongKey.status(Code::FailedPrecondition, sentence));
        }
        if !message.check {
            self.recovered.try_send(keys).map_err(|_| too_late())?;
        }
        Ok(Response::new(RecoverResponse { disk_uuid: disk.to_string() }))
    }
}

fn unreadable(error: &PortError) -> Status {
    refusal(Reason::Disk, "the disk cannot be read", error)
}

fn too_late() -> Status {
    let sentence = "the disk is being recovered already";
    Reason::AlreadyRecovering.status(Code::FailedPrecondition, sentence)
}
