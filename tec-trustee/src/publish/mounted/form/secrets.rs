//! Disk keys and trusted attestation keys, in Secrets.

use serde_json::{Value, json};
use tec_core::secret::SecretBytes;

use super::super::super::desired::{Content, State};
use super::super::super::item::Item;
use super::super::layout::{Layout, SHARDS, SecretMode, resource_file, shard, shard_name};
use super::{Form, RenderError, shards};
use crate::config::Generation;

/// Where the sidecar finds the disk keys.
const MIRROR_SOURCE: &str = "/run/tec/resource-keys";

impl Form {
    pub(super) fn resources(
        &mut self,
        desired: &State,
        layout: &Layout,
    ) -> Result<(), RenderError> {
        let mut machines = Vec::new();
        for (item, entry) in desired.items() {
            let (Item::Secret(path), Content::Secret(secret)) = (item, &entry.content) else {
                continue;
            };
            let machine = path.machine();
            let machine = machine.ok_or_else(|| RenderError::Path { path: path.clone() })?;
            let machine = machine.to_string();
            let secret = secret.duplicate("it goes into a Secret of the cluster");
            match layout.secrets {
                SecretMode::PerMachine => self.hide(&machine, "root", secret),
                SecretMode::Aggregated => {
                    let object = shard_name("trustee-resources", shard(&machine));
                    self.hide(&object, &machine, secret);
                }
            }
            machines.push(machine);
        }
        let kept = desired.kept().iter().filter_map(|item| match item {
            Item::Secret(path) => path.machine(),
            _ => None,
        });
        self.kept.extend(kept.map(|machine| {
            let machine = machine.to_string();
            match layout.secrets {
                SecretMode::PerMachine => (machine, "root".to_owned()),
                SecretMode::Aggregated => {
                    (shard_name("trustee-resources", shard(&machine)), machine)
                }
            }
        }));
        match layout.secrets {
            SecretMode::PerMachine => self.mount_machines(&machines, layout),
            SecretMode::Aggregated => self.mount_shards(layout),
        }
        Ok(())
    }

    /// One volume per machine, or since v0.19 one for all, since all their files are in one directory.
    fn mount_machines(&mut self, machines: &[String], layout: &Layout) {
        let dir = layout.resource_dir();
        if layout.generation == Generation::Mounted {
            let memory = json!({"emptyDir": {"medium": "Memory"}});
            self.pod.mount("resource-dir", memory, std::slice::from_ref(&dir));
            self.pod.make_writable("resource-dir");
            for machine in machines {
                let secret = json!({"secret": {"secretName": machine}});
                self.pod.mount(machine, secret, &[format!("{dir}/{machine}")]);
            }
            return;
        }
        let sources = machines.iter().map(|machine| {
            let file = resource_file(layout.generation, machine);
            json!({"secret": {"name": machine, "items": [{"key": "root", "path": file}]}})
        });
        let sources: Vec<Value> = sources.collect();
        self.pod.mount("resource-dir", json!({"projected": {"sources": sources}}), &[dir]);
    }

    /// All disk keys for the sidecar, and memory for its output.
    fn mount_shards(&mut self, layout: &Layout) {
        for number in 0..SHARDS {
            self.secrets.entry(shard_name("trustee-resources", number)).or_default();
        }
        let dir = layout.resource_dir();
        let memory = json!({"emptyDir": {"medium": "Memory"}});
        self.pod.mount("resource-dir", memory, std::slice::from_ref(&dir));
        self.pod.mount_in_mirror("resource-dir", &dir, true);
        let keys = shards("trustee-resources", "secret");
        self.pod.mount("resource-keys", keys, &[]);
        self.pod.mount_in_mirror("resource-keys", MIRROR_SOURCE, false);
    }

    /// The directory of trusted keys, which must exist even when it is empty (Trustee, verifiers).
    pub(super) fn keys(&mut self, desired: &State, layout: &Layout) -> Result<(), RenderError> {
        let count = desired.trusted().len();
        if u32::try_from(count).map_or(true, |count| count > layout.max_aks) {
            return Err(RenderError::TooManyKeys { count, max: layout.max_aks });
        }
        let mut sources = Vec::new();
        for (name, key) in desired.trusted() {
            let pem = SecretBytes::new(key.to_pem().into_bytes());
            let file = format!("{name}.pub");
            match layout.secrets {
                SecretMode::PerMachine => {
                    self.hide(name, "public_key", pem);
                    let items = json!([{"key": "public_key", "path": file}]);
                    sources.push(json!({"secret": {"name": name, "items": items}}));
                }
                SecretMode::Aggregated => {
                    self.hide(&shard_name("trusted-ak-keys", shard(name)), &file, pem);
                }
            }
        }
        let source = match layout.secrets {
            SecretMode::PerMachine => json!({"projected": {"sources": sources}}),
            SecretMode::Aggregated => {
                for number in 0..SHARDS {
                    self.secrets.entry(shard_name("trusted-ak-keys", number)).or_default();
                }
                shards("trusted-ak-keys", "secret")
            }
        };
        self.pod.mount("trusted-ak-keys", source, std::slice::from_ref(&layout.ak_dir));
        Ok(())
    }
}
