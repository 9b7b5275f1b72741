//! PCR reference values: what booting an image will measure into PCR 4, from its files.
//!
//! ```text
//! cargo run -p tec-examples --bin pcr_reference_values                # small files made here
//! cargo run -p tec-examples --bin pcr_reference_values -- /mnt/image  # a real image's file tree
//! ```
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::port::chain;
use tec_core::reference::{BootImage, PcrComputer as _};
use tec_tpm::compute::testing::debian_chain;
use tec_tpm::compute::{ChainComputer, DirectoryImage, SecureBoot};

/// The kernel's path in the image of [`debian_chain`].
const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

fn tell(expected: &ExpectedPcrs) -> anyhow::Result<()> {
    let pcr4 = expected.pcr(PcrIndex::BOOT_MANAGER).context("PCR 4 was not computed")?;
    for event in &pcr4.events {
        let file = event.source.as_deref().unwrap_or("the firmware itself");
        println!("  {:<14} {}  {file}", event.id, event.hash);
    }
    println!("  PCR 4        = {}", pcr4.value);
    Ok(())
}

fn compute(image: &dyn BootImage) -> anyhow::Result<()> {
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        println!("Secure Boot {secure_boot:?}");
        tell(&ChainComputer::new(secure_boot).compute(image)?)?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    if let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) {
        return compute(&DirectoryImage::open(&root)?);
    }
    let image = debian_chain("2.12");
    compute(&image)?;

    // A changed kernel is refused: its signature covers a different digest.
    let mut changed = image.content(KERNEL).context("no kernel")?.to_vec();
    let byte_of_code = changed.get_mut(600).context("the kernel is too short")?;
    *byte_of_code ^= 1;
    let image = image.with(KERNEL, changed);
    let computer = ChainComputer::new(SecureBoot::On);
    let Err(error) = computer.compute(&image) else { bail!("a changed kernel was accepted") };
    println!("one byte changed: {}", chain(&error));
    Ok(())
}
