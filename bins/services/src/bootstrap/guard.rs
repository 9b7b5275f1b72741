//! Runs the vault as a child, and empties its storage when the controller asks for it.
//!
//! The vault's container runs this program around the vault, since nothing else can stop it. A reset is
//! requested only while the vault holds nothing; see [`tec_services::vault`]. A request next to a
//! wrapped key is stale: it is removed without a reset.
//!
//! The vault's certificate, for pods that join it, is not from the vault. When its file changes, the vault gets
//! SIGHUP, and reads it again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tec_services::shell::{Disk as _, Note};
use tec_support::serve::Shutdown;
use tokio::process::{Child, Command};

use crate::bootstrap::disk::Volume;

/// Polling interval for requests.
const POLL: Duration = Duration::from_millis(200);

/// Polling interval for another certificate.
const LOOK: Duration = Duration::from_secs(1);

/// Runs `command` until it exits or until shutdown, and serves resets. The vault reads its certificate again
/// when the file `certificate` changes.
/// Errors: the vault cannot be started, exited by itself, or its storage cannot be emptied.
pub async fn run(
    command: &[OsString],
    storage: &Path,
    volume: &Volume,
    certificate: Option<&PathBuf>,
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    loop {
        let mut child = start(command)?;
        let vault = pid(&child)?;
        tokio::select! {
            () = shutdown.triggered() => return stop(&mut child).await,
            ended = child.wait() => {
                let status = ended.context("cannot wait for the vault")?;
                anyhow::bail!("the vault exited on its own: {status}");
            }
            due = requested(volume) => due?,
            failed = reload(vault, certificate) => failed?,
        }
        stop(&mut child).await?;
        // Only now is nothing writing any more; the request may have been withdrawn in the meantime.
        if is_due(volume)? {
            tracing::warn!(storage = %storage.display(), "the vault's empty storage is reset");
            empty(storage).with_context(|| format!("cannot empty {}", storage.display()))?;
            volume.remove(Note::Reset).context("cannot remove the reset request")?;
        }
    }
}

fn start(command: &[OsString]) -> anyhow::Result<Child> {
    let (program, args) =
        command.split_first().context("the command line names no program for the vault")?;
    Command::new(program)
        .args(args)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

fn pid(child: &Child) -> anyhow::Result<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    id.and_then(Pid::from_raw).context("the vault has no process ID")
}

/// Makes the vault read its certificate again whenever that changes. Ends only with an error.
async fn reload(vault: Pid, certificate: Option<&PathBuf>) -> anyhow::Result<()> {
    let Some(file) = certificate else {
        return std::future::pending().await;
    };
    // What cannot be read now is another one later.
    let mut known = std::fs::read(file).ok();
    loop {
        tokio::time::sleep(LOOK).await;
        match std::fs::read(file) {
            Ok(now) if known.as_ref() != Some(&now) => {
                tracing::info!(file = %file.display(), "the vault reads its certificate again");
                kill_process(vault, Signal::HUP).context("cannot signal the vault")?;
                known = Some(now);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "cannot read the certificate");
            }
        }
    }
}

async fn requested(volume: &Volume) -> anyhow::Result<()> {
    while !is_due(volume)? {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Whether there is a request to reset a vault that holds nothing.
fn is_due(volume: &Volume) -> anyhow::Result<bool> {
    if !volume.has(Note::Reset).context("cannot check for a reset request")? {
        return Ok(false);
    }
    // If a key is stored here, its vault may be in use.
    let is_due = !volume.has(Note::Key).context("cannot check for the wrapped key")?;
    if !is_due {
        tracing::error!("a request to empty a vault whose key is stored is not obeyed");
        volume.remove(Note::Reset).context("cannot remove the reset request")?;
    }
    Ok(is_due)
}

async fn stop(child: &mut Child) -> anyhow::Result<()> {
    // A vault survives SIGKILL at any time: its storage is a log.
    child.kill().await.context("cannot stop the vault")
}

/// Removes the contents of the directory, but not the directory, which may be a mount.
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

#[cfg(test)]
mod tests {
    use tec_support::serve::Shutdown;

    use super::*;

    /// A vault with some data in its storage, and a volume with a request to empty it.
    fn prepared() -> (tempfile::TempDir, Volume) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["storage", "volume"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("storage/data"), b"x").unwrap();
        let volume = Volume::new(dir.path().join("volume"));
        volume.write(Note::Reset, b"").unwrap();
        (dir, volume)
    }

    /// Waits until the request is gone.
    async fn served(dir: &Path, volume: &Volume) {
        let command = ["sleep", "600"].map(OsString::from);
        let storage = dir.join("storage");
        let (shutdown, _signals) = Shutdown::on_signals().unwrap();
        let done = async {
            while volume.has(Note::Reset).unwrap() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            ended = run(&command, &storage, volume, None, shutdown) => ended.unwrap(),
            () = done => {}
        }
    }

    #[tokio::test]
    async fn a_vault_that_holds_nothing_is_emptied_when_that_is_asked_for() {
        let (dir, volume) = prepared();
        served(dir.path(), &volume).await;
        assert!(!dir.path().join("storage/data").exists());
    }

    #[tokio::test]
    async fn a_stale_request_beside_a_wrapped_key_is_removed_and_empties_nothing() {
        let (dir, volume) = prepared();
        volume.write(Note::Key, b"key").unwrap();
        served(dir.path(), &volume).await;
        assert!(dir.path().join("storage/data").exists());
    }
}
