//! The part that runs in the initial file system, started by systemd.

use std::fs;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use rustix::mount::MountFlags;

use super::content;
use super::marks::{Answer, Mark, Marks};

/// The disk that Ignition encrypts, and its name when open, both as in the server's config.
const DISK: &str = "/dev/disk/by-partlabel/root";
const NAME: &str = "root";
const OPENED: &str = "/dev/mapper/root";
const PLACE: &str = "/sysroot";
/// Loaded before anything else; the engine itself loads `qemu_fw_cfg`.
const MODULES: [&str; 7] =
    ["virtio_blk", "virtio_net", "dm_crypt", "algif_skcipher", "xts", "aesni_intel", "ext4"];
/// Address and router that QEMU's user network assigns to its first guest.
const ADDRESS: &str = "10.0.2.15/24";
const ROUTER: &str = "10.0.2.2";
/// The log filter of the pin: in addition to failures, how long it waited, and for what.
const LOG: &str = "warn,tec_trustee=error,tec_agent=info";
const CONSOLE: &str = "/dev/console";

/// Runs until the root is switched, or switches the machine off and reports why.
pub fn run() {
    let mut marks = match Marks::open() {
        Ok(marks) => marks,
        Err(error) => return say(&error),
    };
    let off = match open_root(&mut marks) {
        Ok(Way::Open) => match hand_over() {
            Ok(()) => return,
            Err(error) => failed(&mut marks, &error),
        },
        Ok(Way::Closed) => Ok(()),
        Err(error) => failed(&mut marks, &error),
    };
    if let Err(error) = off.and_then(|()| marks.switch_off()) {
        say(&error);
    }
}

fn failed(marks: &mut Marks, error: &anyhow::Error) -> anyhow::Result<()> {
    marks.tell(Mark::Failed, &format!("{error:#}"))
}

/// Prints an error on the console, which is for people.
fn say(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr(), "node: {error:#}");
}

enum Way {
    Open,
    Closed,
}

fn open_root(marks: &mut Marks) -> anyhow::Result<Way> {
    marks.greet()?;
    marks.tell(Mark::Started, "")?;
    must(Command::new("modprobe").arg("-a").args(MODULES))?;
    let block = ["trigger", "--action=add", "--subsystem-match=block"];
    must(Command::new("udevadm").args(block))?;
    must(Command::new("udevadm").arg("settle"))?;
    marks.tell(Mark::Devices, "")?;
    network()?;
    marks.tell(Mark::Network, "")?;
    if is_bound()? {
        if let Way::Closed = unlock(marks)? {
            return Ok(Way::Closed);
        }
        // Power may have failed before the file system was created, or the root filled.
        if mount().is_ok() && content::is_complete(Path::new(PLACE)) {
            return Ok(Way::Open);
        }
        close()?;
    }
    first_boot(marks)?;
    Ok(Way::Open)
}

/// The engine's stages, in the order of its dracut module.
fn first_boot(marks: &mut Marks) -> anyhow::Result<()> {
    marks.tell(Mark::FirstBoot, "")?;
    ignition("fetch-offline")?;
    ignition("fetch")?;
    marks.tell(Mark::Fetched, "")?;
    ignition("kargs")?;
    ignition("disks")?;
    marks.tell(Mark::Bound, "")?;
    mount()?;
    ignition("mount")?;
    ignition("files")?;
    ignition("umount")?;
    content::fill(Path::new(PLACE))
}

fn ignition(stage: &str) -> anyhow::Result<()> {
    let mut engine = Command::new("ignition");
    engine.args(["--platform=qemu", "--root", PLACE, "--log-to-stdout"]);
    let status = engine.args(["--stage", stage]).status();
    let status = status.context("cannot run ignition")?;
    ensure!(status.success(), "stage {stage} of Ignition failed");
    Ok(())
}

fn network() -> anyhow::Result<()> {
    let cards = fs::read_dir("/sys/class/net").context("cannot list the network cards")?;
    let names = cards.filter_map(|card| card.ok()?.file_name().into_string().ok());
    let mut names = names.filter(|name| name != "lo");
    let card = names.next().context("there is no network card")?;
    let ip = |words: &[&str]| must(Command::new("ip").args(words));
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "set", &card, "up"])?;
    ip(&["address", "add", ADDRESS, "dev", &card])?;
    ip(&["route", "add", "default", "via", ROUTER])
}

/// Whether the disk has a Clevis token. Until then, everything on it may be recreated.
fn is_bound() -> anyhow::Result<bool> {
    let dump = Command::new("cryptsetup").args(["luksDump", DISK]).output();
    let dump = dump.context("cannot run cryptsetup")?;
    let text = String::from_utf8_lossy(&dump.stdout);
    Ok(dump.status.success() && text.contains(": clevis"))
}

/// As in the initial file systems of distributions, except that the key is requested only once: the person at
/// the console restarts the machine, or types a key.
fn unlock(marks: &mut Marks) -> anyhow::Result<Way> {
    marks.tell(Mark::Unlocking, "")?;
    let mut clevis = Command::new("clevis");
    clevis.args(["luks", "unlock", "-d", DISK, "-n", NAME]);
    clevis.env("TEC_ROUNDS", "1").env("TEC_LOG", LOG);
    let output = clevis.output();
    let output = output.context("cannot run clevis")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        marks.tell(Mark::Unlocked, &said)?;
        return Ok(Way::Open);
    }
    match marks.refused(&said)? {
        Answer::GoOff | Answer::Rotate => Ok(Way::Closed),
        Answer::Ask => {
            ask()?;
            marks.tell(Mark::Typed, "")?;
            Ok(Way::Open)
        }
    }
}

/// Lets a person at the console type a key.
fn ask() -> anyhow::Result<()> {
    let console = || {
        let both = OpenOptions::new().read(true).write(true).open(CONSOLE);
        both.with_context(|| format!("cannot open {CONSOLE}"))
    };
    let mut open = Command::new("cryptsetup");
    open.args(["open", "--type", "luks", DISK, NAME]);
    open.stdin(console()?).stdout(console()?).stderr(console()?);
    let status = open.status().context("cannot run cryptsetup")?;
    ensure!(status.success(), "no key that was typed opens the disk");
    Ok(())
}

fn mount() -> anyhow::Result<()> {
    fs::create_dir_all(PLACE).context("cannot create the mount point of the root")?;
    rustix::mount::mount(OPENED, PLACE, "ext4", MountFlags::empty(), None)
        .context("cannot mount the root")
}

fn close() -> anyhow::Result<()> {
    // Not mounted if there was no file system yet.
    let _ = rustix::mount::unmount(PLACE, rustix::mount::UnmountFlags::empty());
    must(Command::new("cryptsetup").args(["close", NAME]))
}

/// Measures the end of this part, as the initial file systems of distributions do with our scripts; then systemd
/// replaces itself with process 1 of the root.
fn hand_over() -> anyhow::Result<()> {
    must(Command::new("node-agent").args(["leave-initramfs", PLACE]))?;
    must(Command::new("systemctl").args(["--no-block", "switch-root", PLACE, "/sbin/init"]))
}

fn must(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
