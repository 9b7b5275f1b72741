//! The scenes of virtual nodes.

mod adversary;
mod cuts;
mod fleet;
mod short;
mod update;
