//! Units of another anchor, written as objects of this cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tec_core::ak::{AkRecord, AkState, Fingerprint, SourceNetwork};
use tec_core::id::{ImageName, ResourcePath};
use tec_core::image::ApprovedImage;
use tec_core::migrate::{AdoptPage, MachineUnit, Merged, TrustUnit};
use tec_core::port::{AuditAction, AuditEvent, PortError, PortErrorKind};

use super::ADOPTED;
use super::meet::Met;
use super::snapshot::{HereMachine, Snapshot};
use crate::api;
use crate::api::BoundKey;
use crate::client::error::{is_conflict, is_not_found, port_error};
use crate::client::{ATTEMPTS, KubeRegistry};

impl KubeRegistry {
    /// Writes the result for a unit, if there is anything to write.
    pub(super) async fn write(
        &self,
        met: &Met,
        snapshot: &Snapshot,
        page: &AdoptPage,
    ) -> Result<(), PortError> {
        match &met.merged {
            Merged::Write(TrustUnit::Machine(unit)) => {
                self.write_machine(unit, snapshot, page).await
            }
            Merged::Write(TrustUnit::Image(image)) => {
                self.write_image(image, snapshot.image(&image.name), page).await
            }
            _ => Ok(()),
        }
    }

    /// Writes the machine first, since it owns the others, and the binding last, since the machine counts
    /// only from then on.
    async fn write_machine(
        &self,
        unit: &MachineUnit,
        snapshot: &Snapshot,
        page: &AdoptPage,
    ) -> Result<(), PortError> {
        let id = unit.machine.id;
        let (action, subject) = (AuditAction::TrustAdopted, format!("machine {id}"));
        let line = AuditEvent::new(page.at, action, Some(id), subject);
        let object = match snapshot.machine(&id) {
            Some(here) => self.renew_machine(unit, here, page).await?,
            None => self.create_machine(unit, page, &line).await?,
        };
        let owned = match object.controller_owner_ref(&()) {
            Some(owner) => self.owned_by(blocking(owner)),
            None => self.clone(),
        };
        let keys = async {
            for key in &unit.keys {
                owned.write_key(key, snapshot, page, &line).await?;
            }
            Ok(())
        };
        let disk = unit.secret.iter().filter(|_| !snapshot.has_secret(&id));
        let disk = disk.map(|key| (ResourcePath::luks_root(&id), key));
        let recovery = unit.escrows.iter();
        let recovery = recovery.filter(|(number, _)| !snapshot.has_escrow(&id, **number));
        let recovery = recovery.map(|(number, key)| (ResourcePath::recovery(&id, *number), key));
        let secret = async {
            for (path, key) in disk.chain(recovery) {
                if owned.create_at(&path, key, &line).await?.is_none() {
                    return Err(faster(&path.to_string()));
                }
            }
            Ok(())
        };
        futures::try_join!(keys, secret)?;
        self.write_status(object, unit, snapshot, page).await
    }

    async fn create_machine(
        &self,
        unit: &MachineUnit,
        page: &AdoptPage,
        line: &AuditEvent,
    ) -> Result<api::Machine, PortError> {
        let mut object = api::Machine::from_core(&unit.machine);
        self.complete(object.meta_mut(), Some(line));
        mark(&mut object, page);
        let name = object.name_any();
        let made = self.machines().create(&PostParams::default(), &object).await;
        made.map_err(|error| port_error(format!("adopt {name}"), error))
    }

    /// The existing machine, taken out of service if the incoming one is.
    async fn renew_machine(
        &self,
        unit: &MachineUnit,
        here: &HereMachine,
        page: &AdoptPage,
    ) -> Result<api::Machine, PortError> {
        let failed = |error| port_error(format!("adopt {}", here.name), error);
        let state = unit.machine.state;
        if here.machine.state.strictness() < state.strictness() {
            let spec = api::MachineSpec::default().patch_to(state, page.at);
            let patch = json!({ "spec": spec });
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let revoked = self.machines().patch(&here.name, &params, &patch).await;
            return revoked.map_err(failed);
        }
        self.machines().get(&here.name).await.map_err(failed)
    }

