//! Turns an instance into a node: the parts of `bootstrapper`, assembled from its settings.

pub mod authority;
pub mod azure;
mod clock;
pub mod components;
pub mod discover;
pub mod endorser;
pub mod finding;
pub mod founder;
pub mod gate;
pub mod identity;
pub mod kept;
pub mod keys;
pub mod mapping;
pub mod network;
pub mod node;
pub mod pause;
pub mod prepare;
pub mod recover;
pub mod run;
pub mod secret;
pub mod settings;
pub mod survey;
pub mod transport;
pub mod trust;
