//! A real registry as a process, and images for it, made on the spot.

mod content;
mod server;

pub use self::content::Content;
pub use self::content::INDEX;
pub use self::content::MANIFEST;
pub use self::content::gzip;
pub use self::content::noise;
pub use self::server::Access;
pub use self::server::RealRegistry;
pub use self::server::USER;