    async fn write_key(
        &self,
        key: &AkRecord,
        snapshot: &Snapshot,
        page: &AdoptPage,
        line: &AuditEvent,
    ) -> Result<(), PortError> {
        let print = key.fingerprint();
        let Some(here) = snapshot.key(&print) else {
            let name = api::AttestationKey::name_of(&print);
            let made = self.create_key(&name, key, line).await?;
            return made.map(drop).ok_or_else(|| faster(&name));
        };
        let mut spec = serde_json::Map::new();
        if key.state == AkState::Revoked && here.record.state != AkState::Revoked {
            spec.insert("revokedAt".to_owned(), json!(page.at.to_string()));
        }
        if let Some(ek) = key.ek.filter(|_| here.record.ek.is_none()) {
            spec.insert("endorsementKey".to_owned(), json!(ek.to_string()));
        }
        if spec.is_empty() {
            return Ok(());
        }
        let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"spec": spec})));
        let patched = self.keys().patch(&here.name, &params, &patch).await;
        patched.map_err(|error| port_error(format!("adopt {}", here.name), error))?;
        Ok(())
    }

    /// Binding and name of the Secret, by compare-and-swap: the operator of this cluster may write to the
    /// status too.
    async fn write_status(
        &self,
        mut object: api::Machine,
        unit: &MachineUnit,
        snapshot: &Snapshot,
        page: &AdoptPage,
    ) -> Result<(), PortError> {
        let name = object.name_any();
        let failed = |error| port_error(format!("adopt {name}"), error);
        for _ in 0..ATTEMPTS {
            let Some(status) = status(&object, unit, snapshot, page) else {
                return Ok(());
            };
            // After the machine was read, as for a binding.
            self.admitted(page).await?;
            let patch = json!({
                "metadata": {"resourceVersion": object.resource_version()},
                "status": status,
            });
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            match self.machines().patch_status(&name, &params, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(failed(error)),
            }
            object = self.machines().get(&name).await.map_err(failed)?;
        }
        Err(faster(&name))
    }

    async fn write_image(
        &self,
        image: &ApprovedImage,
        here: Option<&ApprovedImage>,
        page: &AdoptPage,
    ) -> Result<(), PortError> {
        let mut wanted = api::ApprovedImage::from_core(image);
        let (action, subject) = (AuditAction::TrustAdopted, format!("image {}", image.name));
        let line = AuditEvent::new(page.at, action, None, subject);
        self.complete(wanted.meta_mut(), Some(&line));
        let Some(here) = here else {
            mark(&mut wanted, page);
            return self.put_object(&wanted).await;
        };
        let comes_back = here.revoked_at.is_some() && here.revoked_at != image.revoked_at;
        if here.reference != image.reference || comes_back {
            // It follows the anchor that it came from, and must be created anew.
            mark(&mut wanted, page);
            return self.put_object(&wanted).await;
        }
        let mut spec = json!({"expiresAt": wanted.spec.expires_at});
        if let (Some(members), Some(at)) = (spec.as_object_mut(), &wanted.spec.revoked_at) {
            members.insert("revokedAt".to_owned(), json!(at));
        }
        let pcrs = wanted.status.as_ref().map(|status| &status.pcrs);
        let name = image.name.as_str();
        let failed = |error| port_error(format!("adopt image {name}"), error);
        let params = PatchParams::default();
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = self.images().patch(name, &params, &patch).await;
        patched.map_err(failed)?;
        let patch = Patch::Merge(json!({"status": {"pcrs": pcrs}}));
        let patched = self.images().patch_status(name, &params, &patch).await;
        patched.map_err(failed)?;
        Ok(())
    }

    pub(in crate::client) async fn delete_image(&self, name: &ImageName) -> Result<(), PortError> {
        let params = DeleteParams::default();
        match self.images().delete(name.as_str(), &params).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(port_error(format!("remove image {name}"), error)),
        }
    }
}

/// The fields that the machine's status lacks; `None` if it is complete.
fn status(
    object: &api::Machine,
    unit: &MachineUnit,
    snapshot: &Snapshot,
    page: &AdoptPage,
) -> Option<Value> {
    let mut status = serde_json::Map::new();
    if let Some(key) = binding(unit) {
        let print = key.ak;
        let named = snapshot.key(&print).map(|here| here.name.clone());
        let name = named.unwrap_or_else(|| api::AttestationKey::name_of(&print));
        let mut bound = BoundKey::new(name, print, page.at);
        bound.endorsement_key = key.ek.map(|ek| ek.to_string());
        bound.claimed_from = key.source.map(|source| source.to_string());
        let is_said = |said: &BoundKey| {
            said.name == bound.name && said.endorsement_key == bound.endorsement_key
        };
        if !object.bound_key().is_some_and(is_said) {
            status.insert("attestationKey".to_owned(), bound.patch());
        }
    }
    let said = object.status.as_ref();
    let said = said.and_then(|status| status.key_secret.as_ref());
    if unit.secret.is_some() && said.is_none() {
        // From now on no other key is ever generated for it here.
        let name = unit.machine.id.to_string();
        status.insert("keySecret".to_owned(), json!(name));
    }
    (!status.is_empty()).then_some(Value::Object(status))
}

/// A key, as named in the status.
struct Binding {
    ak: Fingerprint,
    ek: Option<Fingerprint>,
    source: Option<SourceNetwork>,
}

/// The key that the status names: the bound one. For a machine that had one, its last key, even if its object
/// is gone, since the machine must not become unclaimed again. An older anchor does not report its last key:
/// then any revoked key is used, and its endorsement key is ignored.
fn binding(unit: &MachineUnit) -> Option<Binding> {
    let of = |state| unit.keys.iter().find(move |key| key.state == state);
    if let Some(bound) = of(AkState::Bound) {
        return Some(Binding { ak: bound.fingerprint(), ek: bound.ek, source: bound.source });
    }
    let (ak, ek) = match unit.machine.binding {
        Some(last) => (last.ak, last.ek),
        None if unit.machine.was_bound() => (of(AkState::Revoked)?.fingerprint(), None),
        None => return None,
    };
    Some(Binding { ak, ek, source: None })
}

fn mark(object: &mut impl kube::Resource, page: &AdoptPage) {
    let epoch = page.intake.epoch().to_string();
    object.annotations_mut().insert(ADOPTED.to_owned(), epoch);
}

fn blocking(mut owner: OwnerReference) -> OwnerReference {
    owner.block_owner_deletion = Some(true);
    owner
}

fn faster(name: &str) -> PortError {
    let why = format!("adopt {name}: somebody else made it meanwhile");
    PortError::new(PortErrorKind::Conflict, why)
}
