//! What can go wrong while trust moves between two namespaces of a real API server: the network, the clocks,
//! the admins, and existing objects at the target. Whatever happens, no key is lost or changed, and there are
//! never two authorities.

mod admin;
mod clock;
mod cut;
mod foreign;
mod pair;
mod policy;
