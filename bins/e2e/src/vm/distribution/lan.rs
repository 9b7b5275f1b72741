//! The network of a machine, in this program's own network namespace: a bridge, cables to it, and servers that answer
//! when they are told to.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::qemu::must;
use crate::volume;

/// What the trust anchor is called.
pub(in crate::vm) const NAME: &str = "anchor.test";
/// The cables; a machine uses them from the first one on.
pub(in crate::vm) const CABLES: [&str; 2] = ["tec-a", "tec-b"];
/// Every link, with addresses from the ranges for private networks (RFC 1918; RFC 4193).
const LINKS: [&str; 8] = [
    "link set lo up",
    "link add tec-lan type bridge",
    "addr add 10.0.2.2/24 dev tec-lan",
    "addr add fd00:2::2/64 dev tec-lan nodad",
    "link set tec-lan up",
    "route add blackhole 10.9.9.9",
    "tuntap add tec-a mode tap",
    "tuntap add tec-b mode tap",
];

/// A server of the network.
#[derive(Clone, Copy, Debug)]
pub(in crate::vm) enum Server {
    /// DHCP, which names the server of names and the gateway.
    Addresses,
    /// Router advertisements and stateless DHCPv6.
    Routers,
    /// DNS: one address of IPv4 and one of IPv6.
    Names,
    /// DNS: two addresses of IPv4; at one of them nobody answers.
    NamesWithADeadAddress,
}

impl Server {
    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Addresses => &[
                "--port=0",
                "--interface=tec-lan",
                "--dhcp-range=10.0.2.50,10.0.2.99,1h",
                "--dhcp-option=option:dns-server,10.0.2.2",
            ],
            Self::Routers => &[
                "--port=0",
                "--interface=tec-lan",
                "--enable-ra",
                "--dhcp-range=fd00:2::,ra-stateless,64,1h",
                "--dhcp-option=option6:dns-server,[fd00:2::2]",
            ],
            Self::Names => &["--address=/anchor.test/10.0.2.2", "--address=/anchor.test/fd00:2::2"],
            Self::NamesWithADeadAddress => {
                &["--host-record=anchor.test,10.9.9.9", "--host-record=anchor.test,10.0.2.2"]
            }
        }
    }
}

/// The network; its servers end with it.
#[derive(Debug)]
pub(in crate::vm) struct Lan {
    directory: PathBuf,
    servers: Vec<Child>,
}

impl Lan {
    /// A network where nobody answers yet.
    pub(in crate::vm) fn new(directory: &Path) -> anyhow::Result<Self> {
        for words in LINKS {
            must(volume::command("ip").args(words.split(' ')))?;
        }
        for cable in CABLES {
            must(volume::command("ip").args(["link", "set", cable, "master", "tec-lan", "up"]))?;
        }
        Ok(Self { directory: directory.to_owned(), servers: Vec::new() })
    }

    /// Starts a server after some time.
    pub(in crate::vm) fn serve(&mut self, server: Server, after: Duration) -> anyhow::Result<()> {
        let log = File::create(self.directory.join(format!("{server:?}.log")))?;
        let leases = self.directory.join(format!("{server:?}.leases"));
        let mut dnsmasq = later(after, "exec dnsmasq \"$@\"");
        dnsmasq
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"])
            .args(["--user=root", "--bind-dynamic", "--log-facility=-", "--log-dhcp"])
            .arg(format!("--dhcp-leasefile={}", leases.display()))
            .args(server.options())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.servers.push(dnsmasq.spawn().context("cannot run dnsmasq")?);
        Ok(())
    }

    /// Stops a process, as a server that takes connections and does not answer, and lets it go on after some time.
    pub(in crate::vm) fn hold(&mut self, pid: u32, after: Duration) -> anyhow::Result<()> {
        must(volume::command("kill").args(["-STOP", &pid.to_string()]))?;
        let waker = later(after, "kill -CONT \"$1\"").arg(pid.to_string()).spawn();
        self.servers.push(waker.context("cannot run sh")?);
        Ok(())
    }

    /// Ends all servers.
    pub(in crate::vm) fn clear(&mut self) {
        for mut server in self.servers.drain(..) {
            // Fails only if it is already gone.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A shell that runs a command after some time, and becomes it.
fn later(time: Duration, command: &str) -> Command {
    let mut shell = volume::command("sh");
    shell.arg("-c").arg(format!("sleep {}; {command}", time.as_secs())).arg("sh");
    shell
}
