//! The cost of an event does not grow with the number of machines, and a restart writes to none.

use std::time::Duration;

use futures::StreamExt as _;
use kube::ResourceExt as _;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Broker, Link, Traffic, cluster, within};
use tec_k8s::api::{AttestationKey, Machine};
use tec_support::SystemClock;

const SMALL: u64 = 100;
const LARGE: u64 = 1000;
/// Number created concurrently.
const AT_ONCE: usize = 16;
const LONG: Duration = Duration::from_mins(4);

async fn create(bench: &Bench, numbers: std::ops::Range<u64>) {
    let machines = bench.objects::<Machine>().unwrap();
    let made = futures::stream::iter(numbers.clone()).map(async |number| {
        let (id, now) = (sample::machine_id(number), SystemClock.now());
        let machine = Machine::from_core(&Known::unclaimed(id, RegisteredBy::FirstBoot, now));
        machines.create(&kube::api::PostParams::default(), &machine).await.unwrap();
    });
    made.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    within(LONG, "all are published and say so", async || {
        let all = machines.list(&kube::api::ListParams::default()).await?;
        let done = |machine: &Machine| {
            machine.status.as_ref().is_some_and(|status| status.published_to == ["trustee"])
        };
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(all.items.iter().filter(|machine| done(machine)).count() as u64 == numbers.end)
    })
    .await
    .unwrap();
}

/// The cost of one more key, from its creation to its binding.
async fn one_key(bench: &Bench, link: &Link, number: u64) -> Traffic {
    link.take_traffic();
    let key = bench.create(&AttestationKey::from_core(&sample::ak(number, number))).await.unwrap();
    let machines = bench.objects::<Machine>().unwrap();
    let name = Machine::name_of(&sample::machine_id(number));
    within(LONG, "the key is bound and the machine says so", async || {
        let status = machines.get(&name).await?.status.unwrap_or_default();
        let is_ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        Ok(is_ready && status.attestation_key.is_some_and(|bound| bound.name == key.name_any()))
    })
    .await
    .unwrap();
    link.take_traffic()
}

/// The cheapest of three keys: a lease that is renewed, or a round over everything that runs now and then, may fall into
/// the time of one.
async fn cheapest_key(bench: &Bench, link: &Link, first: u64) -> Traffic {
    let mut cheapest = one_key(bench, link, first).await;
    for number in [first + 1, first + 2] {
        let next = one_key(bench, link, number).await;
        if next.total() < cheapest.total() {
            cheapest = next;
        }
    }
    cheapest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_costs_as_much_with_a_thousand_machines_as_with_a_hundred() {
    let mut bench = Bench::alone().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let link = Link::new(bench.client().unwrap()).await.unwrap();
    bench.start_over("one", link.client().unwrap()).unwrap();
    create(&bench, 0..SMALL).await;
    let few = link.take_traffic().total() / SMALL;
    let key_of_few = cheapest_key(&bench, &link, 1).await;
    create(&bench, SMALL..LARGE).await;
    let many = link.take_traffic().total() / (LARGE - SMALL);
    let key_of_many = cheapest_key(&bench, &link, 4).await;
    assert!(many <= few + 1, "{many} requests for each machine, {few} when they were few");
    for traffic in [&key_of_few, &key_of_many] {
        assert!(traffic.total() <= 24, "{traffic:?}");
        assert_eq!(traffic.requests.get("LIST machines"), None, "no list: {traffic:?}");
    }
    let (small, large) = (key_of_few.bytes, key_of_many.bytes);
    assert!(large < small * 2, "{large} bytes for a key, {small} when they were few");
    // A new operator reads all keys in a few requests, and writes none.
    bench.stop().await.unwrap();
    bench.trust.restart_operator();
    link.take_traffic();
    bench.start_over("two", link.client().unwrap()).unwrap();
    let last = sample::machine_id(LARGE - 1);
    within(LONG, "it is done", async || Ok(bench.trust.rounds() > 0 && bench.trust.knows(&last)))
        .await
        .unwrap();
    let traffic = link.take_traffic();
    assert_eq!(traffic.writes("secrets"), 0, "{traffic:?}");
    assert!(traffic.writes("machines/status") <= 2, "{traffic:?}");
    let reads = traffic.requests.get("GET secrets").copied().unwrap_or_default();
    assert!(reads < SMALL, "{traffic:?}");
    bench.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_writes_to_no_machine_that_trustees_know() {
    let bench = Bench::alone().await.unwrap();
    let broker = Broker::start(1).await.unwrap();
    bench.create(&broker.admin_secret()).await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let flags = ["--trustee-url", broker.url()];
    let mut operator = bench.start_program("one", &flags).unwrap();
    create(&bench, 0..SMALL / 10).await;
    let versions = async || {
        let names = (0..SMALL / 10).map(|number| Machine::name_of(&sample::machine_id(number)));
        let machines = bench.objects::<Machine>().unwrap();
        let machines = futures::stream::iter(names).then(|name| {
            let machines = machines.clone();
            async move { machines.get(&name).await.unwrap().resource_version() }
        });
        machines.collect::<Vec<_>>().await
    };
    let before = versions().await;
    operator.kill();
    let _again = bench.start_program("two", &flags).unwrap();
    create(&bench, SMALL / 10..SMALL / 10 + 1).await;
    assert_eq!(versions().await, before);
}
