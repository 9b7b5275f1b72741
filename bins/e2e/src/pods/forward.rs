//! From the loopback address of this machine into the network of the node.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use anyhow::Context as _;
use rustix::fd::AsFd as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::daemon::NAMESPACE;

/// Listens here, and connects there.
pub(super) fn start(to: SocketAddr) -> anyhow::Result<SocketAddr> {
    let path = format!("/run/netns/{NAMESPACE}");
    let namespace = File::open(&path).with_context(|| format!("open {path}"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let here = listener.local_addr()?;
    let (sender, entered) = mpsc::channel();
    thread::spawn(move || {
        // A thread that moves keeps the sockets that it has; new ones are made there
        // (Linux, network_namespaces(7)).
        let network = Some(LinkNameSpaceType::Network);
        let moved = move_into_link_name_space(namespace.as_fd(), network);
        let _ = sender.send(moved);
        if moved.is_ok() {
            for near in listener.incoming().map_while(Result::ok) {
                if let Ok(far) = TcpStream::connect(to) {
                    let _ = join(near, far);
                }
            }
        }
    });
    entered.recv()?.context("enter the network of the node")?;
    Ok(here)
}

/// Both ways, until both ends are done.
fn join(near: TcpStream, far: TcpStream) -> io::Result<()> {
    for (mut from, mut to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
    Ok(())
}
