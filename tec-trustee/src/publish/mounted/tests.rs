//! The mounted form: golden files, limits, and patches.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock as _, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::testing::{ManualClock, sample};
use tec_core::trustee::{Patched, TrusteeConfigurator as _, TrusteeIntent};

use super::super::{Desired, Progress, Publisher};
use super::*;
use crate::config::{Schema, lint};

/// A configuration of the mounted form: its admin API is closed.
fn layout() -> Layout {
    let signer = ("/opt/tec/signer.key".to_owned(), "/opt/tec/signer.crt".to_owned());
    let trusted = vec!["/opt/tec/ca.crt".to_owned()];
    let empty = Layout::new("");
    let mut intent = TrusteeIntent::new("0.0.0.0:8080", signer, trusted, &empty.storage_dir);
    intent.tls = Some(("/etc/tls/tls.crt".to_owned(), "/etc/tls/tls.key".to_owned()));
    let Patched::Changed(config) = Schema.patch("", &intent).unwrap() else {
        panic!("an empty configuration must change");
    };
    Layout { config, expiration: sample::time(0), ..empty }
}

fn desired(machines: impl IntoIterator<Item = u64>) -> Desired {
    let desired = Desired::new(
        "package policy\n\ndefault executables := 33\n",
        "package policy\n\ndefault allow := false\n",
    );
    let image = sample::image(1);
    desired.set_pcr(PcrIndex::BOOT_MANAGER, [image.expected.pcrs[0].value]).unwrap();
    desired.set_images([image]);
    for number in machines {
        register(&desired, number);
    }
    desired
}

fn register(desired: &Desired, number: u64) {
    let (ak, machine) = (sample::public_key(number), sample::machine_id(number));
    desired.bind_key(&ak, &machine).unwrap();
    let secret = format!(r#"{{"key_type":"oct","key":"{number:032}"}}"#);
    desired.put_secret(sample::secret_path(number), SecretBytes::new(secret.into_bytes()));
}

/// Everything in one text.
fn shown(form: &Form) -> String {
    let mut text = String::new();
    for (name, data) in &form.config_maps {
        for (key, value) in data {
            let value = String::from_utf8_lossy(value);
            let _ = writeln!(text, "# ConfigMap {name}, {key}\n{}\n", value.trim_end());
        }
    }
    for (name, data) in &form.secrets {
        for (key, value) in data {
            let value = String::from_utf8_lossy(value.expose("a golden file of made-up keys"));
            let _ = writeln!(text, "# Secret {name}, {key}\n{}\n", value.trim_end());
        }
    }
    let pod = serde_json::to_string_pretty(&form.pod.to_json()).unwrap();
    let _ = writeln!(text, "# Pod\n{pod}");
    text
}

/// Compares with the golden file of this name; rewrites it if `TEC_BLESS` is set.
fn is_golden(name: &str, form: &Form) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/publish/mounted/golden");
    let file = format!("{folder}/{name}.txt");
    if std::env::var_os("TEC_BLESS").is_some() {
        fs::write(&file, shown(form)).unwrap();
    }
    assert_eq!(shown(form), fs::read_to_string(&file).unwrap(), "{file}");
}

#[test]
fn the_form_is_that_of_its_golden_file() {
    let layout = layout();
    let form = render(&desired([1, 2]), &layout).unwrap();
    is_golden("v0_21", &form);
    // The same state, reached in a different order, gives the same bytes.
    let again = render(&desired([2, 1]), &layout).unwrap();
    assert_eq!(shown(&again), shown(&form));
    let ids = form.config_maps["attestation-policy"].keys();
    let ids = ids.map(|file| file.trim_end_matches(".rego").to_owned()).collect();
    assert_eq!(lint(&layout.config, Some(&ids)).unwrap(), []);
}

/// The records by name.
fn records(form: &Form) -> BTreeMap<String, serde_json::Value> {
    let objects = form.config_maps.iter().filter(|(name, _)| name.starts_with("reference-values-"));
    let records = objects.flat_map(|(_, data)| data);
    records.map(|(name, text)| (name.clone(), serde_json::from_slice(text).unwrap())).collect()
}

