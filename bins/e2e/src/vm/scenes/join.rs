//! A second machine joins a bootstrapped cluster, and loses power until it is a member.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tec_support::testing::free_port;
use tokio::runtime::Runtime;

use super::bootstrap::{PORTS, key_of};
use super::console::{MADE, MEMBER, SERVED, UP, boot_until};
use super::power::Phase;
use crate::admin::{Admin, VERSION};
use crate::kube::{Bench, open, plain_cluster};
use crate::vm::cloud::Cloud;
use crate::vm::image::Image;
use crate::vm::stage::{HOST, Stage};

/// Port of the join service on a control plane.
const TICKETS: u16 = 30090;

/// The API server of the cluster, on this host.
struct Cluster {
    bench: Bench,
    runtime: Runtime,
}

/// How a worker reaches the control plane.
struct Way {
    port: u16,
    key: String,
}

impl Stage {
    /// A control plane with a join service, a worker, and workers that lose power.
    pub(in crate::vm) fn join(&mut self) -> anyhow::Result<()> {
        self.story.scene('k', "A second machine joins by attested TLS");
        let mut story = std::mem::take(&mut self.story);
        let cluster = story.works("an API server for the cluster", Cluster::start)?;
        let image = story.works("an image with systemd as process 1", || self.member_image())?;
        let admin = Admin::new(self.settings.bin_dir.join("tec"), &self.settings.artefacts)?;
        let [init, tickets] = [free_port()?, free_port()?];
        let forwards = [(init, PORTS[0]), (tickets, TICKETS)];
        let mut plane = self.member("plane", &image, &cluster.of_plane()?, &forwards)?;
        let (mut running, console, _) = story
            .works("the first machine makes its disk and serves Init", || {
                boot_until(&mut plane, &[SERVED])
            })?;
        let way = Way { port: tickets, key: key_of(&console)? };
        story.works("tec node init: it is the control plane, and serves tickets", || {
            admin.init(&format!("127.0.0.1:{init}"), &way.key)?;
            running.wait_for_console("tickets are served", Duration::from_mins(5))
        })?;
        let whole = story.works("a second machine makes its disk and joins", || {
            let mut worker = self.worker("worker", &image, &way)?;
            let (running, console, whole) = boot_until(&mut worker, &[UP, MEMBER])?;
            ensure!(console.contains(MADE), "the disk was not created: {console}");
            running.cut();
            let (running, console, _) = boot_until(&mut worker, &[MEMBER])?;
            ensure!(!console.contains(MADE), "the disk was created again: {console}");
            running.cut();
            Ok(whole)
        })?;
        let machine = |number| self.worker(&cut_worker(number), &image, &way);
        let phase = Phase { name: "join", end: MEMBER, whole, machine: &machine };
        self.cut_power(&mut story, &phase)?;
        story.works("the cluster has each of them as a member, once", || {
            let cut = (1..=self.settings.cuts).map(cut_worker);
            let expected =
                ["plane", "worker"].map(str::to_owned).into_iter().chain(cut).collect::<Vec<_>>();
            let members = cluster.members()?;
            ensure!(members == expected, "unexpected members: {members:?}");
            Ok(())
        })?;
        running.cut();
        self.story = story;
        Ok(())
    }

    fn worker(&self, name: &str, image: &Image, way: &Way) -> anyhow::Result<crate::vm::Node> {
        let cloud = Cloud::of_worker(name, HOST, way.port, &way.key);
        self.member(name, image, &cloud, &[])
    }
}

fn cut_worker(number: u32) -> String {
    format!("worker-cut-{number:02}")
}

impl Cluster {
    fn start() -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let bench = runtime.block_on(async {
            let bench = Bench::alone().await?;
            bench.create(&open(plain_cluster("cluster"))).await?;
            anyhow::Ok(bench)
        })?;
        Ok(Self { bench, runtime })
    }

    /// A control plane whose join service reaches this API server.
    fn of_plane(&self) -> anyhow::Result<Cloud> {
        let _entered = self.runtime.enter();
        let settings = format!(
            "api_server = '{HOST}:6443'\nnamespace = '{}'\n\
             components = '/etc/tec/components.json'\n\
             [nodes]\ndangerous_any_attestation_key = true\ndangerous_any_measurements = true\n",
            self.bench.namespace
        );
        let components = json!({"kubernetesVersion": VERSION, "components": []});
        let cloud = Cloud::of_plane()
            .with("join-service.toml", &settings)
            .with("components.json", &components.to_string())
            .with("kubeconfig", &self.kubeconfig()?.to_string());
        Ok(cloud.with_service("join-service.service"))
    }

    /// Names of the nodes admitted by the join service, sorted.
    fn members(&self) -> anyhow::Result<Vec<String>> {
        let _entered = self.runtime.enter();
        let members = self.bench.objects::<ConfigMap>()?;
        let claims = self.runtime.block_on(members.get("tec-members"))?.data.unwrap_or_default();
        let name = |claim: &String| {
            let claim: Value = serde_json::from_str(claim)?;
            Ok(claim["name"].as_str().context("a member has no name")?.to_owned())
        };
        let mut names = claims.values().map(name).collect::<anyhow::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// A machine's kubeconfig, with the address at which machines reach this host.
    fn kubeconfig(&self) -> anyhow::Result<Value> {
        let plane = &self.bench.plane;
        let mut config: Value = serde_json::from_slice(&fs::read(plane.admin_kubeconfig()?)?)?;
        let cluster = config.pointer_mut("/clusters/0/cluster").context("no cluster")?;
        *cluster = json!({
            "server": plane.url().replace("127.0.0.1", HOST),
            "tls-server-name": "localhost",
            "certificate-authority-data": STANDARD.encode(plane.authority()),
        });
        Ok(config)
    }
}
