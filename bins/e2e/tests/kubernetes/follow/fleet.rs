//! A fleet that updates itself from release to release, with the built-in key broker.

use std::ops::Range;

use futures::StreamExt as _;
use kube::api::ListParams;
use serde_json::json;
use tec_core::code::Code;
use tec_core::testing::sample;
use tec_e2e::kube::{eventually, within};
use tec_k8s::api::Machine;
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_tpm::testing::SoftTpm;

use super::world;
use super::world::{TAG, followed, name, reference};
use crate::builtin::{KERNEL, World, boot, builtin, expected};
use crate::guard::bind;
use crate::migrate::nodes;

/// How many nodes boot at the same time.
const AT_ONCE: usize = 8;
const LONG: std::time::Duration = std::time::Duration::from_mins(4);

/// Machines with their TPMs; the first one is number 1.
struct Fleet {
    world: world::World,
    nodes: Vec<SoftTpm>,
    url: String,
}

fn kernel(release: u64) -> Vec<u8> {
    format!("kernel {release}").into_bytes()
}

impl Fleet {
    fn push(&self, release: u64) {
        let bench = &self.world.bench;
        bench.labels.set(&reference(release), expected(&kernel(release)));
        bench.tags.set(TAG, &reference(release));
    }

    /// Boots a machine as a node does; returns why it got no key.
    async fn boot(&self, number: usize, kernel: &[u8]) -> Option<Code> {
        let tpm = &self.nodes[number - 1];
        boot(tpm, kernel);
        let machine = sample::machine_id(u64::try_from(number).unwrap());
        let fetched = crate::fetch::fetch(&self.url, &machine, tpm).await;
        fetched.err().map(|error| error.code())
    }

    /// Boots these machines until each gets its key: the broker learns of an approval by its watch.
    async fn all_boot(&self, numbers: Range<usize>, kernel: &[u8]) {
        let boots = futures::stream::iter(numbers).map(async |number| {
            let mut last = None;
            let booted = within(LONG, "the machine boots", async || {
                last = self.boot(number, kernel).await;
                Ok(last.is_none())
            });
            assert!(booted.await.is_ok(), "machine {number}: {last:?}");
        });
        boots.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    }

    /// Waits until so many machines last booted the release.
    async fn are_on(&self, release: u64, count: usize) {
        let machines = self.world.bench.objects::<Machine>().unwrap();
        within(LONG, &format!("{count} are on release {release}"), async || {
            let all = machines.list(&ListParams::default()).await?.items;
            let on = all.into_iter().filter_map(|machine| machine.status?.image);
            Ok(on.filter(|image| *image == name(release)).count() == count)
        })
        .await
        .unwrap();
    }

    /// Waits until a release no longer boots.
    async fn is_refused(&self, number: usize, release: u64) {
        eventually(&format!("release {release} is refused"), async || {
            Ok(self.boot(number, &kernel(release)).await == Some(Code::PcrMismatch))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_follows_a_tag_through_three_releases() {
    let count = usize::try_from(nodes()).unwrap();
    let nodes: Vec<_> = (1..=count).map(|seed| SoftTpm::p256(seed as u64)).collect();
    boot(&nodes[0], KERNEL);
    let broker = World::of(&builtin(), &nodes[0], 1).await;
    let url = broker.url();
    let (bench, _broker) = broker.into_bench();
    let clock = std::sync::Arc::new(SystemClock);
    let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock);
    let others = (1..).zip(&nodes).skip(1);
    let bound = futures::stream::iter(others).map(async |(number, tpm)| {
        bind(&registry, sample::machine_id(number), tpm.public_key()).await;
    });
    bound.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let mut fleet = Fleet { world: world::World { bench }, nodes, url };
    fleet.push(1);
    let spec = json!({"keep": 0, "dangerouslyUnsigned": true});
    fleet.world.bench.create(&followed(&spec)).await.unwrap();
    fleet.all_boot(1..count + 1, &kernel(1)).await;
    fleet.are_on(1, count).await;
    println!("release 1: approved by its tag, {count} of {count} machines have their keys");

    for release in 2..=3 {
        fleet.push(release);
        fleet.world.look().await;
        fleet.world.says("Following", "TagFollowed", &name(release)).await;
        // All but one: the old release stays approved for the last one alone.
        fleet.all_boot(1..count, &kernel(release)).await;
        fleet.are_on(release, count - 1).await;
        println!("release {release}: approved by its tag, {} machines have their keys", count - 1);
        fleet.world.look().await;
        let last = sample::machine_id(u64::try_from(count).unwrap()).to_string();
        fleet.world.says("OldImagesRevoked", "MachinesNeedThem", &last).await;
        println!("release {}: still approved, since machine {last} runs it", release - 1);
        fleet.all_boot(count..count + 1, &kernel(release - 1)).await;
        fleet.all_boot(count..count + 1, &kernel(release)).await;
        fleet.are_on(release, count).await;
        fleet.world.look().await;
        fleet.is_refused(count, release - 1).await;
        println!("release {}: revoked, and refused to machine {last}", release - 1);
        fleet.all_boot(count..count + 1, &kernel(release)).await;
    }
    // What an admin approved still boots.
    fleet.all_boot(1..2, KERNEL).await;
    fleet.is_refused(1, 1).await;
    fleet.world.bench.stop().await.unwrap();
}
