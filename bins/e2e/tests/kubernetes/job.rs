//! The Job that computes measurements, on a real API server and with a real registry, with the permissions
//! that its package grants.

use std::path::Path;
use std::process::Output;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::reference::{BootImage as _, PcrComputer as _};
use tec_e2e::kube::{ControlPlane, program};
use tec_e2e::wire::provider;
use tec_k8s::api::ApprovedImage;
use tec_k8s::render::Component;
use tec_registry::testing::{Access, Content, RealRegistry, gzip, noise};
use tec_tpm::compute::testing::{debian_chain, layer};
use tec_tpm::compute::{ChainComputer, MemoryImage, SecureBoot};
use tec_tpm::output;

struct World {
    plane: ControlPlane,
    admin: Client,
    namespace: String,
    registry: RealRegistry,
}

impl World {
    async fn start() -> Self {
        let plane = ControlPlane::start().await.unwrap();
        plane.install_resources().await.unwrap();
        Self {
            admin: plane.admin().unwrap(),
            namespace: plane.namespace("images").await.unwrap(),
            registry: RealRegistry::start(Access::Everybody, &provider()).await.unwrap(),
            plane,
        }
    }

    fn images(&self) -> Api<ApprovedImage> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Pushes an image and approves it.
    async fn approve(&self, name: &str, content: &Content, digest: &str) {
        self.registry.push("team/os", content).await.unwrap();
        self.approve_reference(name, &format!("{}/team/os@{digest}", self.registry.host())).await;
    }

    async fn approve_reference(&self, name: &str, reference: &str) {
        let object = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "ApprovedImage",
            "metadata": { "name": name }, "spec": { "image": reference },
        });
        let object = serde_json::from_value(object).unwrap();
        self.images().create(&PostParams::default(), &object).await.unwrap();
    }

    /// Measures an object's image without any account, then writes the values with the Job's account.
    async fn job(&self, name: &str, flags: &[&str]) -> Output {
        let image = self.images().get(name).await.unwrap().spec.image;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("measurements");
        let mut measure = tokio::process::Command::new(program("compute-pcrs").unwrap());
        measure.args(["job", "--image", &image, "--to"]).arg(&file);
        let measured = measure.args(flags).env_remove("KUBECONFIG").output();
        let measured = measured.await.unwrap();
        if !measured.status.success() {
            return measured;
        }
        self.publish(name, &image, &file).await
    }

    async fn publish(&self, name: &str, image: &str, file: &Path) -> Output {
        let account = self.plane.component(Component::ComputePcrs, &self.namespace);
        let account = account.await.unwrap();
        let mut publish = tokio::process::Command::new(program("compute-pcrs").unwrap());
        publish.args(["publish", "--approved-image", name, "--image", image]);
        publish.args(["--namespace", &self.namespace, "--from"]);
        publish.arg(file).env("KUBECONFIG", account);
        publish.output().await.unwrap()
    }

    async fn status(&self, name: &str) -> Value {
        let image = self.images().get(name).await.unwrap();
        serde_json::to_value(image.status).unwrap()
    }
}

fn pcr4(pcrs: &Value) -> Option<&str> {
    let registers = pcrs.as_array()?.iter();
    let mut found = registers.filter(|register| register["id"] == 4);
    found.next()?["value"].as_str()
}

fn expected(image: &MemoryImage) -> ExpectedPcrs {
    ChainComputer::new(SecureBoot::On).compute(image).unwrap()
}

