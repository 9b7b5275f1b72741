//! The broker of a component, as a library and as a sidecar: turns a service account token into a lasting
//! connection to NATS, and runs a gRPC server for the runtime in the same pod.
//!
//! *What it is*: [`identity::Identity`] has a key that never leaves the process, and asks the controller for
//! a JWT and a certificate; [`bus::Bus`] talks to NATS, and switches to a new connection before the JWT of
//! the old one expires; [`events::Events`] publishes and reads what NATS stores; [`face`] serves the runtime.
//!
//! *What it is not*: storage. Once handed over, a message exists only in NATS.
//!
//! ```text
//!   runtime ──gRPC, TLS──► face ──► Bus ══ NATS, mutual TLS ══► server
//!                                    │ at each connection: JWT, signature of the nonce
//!                                    ▼
//!                                 Identity ──token──► services-bootstrap ──► vault
//! ```

pub mod bus;
pub mod cli;
pub mod events;
pub mod face;
pub mod identity;
pub mod run;
