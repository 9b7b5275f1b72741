//! A plain key-value backend like Trustee's: policies, reference values and resources are pushed to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tec_core::attest::{VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::flow::ReleaseError;
use tec_core::id::{AttemptId, ResourcePath};
use tec_core::port::{KeyBroker, PolicySlot, PortError, PortErrorKind};
use tec_core::rotation::KeyMark;
use tec_core::secret::SecretBytes;

use super::backend::code_of;
use super::{Admission, Backend, PolicyDecision};
use crate::policy::{AttestationPolicy, PolicyError, ResourcePolicy};

#[derive(Debug, Default)]
struct State {
    attestation: Option<Arc<str>>,
    resource: Option<Arc<str>>,
    references: BTreeMap<String, Value>,
    resources: BTreeMap<ResourcePath, SecretBytes>,
}

/// Everything in memory, lost when the process ends. Policies alone decide.
///
/// # Security
/// Unlike Trustee, which starts with default policies, it denies everything until policies are set.
#[derive(Debug, Default)]
pub struct MemoryBackend(Mutex<State>);

impl MemoryBackend {
    /// An empty backend.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn attestation_policy(&self) -> Result<Option<Arc<str>>, PortError> {
        Ok(self.0.lock().attestation.clone())
    }

    async fn resource_policy(&self) -> Result<Option<Arc<str>>, PortError> {
        Ok(self.0.lock().resource.clone())
    }

    async fn admit(
        &self,
        attempt: AttemptId,
        evidence: &Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Admission, PortError> {
        let admission = Admission::new(attempt);
        Ok(match evidence {
            Ok(_) => admission,
            Err(error) => admission.refused_with(code_of(error)),
        })
    }

    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError> {
        Ok(self.0.lock().references.get(name).cloned())
    }

    async fn release(
        &self,
        admission: &Admission,
        path: &ResourcePath,
        policy: PolicyDecision,
        _shown: Option<KeyMark>,
    ) -> Result<SecretBytes, ReleaseError> {
        if policy == PolicyDecision::Deny || admission.refused.is_some() {
            return Err(ReleaseError::Refused(Code::ReleaseDenied));
        }
        self.0
            .lock()
            .resources
            .get(path)
            .map(|secret| secret.duplicate("release it"))
            .ok_or(ReleaseError::Refused(Code::KeyMissing))
    }

    async fn escrow(&self, _: &Admission, _: &SecretBytes) -> Result<u32, ReleaseError> {
        let code = Code::EscrowRefused;
        Err(ReleaseError::Refused(code))
    }

    fn broker(&self) -> Option<&dyn KeyBroker> {
        Some(self)
    }
}

#[async_trait]
impl KeyBroker for MemoryBackend {
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError> {
        let copy = secret.duplicate("the broker keeps it");
        self.0.lock().resources.insert(path.clone(), copy);
        Ok(())
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        self.0.lock().resources.remove(path);
        Ok(())
    }

    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError> {
        Ok(Some(self.0.lock().resources.keys().cloned().collect()))
    }

    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError> {
        let checked: Result<(), PolicyError> = match slot {
            PolicySlot::Attestation => AttestationPolicy::parse(rego).map(drop),
            _ => ResourcePolicy::parse(rego).map(drop),
        };
        checked.map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "set a policy")
                .because(error)
                .with_code(Code::PolicyInvalid)
        })?;
        let mut state = self.0.lock();
        match slot {
            PolicySlot::Attestation => state.attestation = Some(rego.into()),
            _ => state.resource = Some(rego.into()),
        }
        Ok(())
    }

    async fn set_reference_value(&self, name: &str, value: &Value) -> Result<(), PortError> {
        self.0.lock().references.insert(name.to_owned(), value.clone());
        Ok(())
    }

    async fn reference_value(&self, name: &str) -> Result<Option<Value>, PortError> {
        Ok(self.0.lock().references.get(name).cloned())
    }
}
