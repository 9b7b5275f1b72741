//! A platform on real servers, on one machine: OpenBao, NATS, and a Kubernetes API server with the
//! controller, the initializers and brokers of this project.
//!
//! ```text
//!   Cluster: kube-apiserver, service accounts, tokens    Bao: a vault on a Unix socket
//!          └────────────┬──────────────────────────────────────┘
//!                    Stage: what outlives a controller ──► Platform: a controller that serves
//!                                                              └──► Nats: a server, from services-init
//! ```
//! *What it is not*: there is no kubelet. Tokens are requested as a kubelet does, and files lie in a
//! directory of the test where a pod would have volumes.

pub mod bao;
pub mod cluster;
pub mod demo;
pub mod follower;
pub mod later;
pub mod nats;
pub mod opensearch;
pub mod platform;
pub mod rotation;
pub mod sink;
pub mod stage;
pub mod stored;
