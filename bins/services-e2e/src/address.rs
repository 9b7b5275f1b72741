//! Addresses for servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU8, Ordering};

/// How many addresses this process has given out.
static GIVEN: AtomicU8 = AtomicU8::new(0);

/// An address of 127.0.0.1 that nobody listens on at the moment.
///
/// # Errors
/// There is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    free_on(Ipv4Addr::LOCALHOST)
}

/// An address of this machine that nobody listens on, and that nobody else takes meanwhile.
///
/// Ports of 127.0.0.1 are also given to whoever connects to something. All of 127.0.0.0/8 is this
/// machine (RFC 6890), and each process has a part of its own.
///
/// # Errors
/// There is none.
pub fn own_address() -> anyhow::Result<SocketAddr> {
    let [_, _, high, low] = process::id().to_be_bytes();
    let last = GIVEN.fetch_add(1, Ordering::Relaxed);
    free_on(Ipv4Addr::new(127, 1 | high, low, 1 | last))
}

fn free_on(address: Ipv4Addr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    Ok(listener.local_addr()?)
}
