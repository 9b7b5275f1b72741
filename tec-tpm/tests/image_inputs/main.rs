//! Images in all forms: the same files give the same values, and hostile ones give errors.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "all of this is test code, its helper functions too"
)]

mod archives;
mod bombs;
mod build;
mod disks;
mod ext4;
mod layouts;
mod parts;
mod real;
mod same;
