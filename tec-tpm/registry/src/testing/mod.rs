//! A real registry as a process, and images for it, generated on demand.

mod content;
mod server;
mod signer;

pub use self::content::{Content, INDEX, MANIFEST, gzip, noise};
pub use self::server::{Access, Pusher, RealRegistry, USER};
pub use self::signer::{Signer, claim};
