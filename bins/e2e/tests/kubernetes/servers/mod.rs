//! The servers that nodes reach, on a real API server, with the permissions that their packages grant. Names
//! start with the number of the check (trusted-cluster-operator).

mod key;
mod many;
mod proof;
mod register;
mod tls;
mod token;
mod world;
