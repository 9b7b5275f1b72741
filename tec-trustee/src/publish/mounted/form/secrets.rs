//! Disk keys, in Secrets.

use serde_json::{Value, json};

use super::super::super::desired::{Content, State};
use super::super::super::item::Item;
use super::super::layout::{Layout, resource_file};
use super::{Form, RenderError};

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
            let machine = machine.ok_or_else(|| RenderError::Path(path.clone()))?;
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

    /// One volume for all, since all their files are in one directory.
    fn mount_machines(&mut self, machines: &[String], layout: &Layout) {
        let sources = machines.iter().map(|machine| {
            let items = json!([{"key": "root", "path": resource_file(machine)}]);
            json!({"secret": {"name": machine, "items": items}})
        });
        let sources: Vec<Value> = sources.collect();
        let source = json!({"projected": {"sources": sources}});
        self.pod.mount("resource-dir", source, layout.below("repository"));
    }
}
