//! Unlocks over loopback: of the embedded KBS against the unavoidable cryptography of an unlock; through the
//! guard against the same KBS without it; and a policy that is kept parsed against one that is parsed for
//! each request.

mod client;
mod crypto;
mod policy;
mod server;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tec_benches::{Suite, load};
use tec_e2e::settings::own_program;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use self::client::{Client, Node};
use self::crypto::Crypto;
use self::policy::policies;
use self::server::{Emulated, Machine, Server, Storage};

/// Nodes that unlock at the same time.
const NODES: u32 = 16;
/// An unlock as done by a node.
const UNLOCK: &str = "guard/unlock";

fn main() -> anyhow::Result<()> {
    // Fails only if a provider is installed already, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = load::runtime()?;
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    policies(&mut suite)?;
    for (name, storage) in
        [("kbs/unlocks", Storage::Memory), ("kbs/unlocks/stored", Storage::embedded()?)]
    {
        unlocks(&mut suite, &runtime, name, &storage)?;
    }
    if suite.wants(UNLOCK) || suite.wants("guard/unlocks") {
        guarded(&mut suite, &runtime)?;
    }
    suite.finish();
    Ok(())
}

/// The time for `times` unlocks, scaled from `NODES` times as many: each node does `times`, all concurrently,
/// each over its own connection.
fn storm(runtime: &Runtime, clients: &[Client], times: u64) -> Duration {
    let begin = Instant::now();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for client in clients {
            let client = client.clone();
            tasks.spawn(async move { client.unlock(times).await });
        }
        for done in tasks.join_all().await {
            assert!(done.is_ok(), "every unlock succeeds: {done:?}");
        }
    });
    begin.elapsed() / NODES
}

/// Processor time that all threads of this process have used: other programs do not count.
fn processor(work: impl FnOnce()) -> Duration {
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let begin = used();
    work();
    used().saturating_sub(begin)
}

/// Processor time of `times` unlocks of a storm.
fn processor_of_storm(runtime: &Runtime, clients: &[Client], times: u64) -> Duration {
    let all = processor(|| {
        storm(runtime, clients, times);
    });
    all / NODES
}

fn unlocks(
    suite: &mut Suite,
    runtime: &Runtime,
    name: &str,
    storage: &Storage,
) -> anyhow::Result<()> {
    let of_processor = format!("{name}/processor");
    if !suite.wants(name) && !suite.wants(&of_processor) {
        return Ok(());
    }
    let machine = Machine::new();
    let crypto = Crypto::new(&machine)?;
    let server = runtime.block_on(Server::start(&machine, storage))?;
    let clients = runtime.block_on(server.clients(server.kbs, NODES))?;
    suite.ratio_timed(
        name,
        |ratio| {
            format!(
                "auth, attest and resource over loopback, two cores / RSA verification, ECDH and \
                 signing alone, two cores; {:.0} unlocks per second, {:.0} % of the limit",
                ratio.ours_per_second(),
                100.0 / ratio.ratio
            )
        },
        |times| storm(runtime, &clients, times),
        |times| crypto.on_two_cores(times),
    )?;
    suite.ratio_timed(
        &of_processor,
        |_| "the same in processor time, the client's share of it included".to_owned(),
        |times| processor_of_storm(runtime, &clients, times),
        |times| {
            processor(|| {
                crypto.on_two_cores(times);
            })
        },
    )
}

fn guarded(suite: &mut Suite, runtime: &Runtime) -> anyhow::Result<()> {
    let machine = Machine::new();
    let storage = Storage::embedded()?;
    let server = runtime.block_on(Server::start(&machine, &storage))?;
    let emulated = Emulated::start()?;
    runtime.block_on(server.enroll(&emulated))?;
    guarded_node(suite, &server, &emulated)?;
    let direct = runtime.block_on(server.clients(server.kbs, NODES))?;
    let through = runtime.block_on(server.clients(server.guard, NODES))?;
    suite.ratio_timed(
        "guard/unlocks",
        |ratio| {
            format!(
                "the servers' part with {NODES} nodes at once, both on the same two cores; unlocks: \
                 {}",
                ratio.per_second()
            )
        },
        |times| storm(runtime, &through, times),
        |times| storm(runtime, &direct, times),
    )
}

/// One node, one unlock at a time.
fn guarded_node(suite: &mut Suite, server: &Server, machine: &Emulated) -> anyhow::Result<()> {
    // Without the program there is nothing to measure; `cargo xtask bench` builds it.
    if !suite.wants(UNLOCK) || own_program("node-agent").is_err() {
        return Ok(());
    }
    let direct = Node::new(&server.kbs_tls, machine)?;
    let through = Node::new(&server.guard_tls, machine)?;
    let repeat = |node: &Node<'_>, times| {
        let begin = Instant::now();
        for _ in 0..times {
            let passphrase = node.unlock();
            assert!(passphrase.is_ok(), "the node unlocks: {passphrase:?}");
        }
        begin.elapsed()
    };
    suite.ratio_timed(
        UNLOCK,
        |ratio| {
            let added = (ratio.ours_ns - ratio.baseline_ns) / 1e6;
            format!(
                "`node-agent decrypt` by TLS and with swtpm, through the guard / without it, which \
                 adds {added:.2} ms"
            )
        },
        |times| repeat(&through, times),
        |times| repeat(&direct, times),
    )
}
