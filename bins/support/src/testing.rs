//! For tests (feature `test-util`): ports for servers that run as separate programs.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;

/// Start of a port range that the kernel never assigns by itself: its own range starts at 32768 (Linux,
/// ip-sysctl.rst, `ip_local_port_range`).
const FIRST: u16 = 12_000;
const PORTS: u16 = 20_000;
/// Distance between the starting points of processes, so that few try the same port.
const EACH: u32 = 97;

/// Number of ports that this process has tried.
static TRIED: AtomicU16 = AtomicU16::new(0);
/// The claims of this process, held until it ends.
static CLAIMS: Mutex<Vec<net::UnixListener>> = Mutex::new(Vec::new());

/// A port of 127.0.0.1 for a server that another program starts later. No program listens on the port now, no
/// outgoing connection gets it (as can happen with a port chosen by the kernel), and no other caller of this
/// function gets it while this process runs.
pub fn free_port() -> io::Result<u16> {
    let first = process::id().wrapping_mul(EACH) % u32::from(PORTS);
    for _ in 0..PORTS {
        let next = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from((first + next) % u32::from(PORTS)).unwrap_or_default();
        // Claim first: the bind below must not look like a server to other processes.
        let Ok(claim) = claim(port) else { continue };
        CLAIMS.lock().push(claim);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// A name without a file that only one process at a time can hold (Linux, unix(7), "abstract").
fn claim(port: u16) -> io::Result<net::UnixListener> {
    let name = net::SocketAddr::from_abstract_name(format!("tec-port-{port}"))?;
    net::UnixListener::bind_addr(&name)
}

/// An address with a [`free_port`].
pub fn free_address() -> io::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_one_of_the_kernels_own_choice() {
        let ports: BTreeSet<u16> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| *port < 32_768));
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_passed_over() {
        let next = free_port().unwrap() + 1;
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        let given = free_port().unwrap();
        assert!(taken.is_err() || given != next, "{given}");
    }

    #[test]
    fn a_port_that_another_process_was_given_is_passed_over() {
        let next = free_port().unwrap() + 1;
        // Nothing listens there yet: its server is still starting.
        let other = claim(next);
        let given = free_port().unwrap();
        assert!(other.is_err() || given != next, "{given}");
    }
}
