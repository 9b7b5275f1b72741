//! systemd maps the state disk: it gets the key in a file, as it expects.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::host::{Call, HostPrograms, LuksDisk, StateDirectory, write_whole};
use tec_node::port::MappedDisk;
use tec_node::state::NodeState;

use crate::instance::settings::Disk;

/// Readable only by root.
const MARK_MODE: u32 = 0o400;
/// Time limit: Argon2id and a check of the file system.
const LIMIT: Duration = Duration::from_mins(5);

/// Writes the key, starts the units, and reads the state.
#[derive(Clone, Debug)]
pub struct SystemdMapping {
    disk: Arc<LuksDisk>,
    header_file: PathBuf,
    recovering: PathBuf,
    units: Vec<String>,
    state: StateDirectory,
    programs: Arc<HostPrograms>,
}

impl SystemdMapping {
    /// `recovering` is written before the key; `units` map and mount the disk, in this order; `state` is on
    /// the disk.
    pub fn new(
        disk: Arc<LuksDisk>,
        recovering: PathBuf,
        settings: &Disk,
        state: StateDirectory,
        programs: Arc<HostPrograms>,
    ) -> Self {
        Self {
            disk,
            header_file: settings.header_file.clone(),
            recovering,
            units: settings.units.clone(),
            state,
            programs,
        }
    }
}

/// Starts what maps and mounts the state disk.
pub(super) async fn start(programs: &HostPrograms, units: &[String]) -> Result<(), PortError> {
    for unit in units {
        let call = Call {
            program: "systemctl",
            arguments: vec![OsString::from("start"), unit.into()],
            input: None,
            limit: LIMIT,
        };
        let started = programs.run(call).await;
        started.map_err(|error| error.during("start what maps the state disk"))?;
    }
    Ok(())
}

#[async_trait]
impl MappedDisk for SystemdMapping {
    async fn map(&self, key: &SecretBytes) -> Result<NodeState, PortError> {
        self.disk.pin_header(key, &self.header_file).await?;
        write_whole(&self.recovering, &[], MARK_MODE).map_err(|error| {
            let operation = format!("write {}", self.recovering.display());
            PortError::new(PortErrorKind::Unavailable, operation).because(error)
        })?;
        self.disk.hand_over(key)?;
        start(&self.programs, &self.units).await?;
        let state = self.state.read_state()?;
        state.ok_or_else(|| {
            PortError::new(PortErrorKind::NotFound, "find node_state.json on the state disk")
        })
    }
}
