//! The scenes of virtual nodes.

mod adversary;
mod bootstrap;
mod cluster;
mod console;
mod cuts;
mod dbx;
mod debian;
mod join;
mod network;
mod power;
mod recovery;
mod rotation;
mod short;
mod update;
