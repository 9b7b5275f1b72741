//! Unlocks over loopback: of the embedded KBS against the cryptography that an unlock cannot do
//! without; through the guard against the same KBS without it; and a policy that is kept parsed
//! against one that is parsed for each request.

mod client;
mod crypto;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context as _;
use rustix::time::ClockId;
use rustix::time::clock_gettime;
use serde_json::Value;
use serde_json::json;
use tec_benches::Suite;
use tec_core::attest::PinnedPcrs;
use tec_core::attest::Tee;
use tec_core::pcr::PcrIndex;
use tec_trustee::policy::AttestationPolicy;
use tec_trustee::policy::Evaluation;
use tec_trustee::policy::PolicyError;
use tec_trustee::policy::PolicyIntent;
use tec_trustee::policy::ResourcePolicy;
use tec_trustee::policy::ak_reference_name;
use tec_trustee::policy::ak_reference_value;
use tec_trustee::policy::pcr_reference_name;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use self::client::Client;
use self::client::Node;
use self::crypto::Crypto;
use self::server::Machine;
use self::server::Server;
use self::server::Storage;

/// Nodes that unlock at the same time.
const NODES: u32 = 16;

fn main() -> anyhow::Result<()> {
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    policies(&mut suite)?;
    if suite.wants("kbs/unlocks") || suite.wants("kbs/unlocks/stored/processor") {
        unlocks(&mut suite, &runtime)?;
    }
    if suite.wants("guard/unlock") || suite.wants("guard/unlocks") {
        guarded(&mut suite, &runtime)?;
    }
    suite.finish();
    Ok(())
}

/// The time of `times` unlocks, of `NODES` times as many: that many by each node, all at once, each
/// over its own connection.
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

/// What the processor did in the meantime, by all threads: other programs do not count.
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

fn unlocks(suite: &mut Suite, runtime: &Runtime) -> anyhow::Result<()> {
    let machine = Machine::new();
    let crypto = Crypto::new(&machine)?;
    for (name, storage) in [
        ("kbs/unlocks", Storage::Memory),
        ("kbs/unlocks/stored", Storage::embedded()?),
    ] {
        let server = runtime.block_on(Server::start(&machine, &storage))?;
        let clients = runtime.block_on(server.clients(server.kbs, NODES))?;
        suite.ratio_timed(
            name,
            |ratio| {
                format!(
                    "auth, attest and resource over loopback, two cores / RSA verification, ECDH \
                     and signing alone, two cores; {:.0} unlocks per second, {:.0} % of the limit",
                    ratio.ours_per_second(),
                    100.0 / ratio.ratio
                )
            },
            |times| storm(runtime, &clients, times),
            |times| crypto.on_two_cores(times),
        )?;
        suite.ratio_timed(
            &format!("{name}/processor"),
            |_| "the same in processor time, the client's share of it included".to_owned(),
            |times| processor_of_storm(runtime, &clients, times),
            |times| {
                processor(|| {
                    crypto.on_two_cores(times);
                })
            },
        )?;
    }
    Ok(())
}

fn guarded(suite: &mut Suite, runtime: &Runtime) -> anyhow::Result<()> {
    let machine = Machine::new();
    let storage = Storage::embedded()?;
    let server = runtime.block_on(Server::start(&machine, &storage))?;
    let direct = Node::new(server.kbs, &machine)?;
    let through = Node::new(server.guard, &machine)?;
    let repeat = |node: &Node<'_>, times| {
        let begin = Instant::now();
        for _ in 0..times {
            let key = runtime.block_on(node.unlock());
            assert!(key.is_ok(), "the node unlocks: {key:?}");
        }
        begin.elapsed()
    };
    suite.ratio_timed(
        "guard/unlock",
        |_| {
            "a node's unlock through the guard / without it; the TPM is software, one unlock at a \
             time"
                .to_owned()
        },
        |times| repeat(&through, times),
        |times| repeat(&direct, times),
    )?;
    let direct = runtime.block_on(server.clients(server.kbs, NODES))?;
    let through = runtime.block_on(server.clients(server.guard, NODES))?;
    suite.ratio_timed(
        "guard/unlocks",
        |ratio| {
            format!(
                "the servers' part with {NODES} nodes at once, both on the same two cores; {:.0} \
                 against {:.0} unlocks per second",
                ratio.ours_per_second(),
                ratio.baseline_per_second()
            )
        },
        |times| storm(runtime, &through, times),
        |times| storm(runtime, &direct, times),
    )
}

/// Input, reference values, claims and request of one unlock.
struct Case {
    attestation: String,
    resource: String,
    evidence: Value,
    references: BTreeMap<String, Value>,
    claims: Value,
    request: Value,
}

impl Case {
    fn new() -> anyhow::Result<Self> {
        let machine = Machine::new();
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
        let key = machine.tpm.public_key();
        let mut tpm = serde_json::Map::new();
        for (pcr, value) in machine.tpm.pcrs().iter() {
            tpm.insert(
                format!("pcr{:02}", pcr.as_usize()),
                value.to_string().into(),
            );
        }
        tpm.insert("ak_public".to_owned(), key.to_base64().into());
        let approved = machine.tpm.pcrs().value(PcrIndex::BOOT_MANAGER).to_string();
        let machine = machine.id.to_string();
        Ok(Self {
            attestation: intent.render_attestation(),
            resource: intent.render_resource(),
            evidence: json!({"tpm": tpm, "report_data": "00", "init_data": null}),
            references: BTreeMap::from([
                (
                    ak_reference_name(&key),
                    ak_reference_value(&key, &machine.parse()?),
                ),
                (
                    pcr_reference_name(PcrIndex::BOOT_MANAGER),
                    json!([approved]),
                ),
            ]),
            claims: json!({"submods": {"cpu0": {
                "ear.status": "affirming", "tec.machine": machine,
            }}}),
            request: json!({
                "plugin": "resource", "resource-path": ["default", machine, "root"], "query": {},
            }),
        })
    }

    fn attest(&self, policy: &AttestationPolicy) -> Result<Evaluation, PolicyError> {
        policy.evaluate(&self.evidence, &self.references)
    }

    fn allows(&self, policy: &ResourcePolicy) -> Result<bool, PolicyError> {
        policy.allows(&self.claims, &self.request)
    }
}

fn policies(suite: &mut Suite) -> anyhow::Result<()> {
    let case = Case::new()?;
    let attestation = AttestationPolicy::parse(&case.attestation)?;
    let resource = ResourcePolicy::parse(&case.resource)?;
    let Evaluation::Done(verdict) = case.attest(&attestation)? else {
        anyhow::bail!("a reference value is missing");
    };
    anyhow::ensure!(verdict.status().as_str() == "affirming", "{verdict:?}");
    anyhow::ensure!(case.allows(&resource)?, "the machine's own path is allowed");
    suite.compare(
        "kbs/policy",
        "evaluate the attestation policy kept parsed / parse and evaluate it",
        || case.attest(&attestation).context("evaluate"),
        || {
            case.attest(&AttestationPolicy::parse(&case.attestation)?)
                .context("evaluate")
        },
    )?;
    suite.compare(
        "kbs/policy/resource",
        "evaluate the resource policy kept parsed / parse and evaluate it",
        || case.allows(&resource).context("evaluate"),
        || {
            case.allows(&ResourcePolicy::parse(&case.resource)?)
                .context("evaluate")
        },
    )
}
