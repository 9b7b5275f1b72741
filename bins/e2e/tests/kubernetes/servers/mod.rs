//! The servers that nodes reach, on a real API server, with the rights that their packages give
//! them. Names begin with the number of the check (trusted-cluster-operator).

mod key;
mod many;
mod proof;
mod register;
mod tls;
mod world;
