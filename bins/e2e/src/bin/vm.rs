//! Plays the life of nodes in virtual machines.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tec_e2e::story::say;
use tec_e2e::vm::{Settings, Stage};
use tec_support::exit;

fn main() -> ExitCode {
    exit::finish(run(Settings::parse()))
}

fn run(settings: Settings) -> anyhow::Result<u8> {
    let scenes = settings.scenes.clone();
    let folder = settings.artefacts.clone();
    let artefacts = folder.display();
    let mut stage = Stage::new(settings)?;
    let played = stage.play(&scenes);
    let seconds = stage.story.elapsed().as_secs_f64();
    played.with_context(|| {
        format!("failed after {seconds:.1} s; consoles and logs are in {artefacts}")
    })?;
    drop(stage);
    remove_disks(&folder)?;
    say(&format!("\nAll scenes in {seconds:.1} s. Consoles and logs: {artefacts}"));
    Ok(exit::OK)
}

/// Disks and initial file systems are half a gigabyte, and nobody looks at them once everything passed.
fn remove_disks(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_disks(&path)?;
        } else if path.extension().is_some_and(|end| end == "img" || end == "ext4") {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}
