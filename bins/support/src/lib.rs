//! What every program of the project shares: clock and entropy of the system, logging, exit codes,
//! TLS with live reload, servers with limits and graceful shutdown.

pub mod clock;
pub mod entropy;
pub mod exit;
pub mod files;
pub mod limit;
pub mod log;
pub mod serve;
pub mod tls;

pub use self::clock::SystemClock;
pub use self::entropy::SystemEntropy;
