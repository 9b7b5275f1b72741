//! A distribution in a virtual machine: installed with its own programs, on an encrypted disk, with its own
//! initramfs, boot loader and Clevis, and with this project's packages.
//!
//! ```text
//!  mmdebstrap ─► an archive ───► system/, packages ─ prepare.sh ─► initramfs ─► image ───┐
//!  gpt, cryptsetup luksFormat ─► disk.img ────────────────────────────────────────────────┤
//!                        the machine that installs: install.sh, grub-install, update-grub ┘
//!  Debian: firmware ─► shim ─► GRUB ─► initramfs ─ Clevis, node-agent ─► tec serve ─► root ─► serve.sh
//!          firmware ─► systemd-boot ─► unified kernel image ─┘
//! ```

mod guest;
mod install;
mod lan;

pub(super) use self::guest::{Debian, Guest, Started};
pub(super) use self::install::{Chain, HEADER, PASSPHRASE, command_line};
pub(super) use self::lan::{CABLES, Lan, NAME, Server};
