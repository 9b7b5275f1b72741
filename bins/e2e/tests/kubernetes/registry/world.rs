//! The operator with a Trustee that it publishes to, and a kubelet that runs Jobs.

use std::ffi::{OsStr, OsString};
use std::process::Output;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodSpec, Secret};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::endpoint::Endpoint;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EntropyRng, KeyBroker as _};
use tec_e2e::kube::{Bench, Guarded, eventually, program};
use tec_e2e::packages::REGISTRY;
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, TrustedExecutionCluster};
use tec_k8s::render::{Component, REGISTRY_VARIABLE};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::client::Deadlines;
use tec_trustee::kbs::{AdminAuth, Kbs, KbsConfig, MemoryBackend};
use tec_trustee::publish::{AdminApi, AdminKey};
use tec_trustee::token::TokenSigner;
use tempfile::TempDir;

/// A key broker on loopback, named as a target in the cluster object.
async fn key_broker(admin: &AdminKey) -> String {
    let entropy = Arc::new(SystemEntropy);
    let config = KbsConfig::new(
        Arc::new(MemoryBackend::new()),
        Arc::new(TpmVerifier::new()),
        TokenSigner::random(&mut EntropyRng::new(&*entropy)),
        Arc::new(SystemClock),
        entropy,
    );
    let auth = AdminAuth::from_pem(&admin.public_pem()).unwrap();
    let router = Kbs::new(config.with_admin(auth)).router();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Stops with the runtime.
    tokio::runtime::Handle::current().spawn(async { axum::serve(listener, router).await });
    url
}

pub(crate) struct World {
    _operator: Guarded,
    pub(crate) bench: Bench,
    broker: AdminApi,
}

impl World {
    /// The operator, which reads these registries over plain HTTP, and a Trustee.
    pub(crate) async fn start(registries: &[&str], flags: &[&str]) -> Self {
        Self::with_settings(registries, flags, &json!({})).await
    }

