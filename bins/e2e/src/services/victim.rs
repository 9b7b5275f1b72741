//! The victims in a table of kills: how each is killed, like in a power failure, and when it is back.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::pods::{APPS, PLATFORM, Platform, watch};

const SOON: Duration = Duration::from_mins(4);

/// What is killed: the pods with a name or a label, or one container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) name: &'static str,
    namespace: &'static str,
    /// Label of the pods that must be ready again.
    app: &'static str,
    /// One of these pods, and one of its containers; all of them if absent.
    pod: Option<&'static str>,
    container: Option<&'static str>,
}

/// All victims, in the order of the table.
pub(super) const VICTIMS: [Victim; 10] = [
    Victim::pod("vault", "vault-0"),
    Victim::pod("vault", "vault-1"),
    Victim::pod("vault", "vault-2"),
    Victim { name: "controller", container: Some("controller"), ..Victim::pod("vault", "vault-0") },
    Victim::pod("nats", "nats-0"),
    Victim::pod("nats", "nats-1"),
    Victim::pod("nats", "nats-2"),
    Victim { name: "component and broker", namespace: APPS, ..Victim::all("speaker") },
    Victim::all("collector"),
    Victim::pod("opensearch", "opensearch-0"),
];

/// A pod, according to its status.
#[derive(Debug)]
struct Pod {
    name: String,
    uid: String,
    is_ready: bool,
    /// Name and ID of each running container.
    running: Vec<(String, String)>,
}

impl Victim {
    const fn pod(app: &'static str, pod: &'static str) -> Self {
        Self { name: pod, namespace: PLATFORM, app, pod: Some(pod), container: None }
    }

    const fn all(app: &'static str) -> Self {
        Self { name: app, namespace: PLATFORM, app, pod: None, container: None }
    }

    /// Whether it requires telemetry.
    pub(super) fn is_telemetry(&self) -> bool {
        matches!(self.app, "collector" | "opensearch")
    }

    /// How many of the requested kills are carried out: the kubelet doubles its wait before each restart of
    /// the same container.
    pub(super) fn times(&self, asked: u32) -> u32 {
        if self.container.is_some() { asked.min(4) } else { asked }
    }

    /// Kills it, and waits until as many pods are ready as before, not counting those killed.
    pub(super) fn kill(&self, platform: &Platform) -> anyhow::Result<()> {
        let before = self.pods(platform)?;
        let killed: Vec<_> =
            before.iter().filter(|pod| self.pod.is_none_or(|name| name == pod.name)).collect();
        anyhow::ensure!(!killed.is_empty(), "there is no such pod");
        let mut ids = BTreeSet::new();
        for pod in &killed {
            for (container, id) in &pod.running {
                if self.container.is_none_or(|name| name == container) {
                    platform.node().kill_container(id.trim_start_matches("containerd://"))?;
                    ids.insert(id.clone());
                }
            }
            if self.container.is_none() {
                // Not by force: a second pod of that name would use the same volume meanwhile.
                let delete = ["--namespace", self.namespace, "delete", "pod", &pod.name];
                platform.kubectl(&[&delete[..], &["--grace-period=1"]].concat())?;
            }
        }
        watch(&format!("{} is back", self.name), SOON, || {
            let now = self.pods(platform)?;
            let stays = |pod: &Pod| {
                let is_gone = self.container.is_some() || killed.iter().all(|k| k.uid != pod.uid);
                pod.is_ready && is_gone && pod.running.iter().all(|(_, id)| !ids.contains(id))
            };
            anyhow::ensure!(now.len() == before.len() && now.iter().all(stays), "{now:?}");
            Ok(())
        })
    }

    fn pods(&self, platform: &Platform) -> anyhow::Result<Vec<Pod>> {
        let label = format!("--selector=app={}", self.app);
        let get = ["--namespace", self.namespace, "get", "pods", &label, "--output=json"];
        let list: Value = serde_json::from_str(&platform.kubectl(&get)?)?;
        let items = list["items"].as_array().context("the answer is not a list of pods")?;
        // A pod that is told to end still has its containers.
        let lives = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        Ok(items.iter().filter(lives).map(Pod::of).collect())
    }
}

impl Pod {
    fn of(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        let conditions = status["conditions"].as_array();
        let is_ready = conditions.into_iter().flatten();
        let containers = ["initContainerStatuses", "containerStatuses"]
            .into_iter()
            .filter_map(|list| status[list].as_array())
            .flatten();
        Self {
            name: text(&pod["metadata"]["name"]),
            uid: text(&pod["metadata"]["uid"]),
            is_ready: is_ready
                .filter(|one| one["type"] == "Ready")
                .any(|one| one["status"] == "True"),
            running: containers
                .filter(|one| one["state"]["running"].is_object())
                .map(|one| (text(&one["name"]), text(&one["containerID"])))
                .collect(),
        }
    }
}
