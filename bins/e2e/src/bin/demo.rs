//! Plays the main use case end to end.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tec_e2e::scenes::Stage;
use tec_e2e::settings::Settings;

fn main() -> ExitCode {
    tec_support::exit::finish(run(Settings::parse()))
}

fn run(settings: Settings) -> anyhow::Result<u8> {
    let mut directory = tempfile::Builder::new()
        .prefix("tec-demo-")
        .disable_cleanup(settings.keep)
        .tempdir()
        .context("cannot create a working directory")?;
    let report = settings.report.clone();
    let settings_keep = settings.keep;
    let mut stage = Stage::new(settings, directory.path())?;
    let played = stage.play();
    let seconds = stage.story.elapsed().as_secs_f64();
    // Keeps the files of a failed run for inspection.
    directory.disable_cleanup(settings_keep || played.is_err());
    played.with_context(|| {
        format!("failed after {seconds:.1} s; logs are in {}", directory.path().display())
    })?;
    tec_e2e::story::say(&format!("\nAll scenes in {seconds:.1} s. Report: {}", report.display()));
    Ok(tec_support::exit::OK)
}