#[test]
fn reference_values_are_records_with_an_exact_time() {
    let form = render(&desired([1]), &layout()).unwrap();
    let found = records(&form);
    assert!(found.contains_key("tpm_pcr4") && found.contains_key("trusted_aks"));
    for (name, record) in &found {
        assert_eq!(record["name"], name.as_str());
        assert_eq!(record["version"], "0.1.0");
        assert_eq!(record["expiration"], "2026-01-01T00:00:00Z");
    }
    // No image is left: the register is emptied, not omitted.
    let none = desired([]);
    none.set_pcr(PcrIndex::BOOT_MANAGER, []).unwrap();
    let form = render(&none, &layout()).unwrap();
    assert_eq!(records(&form)["tpm_pcr4"]["value"], json!([]));
    let far = Layout::new("").expiration.to_string();
    assert_eq!(far, "9999-12-31T23:59:59Z");
}

#[test]
fn what_does_not_fit_is_refused_with_a_name_and_a_size() {
    let large = desired([]);
    large.set_reference("large", "x".repeat(1_100_000).into()).unwrap();
    let refused = render(&large, &layout());
    assert!(matches!(
        refused,
        Err(RenderError::TooLarge { object, bytes, max: 1_048_576 })
            if object.starts_with("reference-values-") && bytes > 1_100_000
    ));
    let other = desired([]);
    other.put_secret("default/db/password".parse().unwrap(), sample::secret(1));
    let refused = render(&other, &layout());
    assert!(
        matches!(refused, Err(RenderError::Path(path)) if path.as_str() == "default/db/password")
    );
}

/// A cluster in memory.
#[derive(Debug, Default)]
struct Cluster(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pod: Option<Pod>,
    patches: usize,
    restarts: usize,
    /// Calls of `apply` that are interrupted after the ConfigMaps.
    breaks: usize,
}

fn take<T>(
    there: &mut BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    objects: &BTreeMap<String, Object<T>>,
    bytes: impl Fn(&T) -> Vec<u8>,
) {
    for (name, object) in objects {
        match object {
            Object::Delete => drop(there.remove(name)),
            Object::Merge(keys) => {
                let data = there.entry(name.clone()).or_default();
                for (key, change) in keys {
                    match change {
                        Change::Set(value) => drop(data.insert(key.clone(), bytes(value))),
                        Change::Remove => drop(data.remove(key)),
                    }
                }
            }
        }
    }
}

#[async_trait]
impl MountedTarget for Cluster {
    async fn observe(&self) -> Result<Observed, PortError> {
        let held = self.0.lock().unwrap();
        let digests = |objects: &BTreeMap<String, BTreeMap<String, Vec<u8>>>| {
            let data = |data: &BTreeMap<String, Vec<u8>>| {
                data.iter().map(|(key, value)| (key.clone(), Sha256Digest::of(value))).collect()
            };
            objects.iter().map(|(name, object)| (name.clone(), data(object))).collect()
        };
        Ok(Observed {
            config_maps: digests(&held.config_maps),
            secrets: digests(&held.secrets),
            restart_digest: held.pod.as_ref().map(|pod| pod.restart_digest),
        })
    }

    async fn apply(&self, patch: &Patch) -> Result<(), PortError> {
        let mut held = self.0.lock().unwrap();
        held.patches += 1;
        take(&mut held.config_maps, &patch.config_maps, Clone::clone);
        if held.breaks > 0 {
            held.breaks -= 1;
            return Err(PortError::new(PortErrorKind::Unavailable, "apply"));
        }
        take(&mut held.secrets, &patch.secrets, |secret| {
            secret.expose("the cluster keeps it").to_vec()
        });
        if let Some(pod) = &patch.pod {
            held.pod = Some(pod.clone());
            held.restarts += 1;
        }
        Ok(())
    }
}

impl Cluster {
    /// Patches and new pods since the last call.
    fn counts(&self) -> (usize, usize) {
        let mut held = self.0.lock().unwrap();
        (std::mem::take(&mut held.patches), std::mem::take(&mut held.restarts))
    }

    fn holds(&self, desired: &Desired, layout: &Layout) -> bool {
        let form = render(desired, layout).unwrap();
        let held = self.0.lock().unwrap();
        let secrets = form.secrets.iter().map(|(name, data)| {
            let bytes = |value: &SecretBytes| value.expose("a test compares it").to_vec();
            let data = data.iter().map(|(key, value)| (key.clone(), bytes(value)));
            (name.clone(), data.collect())
        });
        held.config_maps == form.config_maps
            && held.secrets == secrets.collect()
            && held.pod.as_ref() == Some(&form.pod)
    }
}

