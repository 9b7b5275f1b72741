//! The parts of `bootstrapper` and `join-service`, put together from `tec-node`: [`instance`] turns an instance
//! into a node, [`admission`] admits it to the cluster.

pub mod admission;
pub mod instance;
