//! The shim of the running boot: a file whose digest is in the event log.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::reference::BootImage as _;
use tec_tpm::compute::{DirectoryImage, RunningShim};
use tec_tpm::event_log::EventLog;

/// Where systems mount the EFI system partition.
pub(super) const ESP: &str = "/boot/efi";

/// Reads the given file, which must be in the log if there is one.
pub(super) fn given(file: &Path, log: Option<&[u8]>) -> anyhow::Result<RunningShim> {
    let name = || format!("cannot read the running shim {}", file.display());
    let opened = File::open(file).with_context(name)?;
    let shim = RunningShim::read(opened).with_context(name)?;
    let digest = shim.authenticode();
    if let Some(log) = log {
        anyhow::ensure!(
            started(log)?.contains(&digest),
            "{} is not the shim that runs: its digest {digest} is not in the event log",
            file.display()
        );
    }
    Ok(shim)
}

/// The file below `folder` that is in the log. If there is none, the next shim is assumed to be the same, and
/// the prediction fails if it is not.
pub(super) fn found(folder: &Path, log: &[u8]) -> Option<RunningShim> {
    let started = started(log).ok()?;
    let image = DirectoryImage::open(folder).ok()?;
    let files = image.files("").ok()?;
    let programs = files.iter().filter(|path| path.to_ascii_lowercase().ends_with(".efi"));
    let mut shims = programs.filter_map(|path| RunningShim::read(image.open(path).ok()?).ok());
    shims.find(|shim| started.contains(&shim.authenticode()))
}

/// Digests of the programs that firmware and shim started.
fn started(log: &[u8]) -> anyhow::Result<Vec<Sha256Digest>> {
    let log = EventLog::parse(log).context("cannot read the log of the current boot")?;
    let programs = log.events().iter().filter(|e| e.extends() == Some(PcrIndex::BOOT_MANAGER));
    let digests = programs.filter_map(|e| Some(Sha256Digest::new(*e.digests.sha256?)));
    Ok(digests.collect())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;
    use tec_tpm::output::NextBoot;

    use super::*;
    use crate::nextboot::{Judge, NextbootArgs, Running, foretell};

    const TRIXIE: &str = "trixie-sb-on";
    const BOOKWORM: &str = "bookworm-sb-on";

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: NextbootArgs,
    }

    /// A file of a recorded boot.
    fn real(boot: &str, file: &str) -> PathBuf {
        let folder = std::env::var_os("TEC_FIXTURES").expect("TEC_FIXTURES is set");
        Path::new(&folder).join("qemu").join(boot).join(file)
    }

    fn log(boot: &str) -> Vec<u8> {
        std::fs::read(real(boot, "eventlog.bin")).unwrap()
    }

    /// What the machine of one boot measures when it boots the files of another.
    fn next(now: &str, then: &str, shim: Option<&str>) -> anyhow::Result<NextBoot> {
        let (esp, efivars) = (real(then, "esp"), real(now, "efivars"));
        let (esp, efivars) = (esp.to_str().unwrap(), efivars.to_str().unwrap());
        let mut args = Program::parse_from(["nextboot", esp, "--efivars", efivars]).args;
        args.running_shim = shim.map(|boot| real(boot, "esp/EFI/BOOT/BOOTX64.EFI"));
        let running = Running { values: None, log: Some(log(now)) };
        foretell(&args, &running, Judge::Nobody)
    }

    #[test]
    #[ignore = "needs recorded-boots: set TEC_FIXTURES"]
    fn the_running_shim_is_the_one_in_the_log() {
        let (log, other) = (log(TRIXIE), log(BOOKWORM));
        let shim = real(TRIXIE, "esp/EFI/BOOT/BOOTX64.EFI");
        let esp = real(TRIXIE, "esp");
        assert_eq!(found(&esp, &log), Some(given(&shim, Some(&log)).unwrap()));
        assert_eq!(found(&esp, &other), None);
        assert!(given(&shim, Some(&other)).unwrap_err().to_string().contains("event log"));
    }

    #[test]
    #[ignore = "needs recorded-boots: set TEC_FIXTURES"]
    fn real_boots_follow_from_the_machine_before_an_update_of_shim() {
        for (now, then) in [(TRIXIE, BOOKWORM), (BOOKWORM, TRIXIE)] {
            let next_boot = next(now, then, Some(now)).unwrap();
            let log = log(then);
            let measured = EventLog::parse(&log).unwrap().replay_sha256().unwrap();
            for pcr in [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK] {
                let register = next_boot.registers.iter().find(|register| register.pcr == pcr);
                assert_eq!(register.unwrap().next, *measured.value(pcr), "{now} {then} {pcr}");
            }
            let other = next(now, then, Some(then)).unwrap_err();
            assert!(other.to_string().contains("is not the shim that runs"), "{other}");
            let without = next(now, then, None).unwrap_err();
            assert!(without.to_string().contains("--running-shim"), "{without}");
        }
    }
}
