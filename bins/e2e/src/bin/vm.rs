//! Plays the life of nodes in virtual machines.

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
    let artefacts = settings.artefacts.display().to_string();
    let mut stage = Stage::new(settings)?;
    let played = stage.play(&scenes);
    let seconds = stage.story.elapsed().as_secs_f64();
    played.with_context(|| {
        format!("failed after {seconds:.1} s; consoles and logs are in {artefacts}")
    })?;
    say(&format!("\nAll scenes in {seconds:.1} s. Consoles and logs: {artefacts}"));
    Ok(exit::OK)
}
