//! What goes wrong while trust moves between two namespaces of a real API server: the network, the
//! clocks, the admins, and what lies at the target. Whatever happens, no key is lost, none is changed,
//! and there are never two authorities.

mod admin;
mod clock;
mod cut;
mod foreign;
mod pair;
mod policy;
