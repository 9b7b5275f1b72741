//! The scenes of virtual nodes.

mod adversary;
mod bootstrap;
mod cluster;
mod cuts;
mod dbx;
mod fleet;
mod join;
mod migration;
mod operator;
mod recovery;
mod short;
mod update;
