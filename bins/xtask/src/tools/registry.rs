//! A registry for the tests: the one of the Distribution project, as Debian packages it. It is taken
//! out of the package and not installed, since that would start a service.

use anyhow::Result;

use super::Tools;
use super::apt::Apt;
use super::archive::Archive;
use super::archive::rename;
use super::archive::unpack;
use super::is_stamped;
use super::remove_dir;
use super::scratch;
use super::stamp;

const NAME: &str = "docker-registry";
/// Raised when something else is wanted of the package.
const LAYOUT: &str = "1";

/// Fetches the program unless it is there.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<()> {
    let place = tools.cache.join("bin").join(NAME);
    if is_stamped(tools, NAME, LAYOUT) && place.is_file() {
        return Ok(());
    }
    let work = scratch(tools, NAME)?;
    let deb = Archive::of_machine(apt)?.download(&work, NAME)?;
    let unpacked = work.join("unpacked");
    unpack(&deb, &unpacked)?;
    rename(&unpacked.join("usr/bin").join(NAME), &place)?;
    stamp(tools, NAME, LAYOUT)?;
    remove_dir(&work)
}
