//! Allocations and peak heap use, counted by dhat. A separate suite, because counting makes
//! everything slower.

use dhat::{HeapStats, Profiler};
use tec_benches::synthetic::{Fleet, Program};
use tec_benches::{Figure, Suite, Unit, debian, synthetic};
use tec_core::pcr::PcrIndex;
use tec_tpm::combine::Combiner;
use tec_tpm::compute::{Banks, BootPredictor, PlatformState};
use tec_tpm::event_log::EventLog;
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::testing::SoftTpm;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Sizes of unified kernel images as powers of two, from 1 MiB to 2 GiB.
const SIZES: [u32; 5] = [20, 23, 26, 29, 31];

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    peaks(&suite)?;
    prediction(&suite)?;
    log(&suite)?;
    fleet(&suite)?;
    evidence(&suite)?;
    suite.finish();
    Ok(())
}

/// The heap use of `work`.
fn counted<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, HeapStats)> {
    let profiler = Profiler::builder().testing().build();
    let done = work()?;
    let stats = HeapStats::get();
    drop(profiler);
    Ok((done, stats))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}

/// Reports allocations of one operation.
fn allocations<T>(
    suite: &Suite,
    name: &str,
    note: &str,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    let name = format!("pcr/allocations/{name}");
    if !suite.wants(&name) {
        return Ok(());
    }
    let (_, stats) = counted(work)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let (blocks, bytes) = (stats.total_blocks as f64, stats.total_bytes as f64);
    let note = format!(
        "{note}: {} in all, {} at most at a time",
        Unit::Bytes.show(bytes),
        Unit::Bytes.show(float(stats.max_bytes))
    );
    suite.figure(Figure::new(&name, blocks, Unit::Count, &note))
}

/// Peak heap use for unified kernel images of any size.
fn peaks(suite: &Suite) -> anyhow::Result<()> {
    let machine = PlatformState::new();
    let predictor = BootPredictor::new().with_banks(Banks::ALL);
    for power in SIZES {
        let size = Unit::Bytes.label(f64::from(power).exp2());
        let name = format!("pcr/peak_memory/uki-{size}");
        if !suite.wants(&name) {
            continue;
        }
        let image = Program::uki(1, 1 << power).image();
        let (prediction, stats) = counted(|| Ok(predictor.predict(&image, &machine)?))?;
        let pcr11 = prediction.predicted().contains(PcrIndex::KERNEL_BOOT);
        anyhow::ensure!(pcr11, "PCR 11 is not predicted");
        let note = "heap for all registers of a unified kernel image in four banks";
        let peak = float(stats.max_bytes);
        suite.figure(Figure::new(&name, peak, Unit::Bytes, note))?;
    }
    Ok(())
}

fn prediction(suite: &Suite) -> anyhow::Result<()> {
    let Some(boot) = debian::boot("trixie")? else {
        return Ok(());
    };
    let image = boot.image()?;
    let note = "PCRs 4, 7 and 14 of a real image with Secure Boot on";
    allocations(suite, "predict", note, || boot.predict(&image))
}

fn log(suite: &Suite) -> anyhow::Result<()> {
    let log = synthetic::event_log(1, 48 << 10);
    let note = "parse and replay a log of 48 KiB";
    allocations(suite, "event_log", note, || Ok(EventLog::parse(&log)?.replay_sha256()?))
}

fn fleet(suite: &Suite) -> anyhow::Result<()> {
    let fleet = Fleet::new(1, 80, 30, 4);
    let images = fleet.images();
    let note = "combine 80 images of 30 events";
    allocations(suite, "combine", note, || Ok(Combiner::new().combine(&images)?))
}

fn evidence(suite: &Suite) -> anyhow::Result<()> {
    let tpm = SoftTpm::rsa(1);
    let nonce = [0x5a; 32];
    let json = tpm.quote(&nonce).to_value();
    let note = "read evidence from JSON and verify its quote";
    allocations(suite, "evidence", note, || {
        let evidence = TpmEvidence::from_value(&json)?;
        Ok(evidence.quote().verify(&evidence.ak, &nonce)?)
    })
}
