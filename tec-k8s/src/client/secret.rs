//! Disk keys as Secrets.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::Resource as _;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use kube::api::ObjectMeta;
use kube::api::PostParams;
use kube::api::Preconditions;
use tec_core::id::ResourcePath;
use tec_core::migrate::Deed;
use tec_core::port::AuditEvent;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::port::PutOutcome;
use tec_core::port::SecretStore;
use tec_core::secret::SecretBytes;

use super::KubeRegistry;
use super::error::is_conflict;
use super::error::is_not_found;
use super::error::port_error;

/// The entry of the Secret that holds the key (upstream-operator 1.4).
pub const SECRET_KEY: &str = "root";

impl KubeRegistry {
    pub(super) fn secrets(&self) -> Api<Secret> {
        self.objects()
    }

    /// Makes the Secret; `None` when it exists.
    pub(super) async fn create_secret(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<Option<Secret>, PortError> {
        let mut metadata = ObjectMeta {
            name: Some(name(path)?),
            ..ObjectMeta::default()
        };
        self.complete(&mut metadata, Some(line));
        let bytes = secret.expose("the API server stores it").to_vec();
        let object = Secret {
            metadata,
            // The API server itself then refuses another key.
            immutable: Some(true),
            data: Some(BTreeMap::from([(SECRET_KEY.to_owned(), ByteString(bytes))])),
            ..Secret::default()
        };
        match self.secrets().create(&PostParams::default(), &object).await {
            Ok(made) => Ok(Some(made)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(port_error(format!("store {path}"), error)),
        }
    }

    /// Removes the Secret of a path: that of this UID, where one is given.
    pub(super) async fn delete_secret(
        &self,
        path: &ResourcePath,
        uid: Option<String>,
    ) -> Result<(), PortError> {
        let params = DeleteParams {
            preconditions: uid.map(|uid| Preconditions {
                resource_version: None,
                uid: Some(uid),
            }),
            ..DeleteParams::default()
        };
        match self.secrets().delete(&name(path)?, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(format!("remove {path}"), error)),
        }
    }
}

/// The Secret of a path: only the disk keys of machines have one, named like the machine's id, so
/// that no path reaches a Secret of somebody else.
fn name(path: &ResourcePath) -> Result<String, PortError> {
    let machine = path.machine().ok_or_else(|| {
        let why = format!("{path} is not the path of a disk key");
        PortError::new(PortErrorKind::Invalid, why)
    })?;
    Ok(machine.to_string())
}

#[async_trait]
impl SecretStore for KubeRegistry {
    async fn put_new(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<PutOutcome, PortError> {
        let operation = || format!("store {path}");
        self.permit(Deed::Admit, operation).await?;
        let made = self.create_secret(path, secret, line).await?;
        if let Err(late) = self.permit(Deed::Admit, operation).await {
            // Only where the record says no. One that cannot be read says nothing, and others may have been
            // told meanwhile that there is a key.
            if let Some(made) = made.filter(|_| late.code().is_some()) {
                self.delete_secret(path, made.uid()).await?;
            }
            return Err(late);
        }
        Ok(match made {
            Some(_) => PutOutcome::Stored,
            None => PutOutcome::Existed,
        })
    }

    async fn find(&self, path: &ResourcePath) -> Result<Option<SecretBytes>, PortError> {
        let operation = || format!("read {path}");
        self.permit_soon(Deed::Release, operation).await?;
        let found = self.secrets().get_opt(&name(path)?).await;
        let found = found.map_err(|error| port_error(operation(), error))?;
        let entry = found.and_then(|secret| secret.data?.remove(SECRET_KEY));
        Ok(entry.map(|bytes| SecretBytes::new(bytes.0)))
    }

    /// Asks for the Secret's metadata only.
    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        let found = self.secrets().get_metadata_opt(&name(path)?).await;
        let found = found.map_err(|error| port_error(format!("look for {path}"), error))?;
        Ok(found.is_some_and(|object| object.meta().deletion_timestamp.is_none()))
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        self.permit(Deed::Remove, || format!("remove {path}"))
            .await?;
        self.delete_secret(path, None).await
    }
}
