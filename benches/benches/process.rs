//! The whole program `compute-pcrs all` against programs that hash the same files.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use sha2::{Digest as _, Sha256};
use tec_benches::debian::Boot;
use tec_benches::{Suite, debian};

/// Argument with which this program acts as its own child.
const HASH: &str = "hash-these-files";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let Some((first, files)) = arguments.split_first()
        && first == Path::new(HASH)
    {
        return Ok(hash(files)?);
    }
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let program = suite.target_dir().join("release/compute-pcrs");
    if program.is_file() {
        for boot in debian::boots()? {
            processes(&suite, &program, &boot)?;
        }
    }
    suite.finish();
    Ok(())
}

fn processes(suite: &Suite, program: &Path, boot: &Boot) -> anyhow::Result<()> {
    let lists = boot.folder.join("mok-variables");
    // The program needs shim's copies of the lists, and would need the name of a unified kernel image.
    if !lists.join("MokListRT").is_file() || !boot.folder.join("esp/vmlinuz").is_file() {
        return Ok(());
    }
    let files = boot.files()?;
    let mut ours = Command::new(program);
    ours.arg("all").arg("--rootfs").arg(boot.folder.join("esp"));
    ours.arg("--efivars").arg(boot.folder.join("efivars"));
    ours.arg("--mok-variables").arg(&lists);
    let mut sha256sum = Command::new("sha256sum");
    sha256sum.args(&files);
    let mut hardware = Command::new(std::env::current_exe()?);
    hardware.arg(HASH).args(&files);
    for command in [&mut ours, &mut sha256sum, &mut hardware] {
        run(command)?;
    }
    let name = &boot.name;
    let note = "`compute-pcrs all` / `sha256sum` of the boot files, as processes";
    suite.ratio_timed(
        &format!("pcr/process/{name}"),
        |_| note.to_owned(),
        |times| repeat(times, &mut ours),
        |times| repeat(times, &mut sha256sum),
    )?;
    let note = "`compute-pcrs all` / a process that hashes the boot files with the same SHA-256";
    suite.ratio_timed(
        &format!("pcr/process/hardware/{name}"),
        |_| note.to_owned(),
        |times| repeat(times, &mut ours),
        |times| repeat(times, &mut hardware),
    )
}

/// The command was checked before; if it fails later, its time counts as zero.
fn repeat(times: u64, command: &mut Command) -> Duration {
    (0..times).map(|_| run(command).unwrap_or_default()).sum()
}

/// Processor time that the program used until it exited.
fn run(command: &mut Command) -> anyhow::Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().context("cannot start a program")?;
    let pid = Pid::from_child(&child);
    // It has exited, but its accounts are still there.
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    // Linux, Documentation/scheduler/sched-stats.rst: nanoseconds on a processor come first.
    let accounts = fs::read_to_string(format!("/proc/{}/schedstat", child.id()))?;
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{command:?} ended with {status}");
    let first = accounts.split(' ').next().unwrap_or_default();
    Ok(Duration::from_nanos(first.parse()?))
}

fn hash(files: &[PathBuf]) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    for path in files {
        let mut file = File::open(path)?;
        let mut hasher = Sha256::new();
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => hasher.update(buffer.get(..count).unwrap_or_default()),
            }
        }
        std::hint::black_box(hasher.finalize());
    }
    Ok(())
}
