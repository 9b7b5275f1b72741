//! A Kubernetes control plane as processes of this machine: etcd, API server, controllers.
//!
//! ```text
//!   etcd ◄── kube-apiserver ◄── kube-controller-manager (owner references, namespaces)
//!                  ▲
//!                  └── clients of the tests, one for each service account
//! ```
//! *What it is*: the real programs on free loopback ports, with certificates and data in a directory that is
//! removed on drop. *What it is not*: there is no kubelet and no scheduler, and nothing runs Deployments and
//! Jobs. Tests play them where necessary, by writing the status that those would write.
//!
//! `cargo xtask tools` sets up the programs.

mod account;
mod broker;
mod container;
mod control_plane;
mod guarded;
mod link;
mod memory_trust;
mod operator;
mod pki;
mod program;
mod prometheus;
mod server;

pub use self::account::rules;
pub use self::broker::{Broker, Sent};
pub use self::container::Container;
pub use self::control_plane::{ControlPlane, Freeze};
pub use self::guarded::Guarded;
pub use self::link::{Link, Traffic};
pub use self::memory_trust::{Labels, MemoryTrust, ShiftedClock, Tags};
pub use self::operator::{Bench, cluster, eventually, open, plain_cluster, rights, within};
pub use self::program::start_operator_with;
pub use self::prometheus::Prometheus;
pub use self::server::{Server, program, static_program};
