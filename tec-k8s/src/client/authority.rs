//! The record of authority of a namespace, which every write checks.
//!
//! # Why nothing is lost between the record and the write
//! An API server has no transactions over two objects. So a writer that admits something reads the record
//! twice, and the anchor that gave up the authority touches what it copies:
//!
//! ```text
//!  create an object:   look ─► create ─► look again ─► acknowledged
//!  bind a key:         read the machine ─► look ─► swap its status       (a compare and swap)
//!  give up:            swap the record ─► seal every object ─► list what there is ─► copy
//! ```
//! Whatever is acknowledged was created while the record, read afterwards, was still active: before the
//! authority was given up, so the list contains it. Whatever comes too late is refused, and is removed again
//! if the writer has permission to remove it; otherwise it stays. The next copy from the new authority
//! removes machines and images that the new authority does not have; a disk key that differs from the
//! authority's is a conflict that an admin must resolve. A binding that comes after the seal fails, since the
//! seal changed the version of the machine; a binding that comes before is in the list.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use tec_core::migrate::{Authority, Deed, SwapOutcome, Transition};
use tec_core::port::{AuditEvent, AuditSink as _, PortError, PortErrorKind, chain};
use tec_core::time::Timestamp;

use super::error::{is_conflict, port_error};
use super::fence::Fence;
use super::{ATTEMPTS, AUDIT, KubeRegistry, note};
use crate::api::AUTHORITY;

/// Entry with the record, as JSON; absent if the anchor was never part of a migration.
const RECORD: &str = "record";
/// Seconds for which the first of the two checks may rely on an earlier look at the record, and every check
/// on what cluster objects remember.
const FRESH: i64 = 1;

/// The result of the last look at the record, and the looks under way.
#[derive(Debug, Default)]
pub(super) struct Seen {
    last: Mutex<Option<(Timestamp, Option<Authority>)>>,
    remembered: Mutex<Option<Remembered>>,
    fence: Fence<Option<Authority>>,
}

/// What cluster objects remembered when the record's object, which has no record, had this version.
#[derive(Debug)]
struct Remembered {
    at: Timestamp,
    version: String,
    record: Option<Authority>,
}

fn is_fresh(at: Timestamp, now: Timestamp) -> bool {
    at <= now && now < at.plus_seconds(FRESH)
}

/// The record in its object; `None` if it was never part of a migration.
pub fn record_of(object: &ConfigMap) -> Result<Option<Authority>, PortError> {
    let text = object.data.as_ref().and_then(|data| data.get(RECORD));
    let record = text.map(|text| serde_json::from_str(text)).transpose();
    record.map_err(|error| {
        PortError::new(PortErrorKind::Invalid, format!("read {AUTHORITY}")).because(error)
    })
}

/// A namespace without a record is its own authority. The name of the anchor is the UID that the API server
/// assigned to the object, which is unique.
fn founded(object: &ConfigMap) -> Result<Authority, PortError> {
    let uid = object.uid().unwrap_or_default();
    let anchor = uid.parse().map_err(|error| {
        PortError::new(PortErrorKind::Invalid, format!("read the UID of {AUTHORITY}"))
            .because(error)
    })?;
    Ok(Authority::founded(anchor))
}

fn text_of(record: &Authority) -> Result<String, PortError> {
    serde_json::to_string(record).map_err(|error| {
        PortError::new(PortErrorKind::Internal, "write the record of authority").because(error)
    })
}

impl KubeRegistry {
    pub(super) fn authorities(&self) -> Api<ConfigMap> {
        self.objects()
    }

