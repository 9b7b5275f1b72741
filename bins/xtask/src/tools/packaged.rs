//! Servers for the tests, from Debian packages. They are extracted and not installed, since installing would
//! start a service.

use anyhow::Result;

use super::apt::Apt;
use super::archive::{Archive, unpack};
use super::{Tools, provide};

/// A server in a package.
pub(super) struct Packaged {
    /// Name of the package, and of the program in it.
    package: &'static str,
    /// Where the program is in the package.
    program: &'static str,
    /// Name in the cache.
    name: &'static str,
}

/// A registry: the Distribution project's.
pub(super) const REGISTRY: Packaged = Packaged {
    package: "docker-registry",
    program: "usr/bin/docker-registry",
    name: "docker-registry",
};
/// The NATS server in Debian, years older than the one in the Python index.
pub(super) const NATS: Packaged = Packaged {
    package: "nats-server",
    program: "usr/sbin/nats-server",
    name: "nats-server-debian",
};

/// Incremented when other files are needed from the packages.
const LAYOUT: &str = "1";

/// Fetches the program unless it exists.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt, packaged: &Packaged) -> Result<()> {
    let name = packaged.name;
    provide(tools, (name, LAYOUT), &tools.cache.join("bin").join(name), |dir| {
        let deb = Archive::of_machine(apt)?.download(dir, packaged.package)?;
        let unpacked = dir.join("unpacked");
        unpack(&deb, &unpacked)?;
        Ok(unpacked.join(packaged.program))
    })
}
