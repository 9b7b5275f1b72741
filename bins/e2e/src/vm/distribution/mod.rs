//! A distribution in a virtual machine: installed with its own programs, on an encrypted disk, with its own
//! initramfs, boot loader and Clevis. Of this project, it has the files of the package, at their places.
//!
//! ```text
//!  mmdebstrap ─► system.tar ─► system/ + package ─ prepare.sh ─► initramfs ─► system.img ─┐
//!  gpt, cryptsetup luksFormat ─► disk.img ────────────────────────────────────────────────┤
//!                        the machine that installs: install.sh, grub-install, update-grub ┘
//!  Debian: firmware ─► shim ─► GRUB ─► initramfs ─ Clevis, node-agent ─► tec serve ─► root ─► serve.sh
//! ```

mod guest;
mod install;

pub(super) use self::guest::{Debian, Guest, Started};
