//! The inputs of the service: the cluster object, and files that the kubelet mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tec_core::ak::{AkMatcher, TpmObjects};
use tec_core::digest::Sha256Digest;
use tec_core::http::ChallengeKey;
use tec_core::secret::SecretArray;
use tec_k8s::api::{ApprovalError, TrustedExecutionCluster, approval_matcher};
use tec_support::{SystemClock, ek, input};

/// Largest bundle of CA certificates; a bundle for all TPM manufacturers is about 200 KiB.
const MAX_ROOTS: u64 = 1 << 20;

/// Files that the policy EndorsementKey uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub(crate) roots: Option<PathBuf>,
    pub(crate) challenge_key: Option<PathBuf>,
}

/// Why no key is accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("there is no TrustedExecutionCluster in this namespace")]
    NoCluster,
    #[error("cannot use spec.approval")]
    Approval(#[source] ApprovalError),
    #[error(
        "the ConfigMap {config_map} of spec.approval.endorsementRootsConfigMap is not mounted \
         (mount it, and pass its file with --ek-roots)"
    )]
    NoRoots { config_map: String },
    #[error(transparent)]
    Read(#[from] anyhow::Error),
    #[error("cannot use the CA certificates of endorsement keys: {why}")]
    Roots { why: String },
    #[error("{} has {length} bytes, but a challenge key must have 32", .file.display())]
    ChallengeKey { file: PathBuf, length: usize },
}

/// Everything that determines the service: equal settings mean an equal service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) cluster: Arc<TrustedExecutionCluster>,
    /// Digests of the files.
    files: [Option<Sha256Digest>; 2],
}

/// The service that a setting yields.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) matcher: Arc<dyn AkMatcher>,
    pub(crate) tpm: Arc<dyn TpmObjects>,
    /// The shared key, if there is one.
    pub(crate) challenge_key: Option<Arc<ChallengeKey>>,
}

impl Files {
    /// Reads what the cluster's policy needs. Files are used by the policy EndorsementKey only.
    ///
    /// # Security
    /// If the object names CA certificates, nothing is composed without them. If it names none, those of the
    /// flag are used: the pod may predate the change of the object.
    pub(crate) fn read(
        &self,
        cluster: Option<&Arc<TrustedExecutionCluster>>,
    ) -> Result<Setting, NotReady> {
        let cluster = Arc::clone(cluster.ok_or(NotReady::NoCluster)?);
        if cluster.endorsement().is_none() {
            return Ok(Setting { cluster, files: [None, None] });
        }
        if let (Some(config_map), None) = (cluster.endorsement_roots(), &self.roots) {
            return Err(NotReady::NoRoots { config_map: config_map.to_owned() });
        }
        let digest = |file: &Option<PathBuf>| {
            let bytes = file.as_deref().map(|file| input::read(file, MAX_ROOTS)).transpose();
            bytes.map(|bytes| bytes.map(Sha256Digest::of))
        };
        let files = [digest(&self.roots)?, digest(&self.challenge_key)?];
        Ok(Setting { cluster, files })
    }

    pub(crate) fn make(&self, setting: &Setting) -> Result<Made, NotReady> {
        let approval = setting.cluster.spec.approval.as_ref();
        let matcher = approval_matcher(approval).map_err(NotReady::Approval)?;
        let is_needed = setting.cluster.endorsement().is_some();
        let roots = self.roots.as_deref().filter(|_| is_needed);
        let issuer = ek::issuer(roots, Arc::new(SystemClock));
        let key = self.challenge_key.as_deref().filter(|_| is_needed);
        Ok(Made {
            matcher: matcher.into(),
            tpm: issuer.map_err(|error| NotReady::Roots { why: format!("{error:#}") })?,
            challenge_key: key.map(challenge_key).transpose()?.map(Arc::new),
        })
    }
}

fn challenge_key(file: &Path) -> Result<ChallengeKey, NotReady> {
    let bytes = input::read(file, MAX_ROOTS)?;
    let key = <[u8; 32]>::try_from(bytes.as_slice());
    let key =
        key.map_err(|_| NotReady::ChallengeKey { file: file.to_owned(), length: bytes.len() })?;
    Ok(ChallengeKey::new(SecretArray::new(key)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    fn cluster(approval: &Value) -> Arc<TrustedExecutionCluster> {
        let object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "TrustedExecutionCluster",
            "metadata": { "name": "c" }, "spec": { "approval": approval },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn outcome(files: &Files, approval: &Value) -> Result<(), NotReady> {
        let setting = files.read(Some(&cluster(approval)))?;
        files.make(&setting).map(drop)
    }

    #[test]
    fn a_fingerprint_that_is_none_lets_nobody_in() {
        let with = |key: &str| {
            outcome(
                &Files::default(),
                &json!({"policy": "EndorsementKey", "allowedEndorsementKeys": [key]}),
            )
        };
        assert!(with(&"ab".repeat(32)).is_ok());
        assert!(matches!(with("x"), Err(NotReady::Approval(ApprovalError::EndorsementKeys))));
    }

    #[test]
    fn without_the_roots_that_the_object_names_no_key_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let files = Files { roots: Some(file.clone()), challenge_key: None };
        let named = json!({"policy": "EndorsementKey", "endorsementRootsConfigMap": "roots"});
        assert!(matches!(outcome(&Files::default(), &named), Err(NotReady::NoRoots { .. })));
        assert!(matches!(outcome(&files, &named), Err(NotReady::Read(_))));
        for content in
            ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            fs::write(&file, content).unwrap();
            assert!(matches!(outcome(&files, &named), Err(NotReady::Roots { .. })), "{content}");
        }
        // No other policy uses them.
        assert!(outcome(&files, &json!({"policy": "FirstUse"})).is_ok());
    }

    #[test]
    fn a_challenge_key_of_another_length_is_refused_and_a_change_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let files = Files { roots: None, challenge_key: Some(file.clone()) };
        let policy = json!({"policy": "EndorsementKey"});
        fs::write(&file, [1; 31]).unwrap();
        assert!(matches!(outcome(&files, &policy), Err(NotReady::ChallengeKey { length: 31, .. })));
        let read = |byte| {
            fs::write(&file, [byte; 32]).unwrap();
            files.read(Some(&cluster(&policy))).unwrap()
        };
        let first = read(1);
        assert!(files.make(&first).unwrap().challenge_key.is_some());
        assert_eq!(first, read(1));
        assert_ne!(first, read(2));
    }
}
