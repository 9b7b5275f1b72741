//! The scenes of virtual nodes.

mod adversary;
mod cuts;
mod fleet;
mod operator;
mod recovery;
mod short;
mod update;
