//! Registers of real images against reading and hashing the same bytes once; and how the prediction
//! scales with size, cores and the machine's lists.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::PathBuf;
use std::{io, thread};

use anyhow::Context as _;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tec_benches::debian::Boot;
use tec_benches::synthetic::Program;
use tec_benches::{Figure, Suite, Unit, debian, synthetic};
use tec_core::reference::BootImage as _;
use tec_tpm::compute::{Banks, BootPredictor, Guid, MemoryImage, PeFile, PeRequest, PlatformState};

/// Size of the baseline's reads: large enough to outweigh the cost of a call, small enough for one core's
/// cache.
const PIECE: usize = 128 << 10;
/// From the smallest program to the largest that is realistic, as powers of two.
const SIZES: [u32; 8] = [10, 13, 16, 19, 22, 25, 28, 31];
/// Numbers of revoked digests; today's machines have some 500.
const REVOKED: [u32; 6] = [1, 10, 100, 500, 2_000, 10_000];

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    for boot in debian::boots()? {
        files(&suite, &boot)?;
        all(&suite, &boot)?;
    }
    let boot = debian::boot("trixie")?;
    if let Some(boot) = &boot {
        memory(&suite, boot)?;
        revoked(&suite, boot)?;
    }
    sizes(&suite)?;
    cores(&suite, boot)?;
    suite.finish();
    Ok(())
}

/// Warm files.
fn files(suite: &Suite, boot: &Boot) -> anyhow::Result<()> {
    let files = boot.files()?;
    let image = boot.image()?;
    suite.ratio(
        &format!("pcr/predict/{}", boot.name),
        &format!(
            "PCRs 4, 7 and 14 / read and hash the {} boot files of {} bytes",
            files.len(),
            debian::size(&files)?
        ),
        || boot.predict(&image).is_ok(),
        || hash_files(&files).is_ok(),
    )
}

/// All registers: most bytes count for two digests, one over the whole program and one over a part of it or
/// with its signature.
fn all(suite: &Suite, boot: &Boot) -> anyhow::Result<()> {
    let (files, image) = (boot.all_files()?, boot.image()?);
    suite.ratio(
        &format!("pcr/predict_all/{}", boot.name),
        "all registers in one bank / hash the same files",
        || boot.predict_all(&image, Banks::SHA256).is_ok(),
        || hash_files(&files).is_ok(),
    )?;
    suite.ratio(
        &format!("pcr/predict_banks/{}", boot.name),
        "all registers in four banks / hash the same files in four banks, by RustCrypto",
        || boot.predict_all(&image, Banks::ALL).is_ok(),
        || hash_files_in_all_banks(&files).is_ok(),
    )
}

/// Measures the prediction over files in memory, without system calls.
fn memory(suite: &Suite, boot: &Boot) -> anyhow::Result<()> {
    let image = boot.in_memory()?;
    let contents = contents(boot, &image)?;
    suite.ratio(
        &format!("pcr/predict_memory/{}", boot.name),
        "the same from memory, which is copied once / hash the same bytes in place",
        || boot.predict(&image).is_ok(),
        || contents.iter().map(Sha256::digest).collect::<Vec<_>>(),
    )
}

/// The parts of the image that are read.
fn contents<'i>(boot: &Boot, image: &'i MemoryImage) -> anyhow::Result<Vec<&'i [u8]>> {
    let esp = boot.folder.join("esp");
    let content = |file: &PathBuf| {
        let path = file.strip_prefix(&esp).ok()?.to_str()?;
        image.content(path)
    };
    let contents: Option<Vec<_>> = boot.files()?.iter().map(content).collect();
    contents.context("a boot file is not in memory")
}

fn hash_files(files: &[PathBuf]) -> io::Result<Vec<[u8; 32]>> {
    let mut buffer = vec![0; PIECE];
    let mut hash = |file: &PathBuf| hash_reader(File::open(file)?, &mut buffer);
    files.iter().map(&mut hash).collect()
}

fn hash_files_in_all_banks(files: &[PathBuf]) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    files.iter().try_for_each(|file| {
        let mut hashers = (Sha1::new(), Sha256::new(), Sha384::new(), Sha512::new());
        read_pieces(File::open(file)?, &mut buffer, |piece| {
            hashers.0.update(piece);
            hashers.1.update(piece);
            hashers.2.update(piece);
            hashers.3.update(piece);
        })?;
        let (sha1, sha256, sha384, sha512) = hashers;
        black_box((sha1.finalize(), sha256.finalize(), sha384.finalize(), sha512.finalize()));
        Ok(())
    })
}

