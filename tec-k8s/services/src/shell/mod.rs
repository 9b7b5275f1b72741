//! Shells of the services bootstrap (feature `shell`): the plans of [this crate](crate) over a real
//! vault, a real API server and a real disk, and the gRPC server for bootstrap requests.
//!
//! *What it is*: thin. [`Http`] makes one call; [`Vault`] and [`ApiServer`] know addresses and tokens;
//! [`BringUpShell`] and [`SetupShell`] carry out effects; [`Bootstrap`] answers requests.
//!
//! *What it is not*: a place for decisions. Those are in the plans, where tests kill every step.
//!
//! ```text
//!   BringUp ─effects─► BringUpShell ─► Vault (socket beside it), ApiServer (Secret), Disk (file)
//!   Setup ───effects─► SetupShell ──► Vault, ApiServer (certificate for everyone)
//!   gRPC ─► Bootstrap ─► Vault: login in the caller's name, certificate, signature, password
//! ```

mod answer;
mod api_server;
mod batch;
mod bootstrap;
mod details;
mod disk;
mod effect;
mod export;
mod grpc;
mod http;
mod keys;
mod minter;
mod object;
mod restore;
mod sessions;
mod slots;
mod standing;
mod stream;
mod vault;
mod visit;

pub use self::answer::{
    Component, ComponentCall, NatsServer, OpenSearchNode, Telemetry, TelemetryKind,
};
pub use self::api_server::{ApiServer, PodObject, Replaceable, SecretNames, Warning};
pub use self::bootstrap::Bootstrap;
pub use self::disk::{Disk, Note};
pub use self::effect::{BringUpShell, Peers, SetupShell};
pub use self::export::Export;
pub use self::grpc::{NAME, descriptors, service};
pub use self::http::{Http, HttpError, Reply, Target};
pub use self::keys::Keys;
pub use self::minter::{ACCOUNTS, KeptUser, Minted, Minter, OPERATOR};
pub use self::restore::RestoreShell;
pub use self::standing::{Settings, Standing};
pub use self::vault::Vault;
pub use self::visit::Visit;
/// Messages and stub for clients of the controller.
pub use crate::generated::bootstrap as client;
/// Messages, service and stub of brokers.
pub use crate::generated::broker;
