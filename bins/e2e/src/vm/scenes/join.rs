//! A second machine joins a cluster that is bootstrapped, and loses its power until it is a member.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_support::testing::free_port;
use tokio::runtime::Runtime;

use super::bootstrap::{BEGUN, MADE, MEMBER, PORTS, SERVED, boot_until, key_of};
use crate::admin::{Admin, VERSION};
use crate::kube::{Bench, open, plain_cluster};
use crate::vm::cloud::Cloud;
use crate::vm::image::Image;
use crate::vm::stage::{HOST, Stage};
use crate::vm::table;

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
    /// A control plane with a join service, a worker, and workers that lose their power.
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
        story.works("tec init: it is the control plane, and serves tickets", || {
            admin.init(&format!("127.0.0.1:{init}"), &way.key)?;
            running.wait_for_console("tickets are served", Duration::from_mins(5))
        })?;
        let whole = story.works("a second machine makes its disk and joins", || {
            let mut worker = self.worker("worker", &image, &way)?;
            let (running, console, whole) = boot_until(&mut worker, &[BEGUN, MEMBER])?;
            ensure!(console.contains(MADE), "the disk was not made: {console}");
            running.cut();
            let (running, console, _) = boot_until(&mut worker, &[MEMBER])?;
            ensure!(!console.contains(MADE), "the disk was made again: {console}");
            running.cut();
            Ok(whole)
        })?;
        let rows = (1..=self.settings.cuts)
            .map(|number| {
                let what = format!("power cut {number}: a member without hands");
                story.works(&what, || self.cut_worker(&image, &way, number, whole))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        if !rows.is_empty() {
            let heads = ["machine", "cut after", "disk", "next boot"];
            story.shows(
                "power cuts between the first write and the end of the join",
                &table::render(&heads, &rows),
            );
        }
        running.cut();
        self.story = story;
        Ok(())
    }

    fn worker(&self, name: &str, image: &Image, way: &Way) -> anyhow::Result<crate::vm::Node> {
        let cloud = Cloud::of_worker(name, HOST, way.port, &way.key);
        self.member(name, image, &cloud, &[])
    }

    /// A worker that loses its power at a random moment between the first write to its disk and the
    /// end of its join.
    fn cut_worker(
        &self,
        image: &Image,
        way: &Way,
        number: u32,
        whole: Duration,
    ) -> anyhow::Result<Vec<String>> {
        let name = format!("worker-cut-{number}");
        let mut worker = self.worker(&name, image, way)?;
        let moment = self.moment(number, whole);
        let (mut running, _) = worker.power_on()?;
        running.wait_for_console(BEGUN, Duration::from_mins(10))?;
        #[expect(clippy::disallowed_methods, reason = "the moment is what is tested")]
        std::thread::sleep(moment);
        running.cut();
        let before = match self.state_disk(&worker) {
            Ok(dump) if dump.contains("tec-unclaimed") => "nobody's",
            Ok(dump) if dump.contains("tec-state") => "the cluster's",
            Ok(dump) => anyhow::bail!("{name} has a disk that says: {dump}"),
            Err(_) => "blank",
        };
        let (running, console, _) = boot_until(&mut worker, &[MEMBER])?;
        running.cut();
        let after = if console.contains(MADE) { "makes it" } else { "opens it" };
        worker.discard()?;
        let moment = format!("{:.1} s", moment.as_secs_f64());
        Ok(vec![name, moment, before.to_owned(), after.to_owned()])
    }
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

    /// As of a machine, which has another address for this host.
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
