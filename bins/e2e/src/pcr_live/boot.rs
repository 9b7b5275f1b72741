//! Sets up a machine, boots it, and keeps its measurements.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context as _, bail, ensure};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::Entropy as _;
use tec_guest::frame;
use tec_support::SystemEntropy;
use tec_tpm::event_log::Bank;
use tec_tpm::public::PublicArea;
use tec_tpm::quote::UntrustedQuote;

use super::case::Case;
use super::{Settings, setup};
use crate::qemu::{Machine, Running, VirtualTpm, disk};

/// From power-on to the guest's greeting: half a minute on an idle host, several minutes if two boots and a
/// compiler share two processors.
const BOOT_LIMIT: Duration = Duration::from_mins(10);
/// Deadline for the guest's report, and for the guest to switch off afterwards.
const REPORT_LIMIT: Duration = Duration::from_mins(3);

/// What a boot measured, and the inputs of its prediction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recording {
    /// Where everything is kept.
    pub directory: PathBuf,
    /// The variable store before the boot.
    pub variables: Vec<u8>,
    /// Registers of every active bank as read by the guest.
    pub pcrs: BTreeMap<Bank, BTreeMap<PcrIndex, Vec<u8>>>,
    /// Registers of the SHA-256 bank, quoted by the TPM.
    pub quoted: PcrValues,
    /// The event log, if the kernel got one.
    pub log: Option<Vec<u8>>,
    /// How long it took.
    pub took: Duration,
}

impl Recording {
    /// Directory with the files of the EFI system partition.
    pub fn esp(&self) -> PathBuf {
        self.directory.join("esp")
    }
}

/// Boots a case; artifacts of an earlier run are replaced.
///
/// # Errors
/// The machine cannot be set up, does not boot, or reports something impossible.
pub fn record(case: Case, settings: &Settings) -> anyhow::Result<Recording> {
    let begin = Instant::now();
    let directory = settings.artefacts.join(case.to_string());
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let esp = directory.join("esp");
    fs::create_dir_all(&esp).with_context(|| format!("cannot create {}", esp.display()))?;
    let boot_files = setup::BootFiles::new(settings, case);
    let variables = setup::prepare(case, &boot_files, &directory)?;
    let store = directory.join("vars-after.fd");
    fs::write(directory.join("vars-before.fd"), &variables)?;
    fs::write(&store, &variables)?;
    let image = directory.join("disk.img");
    disk::write(&esp, &image)?;
    let tpm = VirtualTpm::manufacture(&directory.join("tpm"))?;
    let machine = Machine::new(&directory, &boot_files.firmware(), &store, &image, tpm);
    let mut nonce = [0; frame::NONCE_SIZE];
    SystemEntropy.fill(&mut nonce);
    let frames = run(&machine, &nonce)?;
    for (name, content) in &frames {
        keep(&directory.join(name), content)?;
    }
    // Its files are in esp.
    fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
    let pcrs = registers(frames.get("pcrs").context("no registers were received")?)?;
    Ok(Recording {
        quoted: quoted(&frames, &pcrs, &nonce)?,
        pcrs,
        log: frames.get("eventlog.bin").cloned(),
        directory,
        variables,
        took: begin.elapsed(),
    })
}

type Frames = BTreeMap<String, Vec<u8>>;

fn run(machine: &Machine, nonce: &[u8]) -> anyhow::Result<Frames> {
    let running = machine.power_on()?;
    let frames = converse(&running, nonce).map_err(|error| running.explain(&error))?;
    running.wait_for_power_off(REPORT_LIMIT)?;
    match frames.get("error") {
        Some(error) => bail!("the guest failed: {}", String::from_utf8_lossy(error)),
        None => Ok(frames),
    }
}

fn converse(running: &Running, nonce: &[u8]) -> anyhow::Result<Frames> {
    greet(running)?;
    let mut line = running.line(REPORT_LIMIT);
    line.write_all(nonce).context("cannot send the nonce")?;
    let mut frames = Frames::new();
    while let Some(frame) = frame::read(&mut line).context("cannot receive the guest's report")? {
        // The names become file names.
        ensure!(
            !frame.name.starts_with('/') && !frame.name.contains(".."),
            "the guest sent a file named {:?}",
            frame.name
        );
        frames.insert(frame.name, frame.content);
    }
    Ok(frames)
}

fn greet(running: &Running) -> anyhow::Result<()> {
    match frame::find_greeting(&mut running.line(BOOT_LIMIT)) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            bail!("the machine switched off before its guest came up")
        }
        other => other.with_context(|| {
            let seconds = BOOT_LIMIT.as_secs();
            format!("the guest did not come up within {seconds} s")
        }),
    }
}

fn keep(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn registers(text: &[u8]) -> anyhow::Result<BTreeMap<Bank, BTreeMap<PcrIndex, Vec<u8>>>> {
    let mut banks: BTreeMap<Bank, BTreeMap<PcrIndex, Vec<u8>>> = BTreeMap::new();
    for line in std::str::from_utf8(text)?.lines() {
        let mut words = line.split(' ');
        let mut word =
            || words.next().with_context(|| format!("{line:?} does not have three words"));
        let (bank, register, value) = (word()?, word()?, word()?);
        let bank = Bank::ALL.into_iter().find(|known| known.as_str() == bank);
        let register = PcrIndex::new(register.parse()?)?;
        let bank = bank.with_context(|| format!("{line:?} names no bank"))?;
        let value = hex::decode(value).ok();
        let value = value.with_context(|| format!("{line:?} has no value"))?;
        banks.entry(bank).or_default().insert(register, value);
    }
    Ok(banks)
}

/// The registers of the SHA-256 bank, proven by the accompanying quote.
fn quoted(
    frames: &Frames,
    pcrs: &BTreeMap<Bank, BTreeMap<PcrIndex, Vec<u8>>>,
    nonce: &[u8],
) -> anyhow::Result<PcrValues> {
    let frame = |name: &str| frames.get(name).with_context(|| format!("no {name} was received"));
    let bank = pcrs.get(&Bank::Sha256).context("no SHA-256 bank is active")?;
    let values: Vec<Sha256Digest> = bank
        .values()
        .map(|value| Ok(Sha256Digest::new(value.as_slice().try_into()?)))
        .collect::<anyhow::Result<_>>()?;
    let key = PublicArea::from_tpm2b(frame("quote/ak.pub.tpm2b")?)?;
    let quote = UntrustedQuote::new(frame("quote/quote.msg")?, frame("quote/quote.sig")?, &values);
    let verified =
        quote.verify(key.key(), nonce).context("the registers are not what the TPM quotes")?;
    Ok(verified.pcrs().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_read_by_bank() {
        let read = registers(b"sha1 4 00ff\nsha256 4 01\nsha256 14 02\n").unwrap();
        assert_eq!(read[&Bank::Sha1][&PcrIndex::BOOT_MANAGER], [0, 0xff]);
        assert_eq!(read[&Bank::Sha256].len(), 2);
        for wrong in ["md5 4 00", "sha1 24 00", "sha1 4", "sha1 4 x"] {
            assert!(registers(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