fn hash_reader(reader: impl Read, buffer: &mut [u8]) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    read_pieces(reader, buffer, |piece| hasher.update(piece))?;
    Ok(hasher.finalize().into())
}

fn read_pieces(
    mut reader: impl Read,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    loop {
        let count = reader.read(buffer)?;
        if count == 0 {
            return Ok(());
        }
        take(buffer.get(..count).unwrap_or_default());
    }
}

/// Speed over the size of a program, up to 2 GiB.
fn sizes(suite: &Suite) -> anyhow::Result<()> {
    let name = "pcr/sizes";
    if !suite.wants(name) {
        return Ok(());
    }
    let mut buffer = vec![0; PIECE];
    let machine = PlatformState::new();
    for power in SIZES {
        let size = 1_u64 << power;
        let (program, uki) = (Program::new(1, size), Program::uki(1, size));
        let report = |what, bytes: u64, nanoseconds: f64, note| {
            #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
            let (size, bytes) = (size as f64, bytes as f64);
            let name = format!("{name}/{what}/{}", Unit::Bytes.label(size));
            let speed = bytes * 1e9 / nanoseconds;
            suite.figure(Figure::new(&name, speed, Unit::BytesPerSecond, note))
        };
        let read = |banks| PeFile::read_as(program.reader(), &PeRequest::new(banks)).is_ok();
        let time = suite.time(|| hash_reader(program.reader(), &mut buffer).is_ok());
        report("hash", size, time, "SHA-256 of the bytes")?;
        report("digest", size, suite.time(|| read(Banks::SHA256)), "Authenticode digest")?;
        report("banks", size, suite.time(|| read(Banks::ALL)), "the same in four banks")?;
        let (uki, image) = (uki.size(), uki.image());
        BootPredictor::new().predict(&image, &machine)?;
        let time = suite.time(|| BootPredictor::new().predict(&image, &machine).is_ok());
        let note = "all registers of a unified kernel image";
        report("uki", uki, time, note)?;
    }
    Ok(())
}

/// Images per second over the number of threads.
fn cores(suite: &Suite, boot: Option<Boot>) -> anyhow::Result<()> {
    let name = "pcr/cores";
    if !suite.wants(name) {
        return Ok(());
    }
    let (image, machine) = match boot {
        Some(boot) => (boot.in_memory()?, boot.machine),
        None => made()?,
    };
    let predictor = BootPredictor::new();
    predictor.predict(&image, &machine)?;
    let cores = thread::available_parallelism()?.get();
    for threads in 1..=u32::try_from(cores)? {
        let all = || {
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| black_box(predictor.predict(&image, &machine)).is_ok());
                }
            });
        };
        let speed = f64::from(threads) * 1e9 / suite.time_on_the_clock(all);
        let note = "images per second, all registers in parallel";
        let name = format!("{name}/{threads}");
        suite.figure(Figure::new(&name, speed, Unit::PerSecond, note))?;
    }
    Ok(())
}

/// A synthetic image the size of a real one.
fn made() -> anyhow::Result<(MemoryImage, PlatformState)> {
    let mut content = Vec::new();
    Program::uki(1, 14 << 20).reader().read_to_end(&mut content)?;
    let image = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", content);
    anyhow::ensure!(image.files("")?.len() == 1, "the image does not have exactly one file");
    Ok((image, synthetic::machine(1, 500)))
}

/// Time over the number of revoked digests, which are searched for each program.
fn revoked(suite: &Suite, boot: &Boot) -> anyhow::Result<()> {
    let name = "pcr/revoked";
    if !suite.wants(name) {
        return Ok(());
    }
    let image = boot.in_memory()?;
    for count in REVOKED {
        let list = synthetic::dbx(1, usize::try_from(count)?);
        let mut boot = boot.clone();
        boot.machine =
            boot.machine.with_variable("dbx", Guid::SECURITY_DATABASE, synthetic::ATTRIBUTES, list);
        boot.predict(&image)?;
        let time = suite.time(|| boot.predict(&image).is_ok());
        let note = "PCRs 4, 7 and 14 of one image with so many revoked digests";
        suite.figure(Figure::new(&format!("{name}/{count}"), time, Unit::Nanoseconds, note))?;
    }
    Ok(())
}