fn value(expected: &ExpectedPcrs) -> String {
    expected.pcr(PcrIndex::BOOT_MANAGER).unwrap().value.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn measurements_come_from_the_label_or_from_the_boot_files() {
    let world = World::start().await;
    let image = debian_chain("2.12");
    let paths = image.files("").unwrap();
    let library = noise(300_000);
    let mut files: Vec<(&str, &[u8])> = vec![("usr/lib/libhuge.so", &library)];
    files.extend(paths.iter().map(|path| (path.as_str(), image.content(path).unwrap())));
    let mut content = Content::default();
    let packed = layer::zstd_chunked(&files, 65_536).unwrap();
    let bare = content.image(&json!({}), &[("zstd", packed)]);
    // Its files tell nothing, so the label counts.
    let other = expected(&debian_chain("2.06"));
    let label = json!({ "org.coreos.pcrs": output::label(&other).unwrap() });
    let labeled = content.image(&label, &[gzip(&files[..1]).unwrap()]);
    world.approve("bare", &content, &bare).await;
    world.approve("labeled", &content, &labeled).await;
    let foreign = json!([{
        "type": "example.org/Scanned", "status": "True", "reason": "Clean", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let patch = Patch::Merge(json!({ "status": { "conditions": foreign } }));
    world.images().patch_status("bare", &PatchParams::default(), &patch).await.unwrap();

    let plain = ["--dangerous-plain-registry", world.registry.host()];
    for (name, expected) in [("bare", expected(&image)), ("labeled", other)] {
        let output = world.job(name, &plain).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let status = world.status(name).await;
        assert_eq!(pcr4(&status["pcrs"]), Some(value(&expected).as_str()), "{status}");
        assert!(status["firstSeen"].is_string());
    }
    // Status fields of other owners stay.
    let status = world.status("bare").await;
    assert_eq!(status["conditions"][0]["type"], "example.org/Scanned");

    // A mounted image needs no registry.
    let mounted = tempfile::tempdir().unwrap();
    for path in &paths {
        let file = mounted.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, image.content(path).unwrap()).unwrap();
    }
    let reference = format!("nowhere.invalid/os@{bare}");
    world.approve_reference("mounted", &reference).await;
    let output = world.job("mounted", &["--image-dir", mounted.path().to_str().unwrap()]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let status = world.status("mounted").await;
    assert_eq!(pcr4(&status["pcrs"]), Some(value(&expected(&image)).as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_fails_the_job_with_a_code_and_writes_nothing() {
    let world = World::start().await;
    let mut content = Content::default();
    let empty = content.image(&json!({}), &[gzip(&[("etc/motd", b"hello")]).unwrap()]);
    let broken = json!({ "org.coreos.pcrs": "{}" });
    let broken = content.image(&broken, &[]);
    world.approve("empty", &content, &empty).await;
    let label =
        json!({ "org.coreos.pcrs": output::label(&expected(&debian_chain("2.06"))).unwrap() });
    let image = debian_chain("2.12");
    let paths = image.files("").unwrap();
    let files: Vec<(&str, &[u8])> =
        paths.iter().map(|path| (path.as_str(), image.content(path).unwrap())).collect();
    let lying = content.image(&label, &[gzip(&files).unwrap()]);
    world.approve("broken", &content, &broken).await;
    world.approve("lying", &content, &lying).await;
    let absent = format!("{}/team/os@sha256:{}", world.registry.host(), "ab".repeat(32));
    world.approve_reference("absent", &absent).await;
    let nowhere = format!("127.0.0.1:1/os@sha256:{}", "ab".repeat(32));
    world.approve_reference("nowhere", &nowhere).await;
    let plain = ["--dangerous-plain-registry", world.registry.host()];
    for (name, code) in [
        ("empty", "TEC-I400"),
        ("broken", "TEC-I425"),
        ("lying", "TEC-I427"),
        ("absent", "TEC-I414"),
        ("nowhere", "TEC-I503"),
    ] {
        let output = world.job(name, &plain).await;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
        assert!(text.contains(code), "{name}: {text}");
        assert_eq!(world.status(name).await, Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn measurements_of_one_image_are_not_written_into_the_object_of_another() {
    let world = World::start().await;
    let [measured, other] = ["ab", "cd"].map(|byte| format!("os@sha256:{}", byte.repeat(32)));
    world.approve_reference("one", &other).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let values = expected(&debian_chain("2.12"));
    std::fs::write(file.path(), serde_json::to_vec(&values).unwrap()).unwrap();
    let output = world.publish("one", &measured, file.path()).await;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("was replaced in the meantime"), "{text}");
    assert_eq!(world.status("one").await, Value::Null);
    let output = world.publish("one", &other, file.path()).await;
    assert!(output.status.success());
    assert!(pcr4(&world.status("one").await["pcrs"]).is_some());
}