struct World {
    cluster: Arc<Cluster>,
    clock: Arc<ManualClock>,
    layout: Layout,
    publisher: MountedPublisher,
}

impl World {
    fn new(layout: Layout) -> Self {
        let cluster = Arc::new(Cluster::default());
        let clock = Arc::new(ManualClock::new(sample::time(0)));
        let publisher = MountedPublisher::new(
            Arc::clone(&cluster) as _,
            layout.clone(),
            Arc::clone(&clock) as _,
        );
        Self { cluster, clock, layout, publisher }
    }

    /// Waits as long as requested.
    async fn settle(&self, desired: &Desired) {
        self.rounds(desired).await;
        assert!(self.cluster.holds(desired, &self.layout));
    }

    async fn rounds(&self, desired: &Desired) {
        for _ in 0..5 {
            match self.publisher.publish(desired).await {
                Ok(Progress::Waiting { until }) => self.clock.set(until),
                Ok(_) => break,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    }
}

#[tokio::test]
async fn one_patch_and_one_pod_cover_any_number_of_machines() {
    let world = World::new(layout());
    let wanted = desired([1]);
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (1, 1));
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (0, 0));
    for number in 2..40 {
        register(&wanted, number);
        let told = world.publisher.publish(&wanted).await.unwrap();
        assert!(matches!(told, Progress::Waiting { .. }));
    }
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (1, 1));
    wanted.remove_secret(&sample::secret_path(1));
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (1, 1));
}

#[tokio::test]
async fn a_new_pod_is_needed_for_volumes_and_configuration_only() {
    let layout = layout();
    let world = World::new(layout.clone());
    let wanted = desired([1]);
    world.settle(&wanted).await;
    world.cluster.counts();
    wanted.set_policies("package policy\n# other", "package policy\n");
    wanted.set_pcr(PcrIndex::BOOT_MANAGER, []).unwrap();
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (1, 0), "policies and values are read anew");
    register(&wanted, 2);
    world.settle(&wanted).await;
    assert_eq!(world.cluster.counts(), (1, 1));

    let mut other = layout;
    other.config.push_str("\n# changed\n");
    let before = render(&wanted, &world.layout).unwrap().pod.restart_digest;
    assert_ne!(render(&wanted, &other).unwrap().pod.restart_digest, before);
}

#[tokio::test]
async fn a_patch_that_breaks_off_and_a_cluster_that_somebody_changed_are_mended() {
    let world = World::new(layout());
    let wanted = desired([1, 2, 3]);
    world.cluster.0.lock().unwrap().breaks = 2;
    world.settle(&wanted).await;
    {
        let mut held = world.cluster.0.lock().unwrap();
        held.secrets.clear();
        held.config_maps.get_mut("trustee-data").unwrap().clear();
        let old = BTreeMap::from([("root".to_owned(), b"old".to_vec())]);
        held.secrets.insert(sample::machine_id(9).to_string(), old);
    }
    world.settle(&wanted).await;
    // A state that cannot be rendered changes nothing.
    let bad = desired([]);
    bad.put_secret("default/db/password".parse().unwrap(), sample::secret(1));
    world.clock.advance_seconds(100);
    let Ok(Progress::Waiting { until }) = world.publisher.publish(&bad).await else {
        panic!("changes are gathered first");
    };
    world.clock.set(until);
    let error = world.publisher.publish(&bad).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    assert!(world.cluster.holds(&wanted, &world.layout));
    assert!(world.clock.now() >= until);
}

#[tokio::test]
async fn a_disk_key_that_is_only_kept_stays_where_it_is() {
    let world = World::new(layout());
    world.settle(&desired([1, 2])).await;
    let before = world.cluster.0.lock().unwrap().secrets.clone();
    let wanted = desired([1]);
    wanted.keep_secret(sample::secret_path(2));
    world.rounds(&wanted).await;
    assert_eq!(world.cluster.0.lock().unwrap().secrets, before);
    wanted.remove_secret(&sample::secret_path(2));
    world.settle(&wanted).await;
    assert!(world.cluster.holds(&wanted, &world.layout));
}
