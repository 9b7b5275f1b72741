//! Admits attested nodes to a cluster: one ticket for nodes that join, another for members that rebooted.
//!
//! ```text
//!   node ─ attested TLS, both ends ─► measurements, attestation key ─► grant: name, role, disk
//!          endorsement key, if the attestation key is not listed  ─┘
//!                                        │                               bound to that key
//!   ConfigMap tec-members, Machine, AttestationKey, Lease, Secret ◄──────┤
//!   /etc/kubernetes/pki, master secret, components ────────────────────► ticket
//!   kubelet of a member ─ CertificateSigningRequest ─► renewal: the name that it joined with,
//!                         an address that no other Node has, and a machine that is still in service
//! ```
//! It runs on control planes and keeps no state of its own, so any number may run.

pub mod compose;
pub mod facts;
pub mod live;
pub mod nodes;
pub mod renewal;
pub mod settings;
pub mod signer;
