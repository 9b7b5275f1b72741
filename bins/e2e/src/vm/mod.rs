//! Virtual nodes: real firmware measures, the real Ignition engine merges, the real Clevis binds and unlocks,
//! the kernel opens the disk, and none of them knows that it is being tested.
//!
//! *What it is*: machines of [`crate::qemu`] that boot an initial file system of systemd, Ignition, Clevis,
//! cryptsetup and node-agent, and talk to a real `tec serve` on this host. The programs come from the host's
//! packages, the kernels from Debian.
//!
//! The scene `bootstrap` boots a different initial file system, that of a bootstrapped node: systemd, the
//! units of `bootstrapper`, and programs that stand in for kubeadm and the kubelet. The scene `join` adds a
//! second machine, and a join service on a real API server.
//!
//! The scene `debian` boots a distribution as it is, see `distribution`.
//!
//! *What the others are not*: a distribution. The minimum that a distribution does around Ignition and Clevis is in
//! `tec_guest::node`.
//!
//! ```text
//!  programs of the host, modules, units ─ InitialSystem ─┐
//!  shim, GRUB, kernel, command line ─────────────────────┴─ Image ─► EFI system partition ─┐
//!  tec serve ─ merge directive ─► config of QEMU ──────────────────────────────────────────┼─► Node
//!                             Boot: marks, seconds, what Clevis said ◄── second serial port ┘
//! ```

mod boot;
mod cloud;
mod distribution;
mod image;
mod initial;
mod member;
mod node;
mod programs;
mod scenes;
mod settings;
mod stage;
mod table;
mod times;

pub use self::boot::{Boot, Ended, Step};
pub use self::image::{Image, Parts};
pub use self::initial::InitialSystem;
pub use self::node::Node;
pub use self::settings::{Scene, Settings};
pub use self::stage::Stage;
