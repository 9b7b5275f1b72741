//! Disk keys and trusted attestation keys, in Secrets.

use serde_json::{Value, json};
use tec_core::secret::SecretBytes;

use super::super::super::desired::{Content, State};
use super::super::super::item::Item;
use super::super::layout::{Layout, resource_file};
use super::{Form, RenderError};
use crate::config::Generation;

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
            self.hide(&machine, "root", secret);
            machines.push(machine);
        }
        let kept = desired.kept().iter().filter_map(|item| match item {
            Item::Secret(path) => path.machine(),
            _ => None,
        });
        self.kept.extend(kept.map(|machine| (machine.to_string(), "root".to_owned())));
        self.mount_machines(&machines, layout);
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
            self.hide(name, "public_key", pem);
            let items = json!([{"key": "public_key", "path": file}]);
            sources.push(json!({"secret": {"name": name, "items": items}}));
        }
        let source = json!({"projected": {"sources": sources}});
        self.pod.mount("trusted-ak-keys", source, std::slice::from_ref(&layout.ak_dir));
        Ok(())
    }
}
