//! How the initramfs of a distribution reaches its servers, and when it asks for a passphrase.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::debian::{GRUB_CONFIG, SYSTEM, bind, opened};
use crate::story::Story;
use crate::vm::distribution::{CABLES, Chain, Debian, Lan, PASSPHRASE, Server, command_line};
use crate::vm::stage::Stage;
use crate::vm::table;

/// Time limit for a passphrase to be taken.
const TYPING: Duration = Duration::from_mins(4);
/// How late a late answer is, counted from the question for a passphrase.
const LATE: Duration = Duration::from_mins(1);
const VERY_LATE: Duration = Duration::from_secs(90);

/// What comes after the question for a passphrase.
#[derive(Clone, Copy, Debug)]
enum Later {
    Nothing,
    Starts(Server, Duration),
    /// The trust anchor stops, and goes on.
    Stops(Duration),
}

/// A network.
#[derive(Clone, Copy, Debug)]
struct Network {
    what: &'static str,
    /// More words on the kernel command line.
    words: &'static str,
    cables: &'static [&'static str],
    servers: &'static [Server],
    later: Later,
    /// Whether the disk opens by itself: with initramfs-tools, with dracut. `None`: it is not tried.
    opens: [Option<bool>; 2],
}

const DHCP: Network = Network {
    what: "DHCP; the server by its name",
    words: "",
    cables: CABLES.split_at(1).0,
    servers: &[Server::Addresses, Server::Names],
    later: Later::Nothing,
    opens: [Some(true); 2],
};
const NETWORKS: [Network; 10] = [
    DHCP,
    Network {
        what: "DHCP answers 90 s after the question",
        servers: &[Server::Names],
        later: Later::Starts(Server::Addresses, VERY_LATE),
        ..DHCP
    },
    Network {
        what: "DNS answers 60 s after the question",
        servers: &[Server::Addresses],
        later: Later::Starts(Server::Names, LATE),
        ..DHCP
    },
    Network {
        what: "the server takes connections and answers 60 s after the question",
        later: Later::Stops(LATE),
        ..DHCP
    },
    Network {
        what: "the name has two addresses, and at one of them packets are dropped",
        servers: &[Server::Addresses, Server::NamesWithADeadAddress],
        ..DHCP
    },
    Network {
        what: "IPv6 alone: router advertisements",
        servers: &[Server::Routers, Server::Names],
        opens: [Some(false), Some(true)],
        ..DHCP
    },
    Network { what: "nobody answers", servers: &[], opens: [Some(false); 2], ..DHCP },
    Network { what: "no network card", cables: &[], opens: [Some(false); 2], ..DHCP },
    Network {
        what: "a fixed address",
        words: "ip=10.0.2.9::10.0.2.2:255.255.255.0:debian::off:10.0.2.2",
        servers: &[Server::Names],
        ..DHCP
    },
    Network {
        what: "two cards, bonded",
        words: "bond=bond0:enp0s2,enp0s3:mode=active-backup ip=bond0:dhcp",
        cables: &CABLES,
        opens: [None, Some(true)],
        ..DHCP
    },
];

impl Stage {
    /// Installs it, binds its disk, and boots it in each network.
    pub(in crate::vm) fn networks(&mut self, system: &str, chain: Chain) -> anyhow::Result<()> {
        self.story.scene('n', &format!("networks of Debian {system}: {}", chain.title()));
        let mut story = std::mem::take(&mut self.story);
        let mut lan = self.lan.take().context("no network namespace")?;
        let mut debian = story.works("installed, with an initramfs that has the pin", || {
            Debian::install(&self.settings, (system, chain), &self.merge)
        })?;
        debian.connect(DHCP.cables);
        self.approve_boot(&debian, chain, "debian")?;
        let added = self.anchor.tec_text(&["machine", "add", "--name", "debian"])?;
        let added: Value = serde_json::from_str(&added).context("no Ignition config")?;
        story.works("first boot, with the typed passphrase: Clevis binds the disk", || {
            start(&mut lan, DHCP.servers)?;
            let guest = debian.boot_typed()?;
            bind(&guest, &added)?;
            guest.must("test -e /sys/class/net/enp0s2")?;
            guest.off()
        })?;
        let mut rows = Vec::new();
        for network in &NETWORKS {
            let [tools, dracut] = network.opens;
            let Some(opens) = (if chain == Chain::Grub { tools } else { dracut }) else {
                continue;
            };
            rows.push(self.network(
                &mut story,
                (&mut debian, chain),
                &mut lan,
                (network, opens),
            )?);
        }
        let heading = ["network", "question after", "root after", "opened"];
        story.shows("seconds since the machine was switched on", &table::render(&heading, &rows));
        story.shows("as markdown", &table::markdown(system, &heading, &rows));
        self.story = story;
        Ok(())
    }

    fn network(
        &self,
        story: &mut Story,
        (debian, chain): (&mut Debian, Chain),
        lan: &mut Lan,
        (network, opens): (&Network, bool),
    ) -> anyhow::Result<Vec<String>> {
        story.works(network.what, || {
            lan.clear();
            debian.connect(network.cables);
            if !network.words.is_empty() {
                add_words(debian, chain, network.words)?;
                self.approve_boot(debian, chain, "other words")?;
            }
            start(lan, network.servers)?;
            let (begin, mut asked) = (Instant::now(), None);
            let started = debian.boot_and(&mut |running| {
                asked = Some(begin.elapsed());
                match network.later {
                    Later::Nothing => {}
                    Later::Starts(server, after) => lan.serve(server, after)?,
                    Later::Stops(after) => lan.hold(self.anchor.pid(), after)?,
                }
                if opens { Ok(()) } else { running.type_line(PASSPHRASE, TYPING) }
            })?;
            let took = begin.elapsed();
            let guest = opened(started)?;
            guest.off()?;
            let asked = asked.context("no question for a passphrase")?;
            let how = if opens { "by itself" } else { "with the passphrase" };
            let seconds = |time: Duration| time.as_secs().to_string();
            Ok(vec![network.what.to_owned(), seconds(asked), seconds(took), how.to_owned()])
        })
    }
}

fn start(lan: &mut Lan, servers: &[Server]) -> anyhow::Result<()> {
    servers.iter().try_for_each(|&server| lan.serve(server, Duration::ZERO))
}

/// Adds words to the command line. They stay, so networks that need some come last.
fn add_words(debian: &Debian, chain: Chain, words: &str) -> anyhow::Result<()> {
    debian.in_boot(|root| {
        if chain != Chain::Grub {
            let loader = root.join(SYSTEM).join("loader");
            let line = command_line();
            let entry =
                format!("title Debian\nefi /EFI/Linux/debian.efi\noptions {line} {words}\n");
            fs::create_dir_all(loader.join("entries"))?;
            fs::write(loader.join("entries/network.conf"), entry)?;
            return Ok(fs::write(loader.join("loader.conf"), "default network.conf\n")?);
        }
        let path = root.join(GRUB_CONFIG);
        let script = fs::read_to_string(&path)?;
        let edited = script.replace(" ro ", &format!(" ro {words} "));
        ensure!(edited != script, "grub.cfg has no command line of the expected form");
        Ok(fs::write(path, edited)?)
    })
}
