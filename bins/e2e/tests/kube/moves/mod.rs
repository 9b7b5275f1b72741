//! What goes wrong while trust moves between two namespaces of a real API server: the network, the
//! clocks, the admins, and what lies at the target. Whatever happens, no key is lost, none is changed,
//! and there are never two authorities.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

mod admin;
mod clock;
mod cut;
mod foreign;
mod pair;
mod policy;
