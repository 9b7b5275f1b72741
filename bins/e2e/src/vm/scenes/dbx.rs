//! dbx updates whose effect is predicted before the reboot, which would otherwise be the machine's last one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tec_tpm::compute::{Guid, PeFile, PlatformState};

use crate::qemu::VariableStore;
use crate::qemu::key::{SHA256, signature_list};
use crate::qemu::variables::SIGNED;
use crate::story::Story;
use crate::vm::boot::Ended;
use crate::vm::image::{Image, SHIM};
use crate::vm::node::Node;
use crate::vm::stage::Stage;

impl Stage {
    /// One update revokes an unrelated program, which the machine's baseline follows, and its rollback is
    /// refused. The other one revokes shim.
    pub(super) fn updates_of_dbx(
        &self,
        story: &mut Story,
        node: &mut Node,
        image: &Image,
    ) -> anyhow::Result<()> {
        let before = fs::read(node.variables())?;
        story.works("an update of dbx: foretold, and the disk opens", || {
            let update = self.update_of_dbx("other", &[0x5a; 32])?;
            ensure!(self.foretold_with(node, image, &update)?, "not foretold");
            append(node, "dbx", Guid::SECURITY_DATABASE, &fs::read(&update)?)?;
            self.boot_of(node, image, &Ended::Root(0))
        })?;
        story.works("the former dbx: the disk stays closed", || {
            let after = fs::read(node.variables())?;
            fs::write(node.variables(), &before)?;
            let ended = node.boot()?.ended()?;
            ensure!(ended == Ended::Refused("TEC-A409".to_owned()), "{ended:?}");
            fs::write(node.variables(), after).context("cannot write the variables")
        })?;
        story.works("an update of dbx that revokes shim is foretold", || {
            let shim = fs::read(image.directory().join(SHIM)).context("cannot read shim")?;
            let digest = PeFile::read(shim.as_slice(), &[])?.authenticode();
            let update = self.update_of_dbx("shim", digest.as_bytes())?;
            ensure!(!self.foretold_with(node, image, &update)?, "not foretold");
            Ok(())
        })
    }

    /// A file with an update that revokes the program with this digest.
    fn update_of_dbx(&self, name: &str, digest: &[u8]) -> anyhow::Result<PathBuf> {
        let path = self.settings.artefacts.join(format!("dbx-{name}.esl"));
        fs::write(&path, signature_list(SHA256, digest)?)
            .context("cannot write an update of dbx")?;
        Ok(path)
    }

    fn foretold_with(&self, node: &Node, image: &Image, update: &Path) -> anyhow::Result<bool> {
        let update = update.to_string_lossy();
        self.foretold(node, image, &["--dbx-update", &update])
    }
}

/// Applies a signed update of a variable like firmware, which appends it.
pub(super) fn append(node: &Node, name: &str, vendor: Guid, update: &[u8]) -> anyhow::Result<()> {
    let bytes = fs::read(node.variables())?;
    let machine = PlatformState::from_variable_store(&bytes)?;
    let value = [machine.variable(name, vendor).unwrap_or_default(), update].concat();
    let store = VariableStore::new(bytes)?.with(name, vendor, SIGNED, &value)?;
    fs::write(node.variables(), store.build()).context("cannot write the variables")
}
