//! Tables of kills: each pod of the chart is killed again and again while a component publishes and another
//! one reads.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::pods::{APPS, PLATFORM, Platform, until};

const SOON: Duration = Duration::from_mins(4);
/// The chart with three of whatever may be three.
const VALUES: [&str; 4] =
    ["vault.replicas=3", "nats.replicas=3", "telemetry.enabled=true", "telemetry.heap=512"];
const SETS: [&str; 4] =
    ["statefulset/vault", "statefulset/nats", "deployment/collector", "statefulset/opensearch"];

/// What is killed: a name, where it is, and whose pods must be ready again.
const KILLED: [(&str, Victim); 10] = [
    ("vault-0", Victim::Pod(PLATFORM, "vault-0", "statefulset/vault")),
    ("vault-1", Victim::Pod(PLATFORM, "vault-1", "statefulset/vault")),
    ("vault-2", Victim::Pod(PLATFORM, "vault-2", "statefulset/vault")),
    ("controller", Victim::Container("vault-0", "controller", "statefulset/vault")),
    ("nats-0", Victim::Pod(PLATFORM, "nats-0", "statefulset/nats")),
    ("nats-1", Victim::Pod(PLATFORM, "nats-1", "statefulset/nats")),
    ("nats-2", Victim::Pod(PLATFORM, "nats-2", "statefulset/nats")),
    ("component and broker", Victim::App("speaker", "deployment/speaker")),
    ("collector", Victim::App("collector", "deployment/collector")),
    ("opensearch", Victim::Pod(PLATFORM, "opensearch-0", "statefulset/opensearch")),
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    /// A pod of this name.
    Pod(&'static str, &'static str, &'static str),
    /// A container of a pod of the platform.
    Container(&'static str, &'static str, &'static str),
    /// Pods with this label, wherever they are.
    App(&'static str, &'static str),
}

/// Events since the load began: sent and known to be stored, never heard, heard twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    sent: u64,
    lost: u64,
    doubled: u64,
}

/// Kills everything so often, and prints the table.
///
/// # Errors
/// A part does not come up again, or an event was lost or doubled.
pub fn play(times: u32, only: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let platform = Platform::begin()?;
    platform.load_load()?;
    platform.load_telemetry()?;
    platform.install(&VALUES)?;
    SETS.iter().try_for_each(|set| platform.ready(PLATFORM, set, SOON))?;
    platform.share_authorities()?;
    for (name, words) in
        [("listener", "listen, evt.apps.speaker.>"), ("speaker", "speak, evt.apps.speaker")]
    {
        platform.apply(APPS, &load(platform.files(), name, words)?)?;
        platform.ready(APPS, &format!("deployment/{name}"), SOON)?;
    }
    until("the first events", SOON, || count(&platform).is_ok_and(|count| count.sent > 0))?;
    writeln!(out, "| killed | times | back after, at most | sent | lost | doubled |")?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let (mut before, mut bad) = (Count::default(), String::new());
    for (name, victim) in KILLED.into_iter().filter(|(name, _)| name.starts_with(only)) {
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            let begin = Instant::now();
            kill(&platform, victim).with_context(|| format!("kill {name}"))?;
            back(&platform, victim).with_context(|| format!("{name} is not back"))?;
            longest = longest.max(begin.elapsed());
        }
        let now = settled(&platform)?;
        let (sent, lost) = (now.sent - before.sent, now.lost - before.lost);
        let doubled = now.doubled - before.doubled;
        let seconds = longest.as_secs_f32();
        writeln!(out, "| {name} | {times} | {seconds:.1} s | {sent} | {lost} | {doubled} |")?;
        if sent == 0 || lost + doubled > 0 {
            let _ = write!(bad, " {name}");
        }
        before = now;
    }
    anyhow::ensure!(bad.is_empty(), "events were lost or doubled, or none came:{bad}");
    Ok(())
}

fn kill(platform: &Platform, victim: Victim) -> anyhow::Result<()> {
    let now = ["--grace-period=0", "--force", "--wait=true"];
    match victim {
        Victim::Pod(namespace, pod, _) => {
            let delete = ["--namespace", namespace, "delete", "pod", pod];
            platform.kubectl(&[&delete[..], &now].concat()).map(drop)
        }
        Victim::App(app, _) => {
            let label = format!("--selector=app={app}");
            let delete = ["--namespace", namespace_of(app), "delete", "pod", &label];
            platform.kubectl(&[&delete[..], &now].concat()).map(drop)
        }
        Victim::Container(pod, container, _) => {
            let killed = container_id(platform, pod, container)?;
            platform.node().kill_container(killed.trim_start_matches("containerd://"))?;
            // Until the kubelet saw that it ended, the pod still counts as ready.
            until("another container", SOON, || {
                container_id(platform, pod, container).is_ok_and(|id| id != killed)
            })?;
            Ok(())
        }
    }
}

fn container_id(platform: &Platform, pod: &str, container: &str) -> anyhow::Result<String> {
    let id = format!(
        "--output=jsonpath={{.status.containerStatuses[?(@.name==\"{container}\")].containerID}}"
    );
    platform.kubectl(&["--namespace", PLATFORM, "get", "pod", pod, &id])
}

fn namespace_of(app: &str) -> &'static str {
    if app == "speaker" { APPS } else { PLATFORM }
}

fn back(platform: &Platform, victim: Victim) -> anyhow::Result<()> {
    match victim {
        Victim::Pod(namespace, _, set) => platform.ready(namespace, set, SOON),
        Victim::Container(_, _, set) => platform.ready(PLATFORM, set, SOON),
        Victim::App(app, set) => platform.ready(namespace_of(app), set, SOON),
    }
}

/// The example's manifest, for another program.
fn load(files: &Path, name: &str, words: &str) -> anyhow::Result<std::path::PathBuf> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/component");
    let text = std::fs::read_to_string(example.join("component.yaml"))?;
    let text = text
        .replace("evt.apps.hello.greeting", words)
        .replace("hello", name)
        .replace("tec-example-component", "tec-services-load");
    let file = files.join(format!("{name}.yaml"));
    std::fs::write(&file, text)?;
    Ok(file)
}

/// What the listener told last.
fn count(platform: &Platform) -> anyhow::Result<Count> {
    let log = ["--namespace", APPS, "logs", "deployment/listener", "--container=component"];
    let said = platform.kubectl(&[&log[..], &["--tail=1"]].concat())?;
    let mut numbers = said.split_whitespace().map(str::parse::<u64>);
    let mut next = || anyhow::Ok(numbers.next().context("the listener tells nothing")??);
    Ok(Count { sent: next()?, lost: next()?, doubled: next()? })
}

/// Once events come again after the last kill: what is missing then is lost.
fn settled(platform: &Platform) -> anyhow::Result<Count> {
    let first = count(platform)?;
    until("events after the kill", SOON, || {
        count(platform).is_ok_and(|now| now.sent > first.sent)
    })?;
    count(platform)
}
