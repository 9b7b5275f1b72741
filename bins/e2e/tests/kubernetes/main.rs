//! Tests on a real Kubernetes API server, shared by all tests that run at the same time.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's own tools may fail the test"
)]

mod alerts;
mod bootstrap;
mod broker;
mod builtin;
mod chaos;
mod cluster;
mod damage;
mod endorsement;
mod events;
mod evidence;
mod faults;
mod fetch;
mod follow;
mod garbage;
mod guard;
mod images;
mod job;
mod machines;
mod managed;
mod members;
mod migrate;
mod moves;
mod outage;
mod packages;
mod parity;
mod platform;
mod ports;
mod program;
mod recovery;
mod registry;
mod rights;
mod rollover;
mod rules;
mod scale;
mod servers;
mod skew;
mod standing;
mod swap;
mod targets;
mod tls;
mod trustee;
mod untrusted;
mod upgrade;
mod volumes;
