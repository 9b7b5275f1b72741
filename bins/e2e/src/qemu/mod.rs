//! Virtual machines with real firmware: QEMU with OVMF, Secure Boot protected by SMM, and a software TPM that
//! measures what the firmware starts.
//!
//! *What it is*: the parts of such a machine, each created only from files: variables with keys
//! ([`VariableStore`], [`SigningKey`]), unified kernel images ([`Uki`]), initial file systems
//! ([`Initramfs`]), disks ([`disk`]), a TPM that keeps its state ([`VirtualTpm`]), and the [`Machine`] that
//! boots them.
//!
//! *What it is not*: a way to look into a machine. A guest reports over its second serial port; the first is
//! the console, which is a file.
//!
//! ```text
//!  boot files ─ Uki, SigningKey ─► directory ─ disk::write ─► disk image ─┐
//!  OVMF_VARS.fd ─ VariableStore ─► variables ─────────────────────────────┼─► Machine
//!  swtpm ─ VirtualTpm ────────────────────────────────────────────────────┘     │ power_on
//!                                   console.log ◄── first serial port ── Running ─┴─► second
//! ```

pub mod disk;
mod gpt;
mod initramfs;
pub mod key;
mod line;
pub mod luks;
mod machine;
mod tpm;
mod uki;
pub mod variables;
mod writes;

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

pub use self::initramfs::Initramfs;
pub use self::key::SigningKey;
pub use self::line::Line;
pub use self::machine::{Machine, Running};
pub use self::tpm::VirtualTpm;
pub use self::uki::Uki;
pub use self::variables::VariableStore;
pub use self::writes::{Entry, Pieces, PowerCut, Write, WriteLog};

/// Runs a program that must succeed; the error contains its output.
pub(crate) fn must(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// A little-endian number in a foreign file.
fn field<const N: usize>(bytes: &[u8], at: usize) -> anyhow::Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().with_context(|| format!("offset {at}: the file ends"))
}

fn u16_at(bytes: &[u8], at: usize) -> anyhow::Result<usize> {
    Ok(u16::from_le_bytes(field(bytes, at)?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> anyhow::Result<usize> {
    Ok(usize::try_from(u32::from_le_bytes(field(bytes, at)?))?)
}

/// Overwrites part of a file.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> anyhow::Result<()> {
    bytes
        .get_mut(at..)
        .and_then(|rest| rest.get_mut(..value.len()))
        .with_context(|| format!("offset {at}: the file ends"))?
        .copy_from_slice(value);
    Ok(())
}
