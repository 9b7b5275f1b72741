//! Programs that `cargo xtask tools` sets up.

use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::path::PathBuf;

use anyhow::Context as _;

/// Where the program is.
///
/// # Errors
/// It is not there: nothing is skipped for that.
pub fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("TEC_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir.join("tec")))
        .or_else(|| variable("HOME").map(|dir| dir.join(".cache/tec")))
        .context("no cache of tools; run `cargo xtask tools`")?;
    let program = cache.join("bin").join(name);
    anyhow::ensure!(
        program.is_file(),
        "{} is missing; run `cargo xtask tools`",
        program.display()
    );
    Ok(program)
}

/// An address of this machine that nobody listens on at the moment.
///
/// # Errors
/// There is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?)
}
