//! The life of a node with pods: what a cluster runs, on a Kubernetes node.

use std::{fs, thread};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tec_core::id::MachineId;

use crate::pods::{BROKER, Charts, OPERATOR, Registry, SERVERS, charts_of_today, until};
use crate::story::Story;
use crate::vm::boot::Ended;
use crate::vm::image::Image;
use crate::vm::node::Node;
use crate::vm::stage::Stage;

/// Label with the measurements of booting an image (trusted-cluster-operator).
const LABEL: &str = "org.coreos.pcrs";

impl Stage {
    /// First boot, reboot, a different kernel, pods that die.
    pub(in crate::vm) fn cluster(&mut self) -> anyhow::Result<()> {
        self.story.scene('i', "A Kubernetes node with real pods");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        // In a separate thread, since a thread that enters the network of the node stays there.
        let played =
            thread::scope(|scope| scope.spawn(|| self.among_pods(&mut story, &image)).join());
        self.story = story;
        played.unwrap_or_else(|_| anyhow::bail!("the scene panicked"))
    }

    fn among_pods(&self, story: &mut Story, image: &Image) -> anyhow::Result<()> {
        let charts =
            story.works("a node, the charts with default values, every pod is ready", || {
                let charts = Charts::begin()?;
                charts.namespace()?;
                charts.charts("install", &charts_of_today())?;
                charts.cluster("Builtin")?;
                for name in [&[OPERATOR, BROKER][..], &SERVERS].concat() {
                    charts.available(name)?;
                }
                charts.expose()?;
                Ok(charts)
            })?;
        story.works("the image is in a registry of the cluster, and approved", || {
            let label: Value = serde_json::from_slice(&fs::read(self.label("current"))?)?;
            let labels = json!({ LABEL: label.to_string() });
            let reference = Registry::start(&charts)?.push(&charts, &labels, &[])?;
            charts.approve("current", &reference)
        })?;
        let config = self.settings.artefacts.join("pods.ign");
        fs::write(&config, charts.merge()?.to_string()).context("cannot write the config")?;
        let mut node = Node::new(&self.settings, "podded", image, &config)?;
        for (what, number) in [("first boot: the root runs", 1), ("reboot: so it does", 2)] {
            story.works(what, || opens(&mut node, number))?;
        }
        let swapped = self.image("cluster-swapped", |parts| parts.kernel = "update")?;
        node.install(&swapped)?;
        let report = story.works("another kernel: the disk stays closed", || refused(&mut node))?;
        story.shows("what a person sees", &report);
        let id = self.machine_of(&node)?;
        let why =
            story.works("kubectl tec explain names the kernel", || explained(&charts, &id))?;
        story.shows("what an admin reads", &why);
        node.install(image)?;
        story.works("every pod is killed: the next boot opens the disk", || {
            charts.kubectl(&["delete", "pods", "--all", "--wait=false", "--grace-period=1"])?;
            opens(&mut node, 3)
        })?;
        node.discard()
    }
}

fn opens(node: &mut Node, number: u32) -> anyhow::Result<()> {
    let boot = node.boot()?;
    ensure!(boot.opened()? == number, "the root is a different one");
    Ok(())
}

/// The three lines of a boot without a key.
fn refused(node: &mut Node) -> anyhow::Result<String> {
    let boot = node.boot()?;
    match boot.ended()? {
        Ended::Refused(code) => {
            ensure!(code.starts_with("TEC-A4"), "refused with {code:?}");
            Ok(boot.report())
        }
        other => bail!("the boot ended with {other:?}"),
    }
}

fn explained(charts: &Charts, id: &MachineId) -> anyhow::Result<String> {
    let ask = || charts.tec(&["explain", &id.to_string()]);
    until("the refusal is explained", std::time::Duration::from_mins(1), || {
        ask().is_ok_and(|said| said.contains("TEC-A412") && said.contains("vmlinuz"))
    })?;
    ask()
}
