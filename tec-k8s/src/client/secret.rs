//! Disk keys as Secrets, and the recovery keys that machines deposited as [`RecoveryKey`]s.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use tec_core::id::ResourcePath;
use tec_core::migrate::Deed;
use tec_core::port::{AuditEvent, PortError, PortErrorKind, PutOutcome, SecretStore};
use tec_core::secret::SecretBytes;

use super::error::{if_found, is_conflict, is_not_found, port_error};
use super::{KubeRegistry, Object, is_terminating};
use crate::api::RecoveryKey;

/// The entry of the Secret that holds the key (trusted-cluster-operator).
pub const SECRET_KEY: &str = "root";
/// Prefix of a recovery key's name.
const RECOVERY: &str = "recovery-";

impl KubeRegistry {
    pub(super) fn secrets(&self) -> Api<Secret> {
        self.objects()
    }

    /// Creates the object for a path; returns its metadata, or `None` if it exists.
    pub(super) async fn create_at(
        &self,
        path: &ResourcePath,
        key: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<Option<ObjectMeta>, PortError> {
        match path.recovery_of() {
            // An earlier version may have stored this number in a Secret.
            Some(_) if self.has::<Secret>(path).await? => Ok(None),
            Some(of) => self.create_recovery_key(of, key, line).await,
            None => self.create_secret(path, key, line).await,
        }
    }

    async fn create_secret(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
        line: &AuditEvent,
    ) -> Result<Option<ObjectMeta>, PortError> {
        let mut metadata = ObjectMeta { name: Some(name(path)?), ..ObjectMeta::default() };
        self.complete(&mut metadata, Some(line));
        let bytes = secret.expose("the API server stores it").to_vec();
        let object = Secret {
            metadata,
            // The API server itself then refuses a different key.
            immutable: Some(true),
            data: Some(BTreeMap::from([(SECRET_KEY.to_owned(), ByteString(bytes))])),
            ..Secret::default()
        };
        match self.secrets().create(&PostParams::default(), &object).await {
            Ok(made) => Ok(Some(made.metadata)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(port_error(format!("store {path}"), error)),
        }
    }

    /// Removes the object at a path: the one with this UID, if given.
    pub(super) async fn delete_at(
        &self,
        path: &ResourcePath,
        uid: Option<String>,
    ) -> Result<(), PortError> {
        if path.recovery_of().is_some() {
            self.delete::<RecoveryKey>(path, uid.clone()).await?;
        }
        self.delete::<Secret>(path, uid).await
    }

    async fn delete<K: Stored>(
        &self,
        path: &ResourcePath,
        uid: Option<String>,
    ) -> Result<(), PortError> {
        let params = DeleteParams {
            preconditions: uid.map(|uid| Preconditions { resource_version: None, uid: Some(uid) }),
            ..DeleteParams::default()
        };
        match self.objects::<K>().delete(&name(path)?, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(format!("remove {path}"), error)),
        }
    }

    /// Requests only metadata.
    async fn has<K: Stored>(&self, path: &ResourcePath) -> Result<bool, PortError> {
        let found = self.objects::<K>().get_metadata_opt(&name(path)?).await;
        let found =
            if_found(found).map_err(|error| port_error(format!("look for {path}"), error))?;
        Ok(found.is_some_and(|object| !is_terminating(&object)))
    }
}

/// A kind of object in which keys are stored.
trait Stored: Object {}

impl Stored for Secret {}
impl Stored for RecoveryKey {}

/// The name of the object at a path. Only keys of machines have one: the name of a disk key is the machine's
/// ID, so that no path reaches someone else's Secret.
fn name(path: &ResourcePath) -> Result<String, PortError> {
    if let Some((machine, number)) = path.recovery_of() {
        return Ok(RecoveryKey::name_of(&machine, number));
    }
    let machine = path.machine().ok_or_else(|| {
        let why = format!("{path} is not the path of a disk key or of a recovery key");
        PortError::new(PortErrorKind::Invalid, why)
    })?;
    Ok(machine.to_string())
}

/// The path whose key an object with this name holds, if the name has that form.
pub(super) fn path_of(object: &str) -> Option<ResourcePath> {
    let path = match object.strip_prefix(RECOVERY) {
        Some(rest) => {
            let (machine, number) = rest.rsplit_once('-')?;
            ResourcePath::recovery(&machine.parse().ok()?, number.parse().ok()?)
        }
        None => ResourcePath::luks_root(&object.parse().ok()?),
    };
    // Parsing accepts other spellings of an id too.
    name(&path).is_ok_and(|name| name == object).then_some(path)
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
        let made = self.create_at(path, secret, line).await?;
        if let Err(late) = self.permit(Deed::Admit, operation).await {
            // Only if the record refuses. One that cannot be read decides nothing, and others may have
            // learned of the key in the meantime.
            if let Some(made) = made.filter(|_| late.code().is_some()) {
                match self.delete_at(path, made.uid).await {
                    // A key broker may not remove what it created; nobody was told about it.
                    Err(error) if error.kind() == PortErrorKind::Denied => {}
                    removed => removed?,
                }
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
        let (name, failed) = (name(path)?, |error| port_error(operation(), error));
        if path.recovery_of().is_some() {
            let found = self.recovery_keys().get_opt(&name).await;
            if let Some(found) = if_found(found).map_err(failed)? {
                return Ok(Some(SecretBytes::new(found.spec.sealed.into_bytes())));
            }
        }
        let found = self.secrets().get_opt(&name).await.map_err(failed)?;
        let entry = found.and_then(|secret| secret.data?.remove(SECRET_KEY));
        Ok(entry.map(|bytes| SecretBytes::new(bytes.0)))
    }

    async fn exists(&self, path: &ResourcePath) -> Result<bool, PortError> {
        let is_recovery = path.recovery_of().is_some();
        Ok((is_recovery && self.has::<RecoveryKey>(path).await?)
            || self.has::<Secret>(path).await?)
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        self.permit(Deed::Remove, || format!("remove {path}")).await?;
        self.delete_at(path, None).await
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn each_key_of_a_machine_has_its_own_name_and_no_other_object_is_a_key() {
        let id = sample::machine_id(1);
        for path in [
            ResourcePath::luks_root(&id),
            ResourcePath::recovery(&id, 1),
            ResourcePath::recovery(&id, 64),
        ] {
            assert_eq!(path_of(&name(&path).unwrap()), Some(path));
        }
        for other in [
            format!("recovery-{id}"),
            format!("recovery-{id}-01"),
            format!("recovery-{id}-+1"),
            format!("recovery-{}-1", id.to_string().replace('-', "")),
            "recovery-1".to_owned(),
            "trustee-tls".to_owned(),
        ] {
            assert_eq!(path_of(&other), None, "{other}");
        }
    }
}