    /// The object of the record, created if it does not exist.
    pub(super) async fn authority_object(&self) -> Result<ConfigMap, PortError> {
        let failed = |error| port_error("read the record of authority", error);
        for _ in 0..ATTEMPTS {
            let found = self.authorities().get_opt(AUTHORITY).await;
            if let Some(object) = found.map_err(failed)? {
                return Ok(object);
            }
            // Someone removed it, if the cluster object remembers one.
            let lost = self.remembered().await?;
            let entry = lost.map(|record| text_of(&record)).transpose()?;
            let object = ConfigMap {
                metadata: ObjectMeta { name: Some(AUTHORITY.to_owned()), ..ObjectMeta::default() },
                data: entry.map(|text| BTreeMap::from([(RECORD.to_owned(), text)])),
                ..ConfigMap::default()
            };
            match self.authorities().create(&PostParams::default(), &object).await {
                Ok(object) => return Ok(object),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let why = "found the trust anchor: somebody removes its record each time";
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }

    /// Writes entries of the record's object, if nobody has changed it since it was read.
    pub(super) async fn replace_authority(
        &self,
        object: &ConfigMap,
        entries: BTreeMap<String, String>,
        line: Option<&AuditEvent>,
    ) -> Result<bool, PortError> {
        let mut object = object.clone();
        object.data = Some(entries);
        if let Some(text) = line.and_then(note) {
            let annotations = object.meta_mut().annotations.get_or_insert_default();
            annotations.insert(AUDIT.to_owned(), text);
        }
        let params = PostParams::default();
        let replaced = self.authorities().replace(AUTHORITY, &params, &object).await;
        *self.seen.last.lock() = None;
        match replaced {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(port_error("change the record of authority", error)),
        }
    }

    pub(super) async fn swap_authority(
        &self,
        change: &Transition,
        line: &AuditEvent,
    ) -> Result<SwapOutcome, PortError> {
        for _ in 0..ATTEMPTS {
            let object = self.authority_object().await?;
            let now = self.authority_of(&object).await?;
            if now != *change.from() {
                self.remember_after(&now).await;
                return Ok(SwapOutcome::Lost(now));
            }
            self.remember_before(change.to()).await?;
            let mut entries = object.data.clone().unwrap_or_default();
            entries.insert(RECORD.to_owned(), text_of(change.to())?);
            if self.replace_authority(&object, entries, Some(line)).await? {
                self.remember_after(change.to()).await;
                self.tell(line).await;
                return Ok(SwapOutcome::Swapped);
            }
        }
        let why = "change the record of authority: others were faster each time";
        Err(PortError::new(PortErrorKind::Unavailable, why))
    }

    /// Also writes the line as an Event. The object already has the line, so a failure is no reason to stop.
    pub(super) async fn tell(&self, line: &AuditEvent) {
        if let Err(error) = self.append(line).await {
            tracing::warn!(error = chain(&error), "an audit line is not told as an Event");
        }
    }

    /// The record of an object; if someone emptied it, the remembered one.
    pub(super) async fn authority_of(&self, object: &ConfigMap) -> Result<Authority, PortError> {
        if let Some(record) = record_of(object)? {
            return Ok(record);
        }
        let remembered = self.remembered().await?;
        remembered.map_or_else(|| founded(object), Ok)
    }

    /// The current record; `None` if there never was one. All callers that ask during a look share the next
    /// one, so that a rush of machines causes few looks.
    async fn look(&self) -> Result<Option<Authority>, PortError> {
        self.seen.fence.look(self.look_alone()).await
    }

    async fn look_alone(&self) -> Result<Option<Authority>, PortError> {
        let now = self.clock.now();
        let object = self.authorities().get_opt(AUTHORITY).await;
        let object = object.map_err(|error| port_error("read the record of authority", error))?;
        let record = match object.as_ref().map(record_of).transpose()?.flatten() {
            Some(record) => Some(record),
            None => self.remembered_with(object.and_then(|it| it.resource_version()), now).await?,
        };
        *self.seen.last.lock() = Some((now, record));
        Ok(record)
    }

    /// What cluster objects remember while the record's object has no record. They are not asked before each
    /// write: a change of authority always changes the version of the record's object.
    async fn remembered_with(
        &self,
        version: Option<String>,
        now: Timestamp,
    ) -> Result<Option<Authority>, PortError> {
        let Some(version) = version else {
            return self.remembered().await;
        };
        if let Some(known) = &*self.seen.remembered.lock()
            && known.version == version
            && is_fresh(known.at, now)
        {
            return Ok(known.record);
        }
        let record = self.remembered().await?;
        *self.seen.remembered.lock() = Some(Remembered { at: now, version, record });
        Ok(record)
    }

    async fn look_soon(&self) -> Result<Option<Authority>, PortError> {
        let now = self.clock.now();
        let seen = *self.seen.last.lock();
        match seen {
            Some((at, record)) if is_fresh(at, now) => Ok(record),
            _ => self.look().await,
        }
    }

    /// Refuses what the anchor may not do according to the current record.
    pub(super) async fn permit(
        &self,
        deed: Deed,
        operation: impl Fn() -> String,
    ) -> Result<(), PortError> {
        permitted(self.look().await?.as_ref(), deed, operation)
    }

    /// The same with a record that may be a second old, for actions that are checked again later or may take
    /// effect a second late.
    pub(super) async fn permit_soon(
        &self,
        deed: Deed,
        operation: impl Fn() -> String,
    ) -> Result<(), PortError> {
        permitted(self.look_soon().await?.as_ref(), deed, operation)
    }
}

fn permitted(
    record: Option<&Authority>,
    deed: Deed,
    operation: impl Fn() -> String,
) -> Result<(), PortError> {
    let Some(record) = record else { return Ok(()) };
    record.permit(deed).map_err(|refused| refused.during(operation()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use http::{Request, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tec_core::testing::ManualClock;

    use super::*;

    fn object(data: &serde_json::Value) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": {"name": AUTHORITY, "uid": "7c9e6679-7425-40de-944b-e07fc1f90ae7"},
            "data": data,
        }))
        .unwrap()
    }

    #[test]
    fn a_namespace_without_a_record_is_its_own_authority() {
        assert_eq!(record_of(&object(&json!({}))).unwrap(), None);
        let record = founded(&object(&json!({}))).unwrap();
        assert!(record.is_alone());
        let same = founded(&object(&json!({}))).unwrap();
        assert_eq!(record, same, "its name is that of the object");
    }

    /// An API server with an object for the record, which has no record, and without cluster objects. Lists
    /// of these are counted. Version 0 means that the object does not exist.
    fn registry(clock: &Arc<ManualClock>) -> (KubeRegistry, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (version, lists) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (at, listed) = (version.clone(), lists.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let version = at.load(Ordering::SeqCst);
            let (code, answer) = if !request.uri().path().ends_with(AUTHORITY) {
                listed.fetch_add(1, Ordering::SeqCst);
                let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []});
                (StatusCode::OK, list)
            } else if version > 0 {
                let metadata = json!({"name": AUTHORITY, "resourceVersion": version.to_string()});
                (StatusCode::OK, json!({"metadata": metadata}))
            } else {
                let status =
                    json!({"status": "Failure", "message": "", "reason": "NotFound", "code": 404});
                (StatusCode::NOT_FOUND, status)
            };
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap()) }
        });
        let client = Client::new(service, "default");
        (KubeRegistry::new(client, "default", clock.clone()), version, lists)
    }

    #[tokio::test]
    async fn cluster_objects_are_asked_again_after_each_change_and_each_second() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600)));
        let (registry, version, lists) = registry(&clock);
        let asked = async |times| {
            for _ in 0..3 {
                assert_eq!(registry.look().await.unwrap(), None);
            }
            assert_eq!(lists.swap(0, Ordering::SeqCst), times);
        };
        asked(3).await;
        version.store(1, Ordering::SeqCst);
        asked(1).await;
        asked(0).await;
        version.store(2, Ordering::SeqCst);
        asked(1).await;
        clock.advance_seconds(1);
        asked(1).await;
        version.store(0, Ordering::SeqCst);
        asked(3).await;
    }

    #[test]
    fn a_malformed_record_permits_nothing() {
        for text in ["", "{}", "active"] {
            let refused = record_of(&object(&json!({RECORD: text}))).unwrap_err();
            assert_eq!(refused.kind(), PortErrorKind::Invalid);
        }
    }
}
