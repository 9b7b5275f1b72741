//! Addresses for servers.

use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::net::TcpListener;

/// An address of this machine that nobody listens on at the moment.
///
/// # Errors
/// There is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?)
}