    /// Like `start`, with these additional settings in the cluster object.
    pub(crate) async fn with_settings(
        registries: &[&str],
        flags: &[&str],
        settings: &Value,
    ) -> Self {
        let bench = Bench::new().await.unwrap();
        let admin = AdminKey::generate(&mut EntropyRng::new(&SystemEntropy));
        let url = key_broker(&admin).await;
        let private = admin.private_pem();
        let private = String::from_utf8(private.expose("the operator signs with it").to_vec());
        let secret: Secret = serde_json::from_value(json!({
            "metadata": { "name": "outside" }, "stringData": { "private.key": private.unwrap(), "url": url },
        }))
        .unwrap();
        bench.create(&secret).await.unwrap();
        let target = json!({ "name": "outside", "url": url, "adminKeySecret": "outside" });
        let mut cluster = json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "TrustedExecutionCluster",
            "metadata": { "name": "cluster" },
            "spec": { "dangerousPlainHttp": true, "publish": { "targets": [target] } },
        });
        let spec = cluster["spec"].as_object_mut().unwrap();
        spec.extend(settings.as_object().unwrap().clone());
        let cluster: TrustedExecutionCluster = serde_json::from_value(cluster).unwrap();
        bench.create(&cluster).await.unwrap();
        let broker = AdminApi::new(
            &Endpoint::new(url.parse().unwrap(), ""),
            admin,
            Arc::new(SystemClock),
            Deadlines::default(),
            &Arc::new(rustls::crypto::ring::default_provider()),
        )
        .unwrap();
        Self { _operator: operator(&bench, registries, flags), bench, broker }
    }

    pub(crate) async fn approve(&self, name: &str, reference: &str) {
        let mut spec = ApprovedImageSpec::default();
        spec.image = reference.to_owned();
        let image = ApprovedImage::new(name, spec);
        self.bench.create(&image).await.unwrap();
    }

    /// The values of the boot manager's register with which a boot gets keys.
    pub(crate) async fn values(&self) -> Vec<String> {
        let value = self.broker.reference_value("tpm_pcr4").await.unwrap();
        serde_json::from_value(value.unwrap_or_else(|| json!([]))).unwrap()
    }

    pub(crate) async fn releases(&self, expected: &ExpectedPcrs) {
        let boot = expected.pcr(PcrIndex::BOOT_MANAGER).unwrap();
        let wanted = [boot.value.to_string()];
        eventually("the image's values count", async || Ok(self.values().await == wanted))
            .await
            .unwrap();
    }

    /// Waits until the image's condition has this reason and contains all of these words.
    pub(crate) async fn says(&self, name: &str, reason: &str, words: &[&str]) {
        let images = self.bench.objects::<ApprovedImage>().unwrap();
        eventually(&format!("{name} is {reason}: {words:?}"), async || {
            let status = images.get(name).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter();
            let found = conditions.find(|condition| condition.type_ == "Committed");
            Ok(found.is_some_and(|condition| {
                condition.reason == reason
                    && words.iter().all(|word| condition.message.contains(word))
            }))
        })
        .await
        .unwrap();
    }

    pub(crate) async fn jobs(&self) -> Vec<Job> {
        let jobs = self.bench.objects::<Job>().unwrap();
        let ours = ListParams::default().labels("kind=compute-pcrs");
        jobs.list(&ours).await.unwrap().items
    }

    pub(crate) async fn job(&self) -> Job {
        eventually("there is a Job", async || Ok(!self.jobs().await.is_empty())).await.unwrap();
        self.jobs().await.remove(0)
    }

    /// Runs the containers of a Job one after another, as long as they succeed.
    pub(crate) async fn run(&self, job: &Job) -> Output {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("measurements").into_os_string();
        let account = self.bench.plane.component(Component::ComputePcrs, &self.bench.namespace);
        let account = account.await.unwrap();
        let pod = pod_of(job);
        let signers = self.config_map(&pod, "image-signers").await;
        let mut output = None;
        let reader = pod.init_containers.into_iter().flatten();
        for container in reader.chain(pod.containers) {
            let arguments = container.args.into_iter().flatten();
            let arguments = arguments.map(|argument| match argument.as_str() {
                "/etc/image-signers" => signers.path().as_os_str().to_owned(),
                "/tmp/measurements.json" => file.clone(),
                _ => OsString::from(argument),
            });
            let mut command = tokio::process::Command::new(program("compute-pcrs").unwrap());
            command.args(arguments).env_remove("KUBECONFIG");
            let mounts = container.volume_mounts.iter().flatten();
            if mounts.into_iter().any(|mount| mount.name == "api-token") {
                command.env("KUBECONFIG", &account);
            }
            // In a pod, the namespace is that of the service account.
            command.env("POD_NAMESPACE", &self.bench.namespace);
            let done = command.output().await.unwrap();
            let is_end = !done.status.success();
            output = Some(done);
            if is_end {
                break;
            }
        }
        output.unwrap()
    }

    /// A directory with the ConfigMap of this volume, if there is one, as the kubelet mounts it.
    async fn config_map(&self, pod: &PodSpec, volume: &str) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let mut volumes = pod.volumes.iter().flatten().filter(|one| one.name == volume);
        if let Some(source) = volumes.next().and_then(|volume| volume.config_map.as_ref()) {
            let maps = self.bench.objects::<ConfigMap>().unwrap();
            let data = maps.get(&source.name).await.unwrap().data.unwrap();
            std::fs::create_dir(directory.path().join("..data")).unwrap();
            for (name, text) in data {
                std::fs::write(directory.path().join(name), text).unwrap();
            }
        }
        directory
    }

    /// Reports, like the kubelet and the Job controller, that a Job failed permanently.
    pub(crate) async fn report_failure(&self, job: &Job, last_words: &str) {
        let mut template = job.spec.clone().unwrap().template;
        let labels = template.metadata.get_or_insert_default();
        let labels = labels.labels.get_or_insert_default();
        labels.insert("batch.kubernetes.io/job-name".to_owned(), job.name_any());
        let mut pod =
            Pod { metadata: template.metadata.unwrap(), spec: template.spec, status: None };
        pod.metadata.name = Some(format!("{}-1", job.name_any()));
        let pod = self.bench.create(&pod).await.unwrap();
        let ended = json!({ "status": { "phase": "Failed", "initContainerStatuses": [{
            "name": "measure", "image": "any", "imageID": "", "ready": false,
            "restartCount": 0,
            "state": { "terminated": { "exitCode": 1, "message": last_words } },
        }] } });
        let params = PatchParams::default();
        let pods = self.bench.objects::<Pod>().unwrap();
        pods.patch_status(&pod.name_any(), &params, &Patch::Merge(ended)).await.unwrap();
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit" })
        };
        let failed = json!({ "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [condition("FailureTarget"), condition("Failed")],
        } });
        let jobs = self.bench.objects::<Job>().unwrap();
        jobs.patch_status(&job.name_any(), &params, &Patch::Merge(failed)).await.unwrap();
    }
}

fn operator(bench: &Bench, registries: &[&str], flags: &[&str]) -> Guarded {
    let kubeconfig = bench.kubeconfig("one").unwrap();
    let environment = [
        ("KUBECONFIG", kubeconfig.as_os_str()),
        ("POD_NAMESPACE", OsStr::new(&bench.namespace)),
        ("POD_NAME", OsStr::new("one")),
        (REGISTRY_VARIABLE, OsStr::new(REGISTRY)),
    ];
    let mut arguments = vec!["--metrics-addr", "127.0.0.1:0"];
    for host in registries {
        arguments.extend(["--dangerous-plain-registry", host]);
    }
    arguments.extend(flags);
    let (program, logs) = (program("operator").unwrap(), bench.plane.logs());
    Guarded::start("operator", &program, arguments, &environment, logs).unwrap()
}

fn pod_of(job: &Job) -> PodSpec {
    job.spec.clone().unwrap().template.spec.unwrap()
}
