//! A namespace whose operator follows a tag.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, AttestationKey, FollowedImage, FollowedImageStatus, Machine,
    TrustedExecutionCluster,
};
use tec_support::SystemClock;

pub(super) const TAG: &str = "registry.example/os:44";
/// More than the wait after any number of failures.
const LATER: i64 = 3700;

/// The image of a release, by digest.
pub(super) fn reference(release: u64) -> String {
    format!("registry.example/os@sha256:{}", format!("{release:02x}").repeat(32))
}

/// Name of the ApprovedImage of a release.
pub(super) fn name(release: u64) -> String {
    format!("os-{}", format!("{release:02x}").repeat(8))
}

/// The tag, with these fields in its spec.
pub(super) fn followed(spec: &Value) -> FollowedImage {
    let mut object = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "FollowedImage",
        "metadata": {"name": "os"}, "spec": {"reference": TAG},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

/// A cluster object whose images must be signed.
pub(super) fn signed() -> TrustedExecutionCluster {
    let mut object = cluster("cluster");
    let signatures = json!({"configMap": "image-signers"});
    object.spec.image_signatures = Some(serde_json::from_value(signatures).unwrap());
    object
}

pub(super) struct World {
    pub(super) bench: Bench,
}

impl World {
    /// A tag that is followed without signatures.
    pub(super) async fn new(spec: Value) -> Self {
        let mut spec = spec;
        spec["dangerouslyUnsigned"] = true.into();
        Self::of(&cluster("cluster"), &spec).await
    }

    /// A tag that is followed, in a cluster with this object.
    pub(super) async fn of(cluster: &TrustedExecutionCluster, spec: &Value) -> Self {
        let world = Self { bench: Bench::at_work_on(cluster).await.unwrap() };
        world.push(1);
        world.bench.create(&followed(spec)).await.unwrap();
        world
    }

    /// Lets the tag point to a release, whose label has its measurements.
    pub(super) fn push(&self, release: u64) {
        let expected = sample::image(release).expected;
        self.bench.labels.set(&reference(release), expected);
        self.bench.tags.set(TAG, &reference(release));
    }

    /// Time passes until the next look is due.
    pub(super) async fn look(&self) {
        self.bench.clock.advance(LATER);
        let now = self.bench.clock.now();
        let patch = json!({"metadata": {"annotations": {"touched": now}}});
        self.change(&patch).await;
    }

    /// Changes the tag's object.
    pub(super) async fn change(&self, patch: &Value) {
        let tags = self.bench.objects::<FollowedImage>().unwrap();
        tags.patch("os", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(super) async fn status(&self) -> FollowedImageStatus {
        let tags = self.bench.objects::<FollowedImage>().unwrap();
        tags.get("os").await.unwrap().status.unwrap_or_default()
    }

    /// Waits until a condition has this reason and its message this part; returns the message.
    pub(super) async fn says(&self, kind: &str, reason: &str, part: &str) -> String {
        let mut last = None;
        let came = eventually(&format!("{kind} is {reason}"), async || {
            let conditions = self.status().await.conditions;
            let said = conditions.into_iter().find(|c| c.type_ == kind);
            last = said.map(|said| (said.reason, said.message));
            let is_it =
                |(said, message): &(String, String)| said == reason && message.contains(part);
            Ok(last.as_ref().is_some_and(is_it))
        })
        .await;
        assert!(came.is_ok(), "{kind} is not {reason} with {part:?}: {last:?}");
        last.unwrap().1
    }

    /// Waits until exactly these releases may boot.
    pub(super) async fn may_boot(&self, releases: &[u64]) {
        let names: Vec<_> = releases.iter().map(|release| name(*release)).collect();
        self.images_may_boot(&names).await;
    }

    /// Waits until exactly these images may boot, sorted by name.
    pub(super) async fn images_may_boot(&self, names: &[String]) {
        let came =
            eventually("the images may boot", async || Ok(self.bench.trust.images() == names))
                .await;
        assert!(came.is_ok(), "{:?}, not {names:?}", self.bench.trust.images());
    }

    /// Moves the tag, and waits until the release is approved.
    pub(super) async fn release(&self, release: u64) {
        self.push(release);
        self.look().await;
        self.says("Following", "TagFollowed", &name(release)).await;
    }

    /// A machine with a bound key that last booted these images, if any.
    pub(super) async fn machine(&self, number: u64, images: Option<&str>) {
        let id = sample::machine_id(number);
        let known = Known::unclaimed(id, RegisteredBy::FirstBoot, SystemClock.now());
        self.bench.create(&Machine::from_core(&known)).await.unwrap();
        let key = AttestationKey::from_core(&sample::ak(number, number));
        self.bench.create(&key).await.unwrap();
        let machines = self.bench.objects::<Machine>().unwrap();
        eventually("the key is bound", async || {
            let status = machines.get(&Machine::name_of(&id)).await?.status;
            Ok(status.is_some_and(|status| status.attestation_key.is_some()))
        })
        .await
        .unwrap();
        if let Some(images) = images {
            self.booted(number, images).await;
        }
    }

    /// What the operator writes after a boot that the key broker reported.
    pub(super) async fn booted(&self, number: u64, images: &str) {
        let machines = self.bench.objects::<Machine>().unwrap();
        let name = Machine::name_of(&sample::machine_id(number));
        let status = json!({"status": {"image": images, "lastBoot": SystemClock.now()}});
        let params = PatchParams::default();
        machines.patch_status(&name, &params, &Patch::Merge(status)).await.unwrap();
    }

    /// An approval by an admin.
    pub(super) async fn approve(&self, name: &str, release: u64) {
        let mut spec = ApprovedImageSpec::default();
        spec.image = reference(release);
        self.bench.labels.set(&reference(release), sample::image(release).expected);
        self.bench.create(&ApprovedImage::new(name, spec)).await.unwrap();
    }

    pub(super) async fn image(&self, name: &str) -> Option<ApprovedImage> {
        self.bench.objects::<ApprovedImage>().unwrap().get_opt(name).await.unwrap()
    }

    /// Names of all ApprovedImages.
    pub(super) async fn images(&self) -> Vec<String> {
        let images = self.bench.objects::<ApprovedImage>().unwrap();
        let all = images.list(&kube::api::ListParams::default()).await.unwrap().items;
        all.iter().map(kube::ResourceExt::name_any).collect()
    }
}
