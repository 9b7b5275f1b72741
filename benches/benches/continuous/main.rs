//! A fleet attests every ten minutes to one `tec serve`: each machine over a TLS connection of its own, from an
//! address of its own, with its event log, without fetching a key.
//!
//! ```text
//! each round: all machines, as fast as possible ─► speed
//!             at the rate of the fleet, until no session of the former step is left ─► load, latency, memory
//! ```

mod bare;
mod fleet;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tec_benches::load::{Tally, float, number};
use tec_benches::{Figure, Ratio, Suite, Unit};
use tec_trustee::kbs::DEFAULT_SESSION_SECONDS;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use self::bare::Bare;
use self::fleet::Fleet;
use self::server::Server;

/// Prefix of the figures' names.
const NAME: &str = "continuous/";
/// Defaults of the numbers of machines and of rounds.
const MACHINES: u64 = 10_000;
const ROUNDS: u64 = 3;
/// How often each machine attests: the shortest time of `tec-attest.timer`.
const PERIOD: Duration = Duration::from_mins(10);
/// Time between two storms: no session of the first one is left.
const CALM: Duration = Duration::from_secs(DEFAULT_SESSION_SECONDS as u64 + 10);
/// Machines that attest at a time in a storm.
const AT_ONCE: usize = 32;
/// Attestations between two measurements of the baseline.
const BATCH: usize = 500;

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let programs = std::env::var_os("TEC_BIN_DIR")
        .map_or_else(|| suite.target_dir().join("release"), PathBuf::from);
    if suite.wants(NAME) && programs.join("tec").is_file() {
        // Fails only if a provider is installed already, which is just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        tec_benches::load::runtime()?.block_on(run(&suite, programs))?;
    }
    suite.finish();
    Ok(())
}

async fn run(suite: &Suite, programs: PathBuf) -> anyhow::Result<()> {
    let machines = number("TEC_BENCH_MACHINES", MACHINES)?;
    let rounds = number("TEC_BENCH_ROUNDS", ROUNDS)?;
    let fleet = Fleet::new(machines).await?;
    let server = Server::start(programs, &fleet).await?;
    let bare = Bare::new(fleet.evidence()?.message)?;
    let mut report = Report { suite, machines, memory: vec![server.memory()?] };
    for round in 1..=rounds {
        let storm = Storm::measure(&fleet, &server, &bare).await?;
        let calm = Calm::measure(&fleet, &server).await?;
        report.memory.push(server.memory()?);
        if round == 1 {
            report.storm(&storm)?;
            report.calm(&calm)?;
        }
    }
    report.memory(server.peak_memory()?)
}

/// One attestation of each machine.
struct Storm {
    /// Nanoseconds of the server and of the baseline for an attestation, by batch.
    pairs: Vec<(f64, f64)>,
    took: Duration,
    times: Tally,
}

impl Storm {
    async fn measure(fleet: &Fleet, server: &Server, bare: &Bare) -> anyhow::Result<Self> {
        let mut storm = Self { pairs: Vec::new(), took: Duration::ZERO, times: Tally::default() };
        for first in (0..fleet.len()).step_by(BATCH) {
            let batch = first..fleet.len().min(first + BATCH);
            let count = float(batch.len() as u64);
            let (begin, used) = (Instant::now(), server.processor_time()?);
            let mut running = JoinSet::new();
            for machine in batch {
                if running.len() >= AT_ONCE {
                    running.join_next().await.transpose()?;
                }
                let (times, attesting) = (storm.times.clone(), fleet.attest(machine, &server.kbs)?);
                running.spawn(async move { times.time(attesting).await });
            }
            running.join_all().await;
            storm.took += begin.elapsed();
            let ours = server.processor_time()?.saturating_sub(used);
            let bare = bare.time(u32::try_from(BATCH)?)?;
            storm.pairs.push((ours.as_secs_f64() * 1e9 / count, bare.as_secs_f64() * 1e9));
        }
        // A failure says nothing about the speed.
        storm.times.percentile(99)?;
        Ok(storm)
    }
}

/// The fleet in everyday use.
struct Calm {
    /// Time of the processor that the server used, and that passed.
    used: Duration,
    took: Duration,
    written: f64,
    attestations: u32,
    times: Tally,
}

