//! What a cloud provides to a bootstrapped node: its metadata and settings, as a script that the firmware
//! passes to the node.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;

use super::member::PARTITION;
use crate::admin::INIT_SECRET;

/// Address of every node in its own network.
const ADDRESS: &str = "10.0.2.15";
/// Ends the content of a file in the script.
const END: &str = "END_OF_FILE";

/// Files for one node.
#[derive(Debug)]
pub(super) struct Cloud {
    files: Vec<(String, String)>,
    /// Additional units to start.
    services: Vec<&'static str>,
    /// Additional script to run.
    beside: &'static str,
}

impl Cloud {
    /// A control plane that waits for Init, and has no peer.
    pub(super) fn of_plane() -> Self {
        Self::new("plane", "ControlPlane", ADDRESS, &json!([]), ["", ""])
    }

    /// A worker that finds the join service with this key at a port of the host.
    pub(super) fn of_worker(name: &str, host: &str, port: u16, key: &str) -> Self {
        let peers = json!([{"Name": "plane", "Role": "ControlPlane", "VPCIP": host}]);
        let (settings, key) = (format!("join_port = {port}\n"), format!("'{key}'"));
        Self::new(name, "Worker", host, &peers, [&settings, &key])
    }

    fn new(
        name: &str,
        role: &str,
        endpoint: &str,
        peers: &Value,
        [settings, keys]: [&str; 2],
    ) -> Self {
        let metadata = json!({
            "self": {"Name": name, "Role": role, "VPCIP": ADDRESS},
            "peers": peers, "endpoint": endpoint,
            "initSecretHash": format!("sha256:{}", Sha256Digest::of(INIT_SECRET)),
        });
        let settings = format!(
            "{settings}[metadata]\nkind = 'file'\npath = '/etc/tec/metadata.json'\n\
             [disk]\ndevice = '{PARTITION}'\n\
             [join_services]\ndangerous_any_measurements = true\nattestation_keys = [{keys}]\n"
        );
        let cloud = Self { files: Vec::new(), services: Vec::new(), beside: "" };
        cloud.with("metadata.json", &metadata.to_string()).with("bootstrapper.toml", &settings)
    }

    /// Adds a file in /etc/tec.
    pub(super) fn with(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Also starts this unit.
    pub(super) fn with_service(mut self, name: &'static str) -> Self {
        self.services.push(name);
        self
    }

    /// Also runs this script.
    pub(super) fn beside(mut self, script: &'static str) -> Self {
        self.beside = script;
        self
    }

    /// Writes the script.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let file = |(name, text): &(String, String)| {
            format!("cat > /etc/tec/{name} <<'{END}'\n{text}\n{END}\n")
        };
        let start = |name: &&str| format!("systemctl start --no-block {name}\n");
        let make = "mkdir -p /etc/tec\n".to_owned();
        let files = self.files.iter().map(file);
        let services = self.services.iter().map(start);
        let beside = self.beside.to_owned();
        let script: String =
            [make].into_iter().chain(files).chain(services).chain([beside]).collect();
        fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))
    }
}
