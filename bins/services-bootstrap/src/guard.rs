//! Runs the vault as a child, and empties its storage when the controller asks for it.
//!
//! The vault's container runs this program around the vault, since nobody else can stop it. A reset
//! is asked for only while the vault holds nothing; see [`tec_core::service::vault`].

use std::ffi::OsString;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tec_support::serve::Shutdown;
use tokio::process::Child;
use tokio::process::Command;

/// How often a request is looked for.
const POLL: Duration = Duration::from_millis(200);

/// Runs `command` until it ends or shutdown, and serves resets.
///
/// # Errors
/// The vault cannot be started, ended by itself, or its storage cannot be emptied.
pub async fn run(
    command: &[OsString],
    storage: &Path,
    request: PathBuf,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    loop {
        let mut child = start(command)?;
        tokio::select! {
            () = shutdown.triggered() => return stop(&mut child).await,
            ended = child.wait() => {
                let status = ended.context("wait for the vault")?;
                anyhow::bail!("the vault ended by itself: {status}");
            }
            () = requested(&request) => {}
        }
        stop(&mut child).await?;
        tracing::warn!(storage = %storage.display(), "the vault's empty storage is reset");
        empty(storage).with_context(|| format!("empty {}", storage.display()))?;
        std::fs::remove_file(&request).with_context(|| format!("remove {}", request.display()))?;
    }
}

fn start(command: &[OsString]) -> anyhow::Result<Child> {
    let (program, args) = command.split_first().context("name the vault's program")?;
    Command::new(program)
        .args(args)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", program.display()))
}

async fn requested(request: &Path) {
    while !request.exists() {
        tokio::time::sleep(POLL).await;
    }
}

async fn stop(child: &mut Child) -> anyhow::Result<()> {
    // A vault survives SIGKILL at any time: its storage is a log.
    child.kill().await.context("stop the vault")
}

/// Removes what is in the directory, and keeps the directory, which may be a mount.
fn empty(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