impl Calm {
    async fn measure(fleet: &Fleet, server: &Server) -> anyhow::Result<Self> {
        let (begin, used) = (Instant::now(), server.processor_time()?);
        let (written, times) = (server.written()?, Tally::default());
        let mut ticks = tokio::time::interval(PERIOD / u32::try_from(fleet.len())?);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut running, mut attestations) = (JoinSet::new(), 0);
        while begin.elapsed() < CALM {
            ticks.tick().await;
            let (times, attesting) = (times.clone(), fleet.attest(attestations, &server.kbs)?);
            running.spawn(async move { times.time(attesting).await });
            attestations += 1;
            while running.try_join_next().transpose()?.is_some() {}
        }
        running.join_all().await;
        Ok(Self {
            used: server.processor_time()?.saturating_sub(used),
            took: begin.elapsed(),
            written: server.written()? - written,
            attestations: u32::try_from(attestations)?,
            times,
        })
    }
}

struct Report<'a> {
    suite: &'a Suite,
    machines: u64,
    /// Before the first round, and after each.
    memory: Vec<f64>,
}

impl Report<'_> {
    fn figure(&self, name: &str, value: f64, unit: Unit, note: &str) -> anyhow::Result<()> {
        self.suite.figure(Figure::new(&format!("{NAME}{name}"), value, unit, note))
    }

    fn storm(&self, storm: &Storm) -> anyhow::Result<()> {
        let ratio = Ratio::of_rounds(NAME, &storm.pairs);
        let note = format!(
            "times the processor time of the server's part of a TLS handshake and the verification of a \
             signature; {} against {}",
            Unit::Nanoseconds.show(ratio.ours_ns),
            Unit::Nanoseconds.show(ratio.baseline_ns),
        );
        self.figure("processor", ratio.ratio, Unit::Count, &note)?;
        let wanted = float(self.machines) / PERIOD.as_secs_f64();
        let note = format!(
            "attestations per second of a processor core / {wanted:.1} per second, at which {} machines attest",
            self.machines
        );
        self.figure("headroom", ratio.ours_per_second() / wanted, Unit::Count, &note)?;
        let rate = float(self.machines) / storm.took.as_secs_f64();
        let note =
            format!("all {} machines at once, on the same cores as the server", self.machines);
        self.figure("storm/rate", rate, Unit::PerSecond, &note)?;
        self.latency("storm", &storm.times, &format!("an attestation, {AT_ONCE} at a time"))
    }

    fn calm(&self, calm: &Calm) -> anyhow::Result<()> {
        let rate = f64::from(calm.attestations) / calm.took.as_secs_f64();
        let note = format!(
            "of one processor core, used by the server at {rate:.1} attestations per second for {} s",
            calm.took.as_secs()
        );
        let share = calm.used.as_secs_f64() / calm.took.as_secs_f64();
        self.figure("load", share, Unit::Count, &note)?;
        let written = calm.written / f64::from(calm.attestations);
        self.figure("written", written, Unit::Bytes, "to the disk for each attestation")?;
        self.latency("latency", &calm.times, "an attestation at this rate")
    }

    fn latency(&self, name: &str, times: &Tally, note: &str) -> anyhow::Result<()> {
        for percent in [50, 99] {
            let time = times.percentile(percent)?;
            self.figure(&format!("{name}/p{percent}"), time, Unit::Nanoseconds, note)?;
        }
        Ok(())
    }

    /// The storm of the second round finds the sessions of the first round still open, so from then on a round needs
    /// as much as the next one.
    fn memory(&self, peak: f64) -> anyhow::Result<()> {
        let &[start, _, second, _, ..] = self.memory.as_slice() else {
            anyhow::bail!("growth needs three rounds");
        };
        let last = self.memory.last().context("no round was measured")?;
        let rounds = self.memory.len() - 1;
        let note = format!("memory of the server with {} registered machines", self.machines);
        self.figure("memory/start", start, Unit::Bytes, &note)?;
        self.figure("memory/second", second, Unit::Bytes, "after the second round")?;
        self.figure("memory/last", *last, Unit::Bytes, &format!("after round {rounds}"))?;
        self.figure("memory/peak", peak, Unit::Bytes, "the most in all rounds")?;
        let note = format!("memory after round {rounds} / after the second");
        self.figure("growth", last / second, Unit::Count, &note)
    }
}
