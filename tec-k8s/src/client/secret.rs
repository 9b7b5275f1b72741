//! Disk keys as Secrets, and the recovery keys that machines left.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt as _};
use tec_core::id::ResourcePath;
use tec_core::migrate::Deed;
use tec_core::port::{AuditEvent, PortError, PortErrorKind, PutOutcome, SecretStore};
use tec_core::secret::SecretBytes;

use super::KubeRegistry;
use super::error::{is_conflict, is_not_found, port_error};

/// The entry of the Secret that holds the key (trusted-cluster-operator).
pub const SECRET_KEY: &str = "root";
/// The Secret of a recovery key is named `recovery-<machine>-<number>`.
const RECOVERY: &str = "recovery-";

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
        let mut metadata = ObjectMeta { name: Some(name(path)?), ..ObjectMeta::default() };
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
            preconditions: uid.map(|uid| Preconditions { resource_version: None, uid: Some(uid) }),
            ..DeleteParams::default()
        };
        match self.secrets().delete(&name(path)?, &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(port_error(format!("remove {path}"), error)),
        }
    }
}

/// The Secret of a path. Only the keys of machines have one: a disk key is named like the machine's
/// id, so that no path reaches a Secret of somebody else.
fn name(path: &ResourcePath) -> Result<String, PortError> {
    if let Some((machine, number)) = path.recovery_of() {
        return Ok(format!("{RECOVERY}{machine}-{number}"));
    }
    let machine = path.machine().ok_or_else(|| {
        let why = format!("{path} is not the path of a disk key or of a recovery key");
        PortError::new(PortErrorKind::Invalid, why)
    })?;
    Ok(machine.to_string())
}

/// The path whose key a Secret of this name holds, if it is named like one.
pub(super) fn path_of(secret: &str) -> Option<ResourcePath> {
    let path = match secret.strip_prefix(RECOVERY) {
        Some(rest) => {
            let (machine, number) = rest.rsplit_once('-')?;
            ResourcePath::recovery(&machine.parse().ok()?, number.parse().ok()?)
        }
        None => ResourcePath::luks_root(&secret.parse().ok()?),
    };
    // Parsing takes other spellings of an id, too.
    name(&path).is_ok_and(|name| name == secret).then_some(path)
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
            // Only where the record says no. One that cannot be read says nothing, and others may
            // have been told meanwhile that there is a key.
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
        self.permit(Deed::Remove, || format!("remove {path}")).await?;
        self.delete_secret(path, None).await
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn each_key_of_a_machine_has_its_own_secret_and_no_other_secret_is_a_key() {
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
