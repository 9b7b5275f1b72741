//! The time to list the combined values of a fleet during an update.

use std::hint::black_box;

use tec_benches::synthetic::Fleet;
use tec_benches::{Figure, Suite, Unit};
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_tpm::combine::{CombineError, Combiner};

/// Number of images approved for a large fleet, and of measurements of each.
const IMAGES: usize = 80;
const EVENTS: usize = 30;
/// Distributions ship a new boot loader with at most every fourth kernel.
const IMAGES_PER_LOADER: usize = 4;
const SIZES: [u32; 8] = [1, 2, 5, 10, 20, 40, 80, 160];

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    let fleet = Fleet::new(1, IMAGES, EVENTS, IMAGES_PER_LOADER);
    let images = fleet.images();
    let tuples = joint(&images)?;
    let name = "pcr/combine/80x30";
    if suite.wants(name) {
        let time = suite.time(|| joint(&images).is_ok());
        let note = format!(
            "combine {IMAGES} images of {EVENTS} events, a boot loader for every \
             {IMAGES_PER_LOADER}; {tuples} joint tuples of PCRs 4, 7 and 14, each with its origins"
        );
        suite.figure(Figure::new(name, time, Unit::Nanoseconds, &note))?;
    }
    sizes(&suite)?;
    suite.finish();
    Ok(())
}

fn registers() -> PcrSet {
    let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];
    registers.into_iter().collect()
}

fn joint(images: &[(&str, &ExpectedPcrs)]) -> Result<usize, CombineError> {
    let states = Combiner::new().combine(images)?.joint(registers())?;
    Ok(black_box(states).len())
}

/// Time over the number of images.
fn sizes(suite: &Suite) -> anyhow::Result<()> {
    let name = "pcr/combine_sizes";
    if !suite.wants(name) {
        return Ok(());
    }
    for (what, images_per_loader, note) in [
        ("some_loaders", IMAGES_PER_LOADER, "a boot loader for every fourth image"),
        ("all_loaders", 1, "a boot loader for every image"),
        ("one_loader", usize::MAX, "one boot loader"),
    ] {
        for size in SIZES {
            let fleet = Fleet::new(1, usize::try_from(size)?, EVENTS, images_per_loader);
            let images = fleet.images();
            joint(&images)?;
            let time = suite.time(|| joint(&images).is_ok());
            let name = format!("{name}/{what}/{size}");
            suite.figure(Figure::new(&name, time, Unit::Nanoseconds, note))?;
        }
    }
    Ok(())
}
