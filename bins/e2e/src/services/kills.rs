//! Tables of kills: each pod of the chart is killed again and again while one component publishes and another
//! reads.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::tally;
use super::tally::Count;
use super::victim::{VICTIMS, Victim};
use crate::packages;
use crate::pods::{APPS, PLATFORM, Platform, watch};

const SOON: Duration = Duration::from_mins(4);
/// Time after which an acknowledged event has arrived, or never will.
const LATEST: Duration = Duration::from_mins(1);
/// The chart with three replicas of everything that can have three.
const VALUES: [&str; 2] = ["vault.replicas=3", "nats.replicas=3"];
const TELEMETRY: [&str; 2] = ["telemetry.enabled=true", "telemetry.heap=512"];
/// Volume of the counts, and the claim for it.
const LOAD: &str = "load";
const CLAIM: &str = "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-load}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: \"\"
  resources: {requests: {storage: 1Gi}}
---
";
/// How many lines of each log an error contains.
const LINES: &str = "--tail=15";

/// Kills everything this many times, and prints the table.
///
/// # Errors
/// A part does not restart, or an event was lost or delivered twice.
pub fn play(times: u32, only: &[String], out: &mut dyn Write) -> anyhow::Result<()> {
    let is_meant = |victim: &Victim| only.iter().any(|name| victim.name.starts_with(name));
    let victims: Vec<_> = VICTIMS.into_iter().filter(is_meant).collect();
    anyhow::ensure!(!victims.is_empty(), "no victim's name begins with {only:?}");
    let platform = Platform::begin()?;
    let table = install(&platform, &victims)
        .and_then(|volume| table(&platform, &volume, &victims, times, out));
    table.with_context(|| evidence(&platform))
}

/// Chart, listener, speaker; the folder with their counts.
fn install(platform: &Platform, victims: &[Victim]) -> anyhow::Result<PathBuf> {
    platform.load_load()?;
    let mut values = VALUES.to_vec();
    let mut sets = vec!["statefulset/vault", "statefulset/nats"];
    if victims.iter().any(Victim::is_telemetry) {
        platform.load_telemetry()?;
        values.extend(TELEMETRY);
        sets.extend(["deployment/collector", "statefulset/opensearch"]);
    }
    platform.install(&values)?;
    sets.iter().try_for_each(|set| platform.ready(PLATFORM, set, SOON))?;
    platform.share_authorities()?;
    let volume = platform.volume(APPS, LOAD)?;
    let begin = |name: &str, words: &str| {
        platform.apply(APPS, &load(platform.files(), name, words)?)?;
        platform.ready(APPS, &format!("deployment/{name}"), SOON)
    };
    begin("listener", "listen, evt.apps.speaker.>")?;
    // What was sent before it listens would count as lost.
    watch("the listener listens", SOON, || count(&volume).map(drop))?;
    begin("speaker", "speak, evt.apps.speaker")?;
    more_than(&volume, 0)?;
    Ok(volume)
}

fn table(
    platform: &Platform,
    volume: &Path,
    victims: &[Victim],
    times: u32,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    writeln!(out, "| killed | times | back after, at most | sent | lost | doubled |")?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let (mut before, mut bad) = (Count::default(), String::new());
    for victim in victims {
        let (name, times) = (victim.name, victim.times(times));
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            let begin = Instant::now();
            victim.kill(platform).with_context(|| format!("cannot kill {name}"))?;
            longest = longest.max(begin.elapsed());
        }
        let now = settled(volume)?;
        // What comes after all was counted before.
        let (sent, lost) = (now.sent - before.sent, now.lost.saturating_sub(before.lost));
        let doubled = now.doubled - before.doubled;
        let seconds = longest.as_secs_f32();
        writeln!(out, "| {name} | {times} | {seconds:.1} s | {sent} | {lost} | {doubled} |")?;
        out.flush()?;
        if sent == 0 || lost + doubled > 0 {
            let _ = write!(bad, " {name}");
        }
        before = now;
    }
    anyhow::ensure!(
        bad.is_empty(),
        "events were lost or delivered twice, or none was \
                                     received:{bad}"
    );
    Ok(())
}

/// The example's manifest, for another program, with the volume of the counts.
fn load(files: &Path, name: &str, words: &str) -> anyhow::Result<PathBuf> {
    let mut text = packages::component()?;
    let mount = "            - {name: shared, mountPath: /shared, readOnly: true}\n";
    let volumes = "      volumes:\n";
    for (found, with) in [
        ("evt.apps.hello.greeting", words.to_owned()),
        ("hello", name.to_owned()),
        ("tec-example-component", "tec-services-load".to_owned()),
        (mount, format!("{mount}            - {{name: load, mountPath: /load}}\n")),
        (
            volumes,
            format!(
                "{volumes}        - name: load\n          persistentVolumeClaim: {{claimName: data-load}}\n"
            ),
        ),
    ] {
        anyhow::ensure!(text.contains(found), "the example does not contain {found:?}");
        text = text.replace(found, &with);
    }
    let file = files.join(format!("{name}.yaml"));
    std::fs::write(&file, format!("{CLAIM}{text}"))?;
    Ok(file)
}

fn count(volume: &Path) -> anyhow::Result<Count> {
    tally::count(volume, &tally::acknowledged(volume)?)
}

/// Waits until more events than these are stored.
fn more_than(volume: &Path, sent: u64) -> anyhow::Result<()> {
    watch(&format!("more than {sent} events"), SOON, || {
        let now = count(volume)?;
        anyhow::ensure!(now.sent > sent, "{now:?}");
        Ok(())
    })
}

/// Waits until events are stored again after the last kill; counts those stored by then that never arrive.
fn settled(volume: &Path) -> anyhow::Result<Count> {
    more_than(volume, count(volume)?.sent)?;
    let sent = tally::acknowledged(volume)?;
    let all = || {
        let now = tally::count(volume, &sent)?;
        anyhow::ensure!(now.lost == 0, "{now:?}");
        Ok(())
    };
    // What is missing then is counted below.
    let _ = watch("all events come", LATEST, all);
    tally::count(volume, &sent)
}

/// What an error message includes: pods and the last lines of their logs.
fn evidence(platform: &Platform) -> String {
    let mut text = String::new();
    let mut tell = |arguments: &[&str]| {
        let said = platform.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
        let _ = writeln!(text, "--- kubectl {}\n{said}", arguments.join(" "));
    };
    tell(&["get", "pods", "--all-namespaces", "--output=wide"]);
    for (namespace, selector, containers) in [
        (APPS, "--selector=app=listener", "--all-containers"),
        (APPS, "--selector=app=speaker", "--all-containers"),
        (PLATFORM, "--selector=app=nats", "--all-containers"),
        // The other one has the audit log, which is long.
        (PLATFORM, "--selector=app=vault", "--container=controller"),
    ] {
        for which in ["--previous=false", "--previous=true"] {
            let logs = ["--namespace", namespace, "logs", selector, containers];
            tell(&[&logs[..], &["--prefix", LINES, which]].concat());
        }
    }
    text
}
