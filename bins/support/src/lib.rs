//! The code that all programs of the project share: system clock and entropy, logging, exit codes, boot
//! images, flags for evidence, TLS with live reload, servers with limits and graceful shutdown.

pub mod age;
#[cfg(feature = "images")]
pub mod boot;
#[cfg(feature = "server")]
pub mod certificate;
pub mod diskkey;
#[cfg(feature = "ek")]
pub mod ek;
pub mod endpoint;
#[cfg(feature = "evidence")]
pub mod evidence;
pub mod exit;
#[cfg(feature = "export")]
pub mod export;
pub mod files;
#[cfg(feature = "server")]
pub mod front;
#[cfg(feature = "images")]
pub mod image;
pub mod input;
#[cfg(feature = "server")]
pub mod limit;
#[cfg(feature = "listen")]
pub mod listen;
pub mod log;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "images")]
pub mod nextboot;
#[cfg(feature = "page")]
pub mod page;
#[cfg(any(feature = "ek", feature = "server"))]
pub mod pem;
pub mod pins;
#[cfg(feature = "program")]
pub mod program;
pub mod reference;
#[cfg(feature = "registry")]
pub mod registry;
#[cfg(feature = "server")]
pub mod reserve;
#[cfg(feature = "server")]
pub mod serve;
#[cfg(feature = "listen")]
pub mod shared;
#[cfg(feature = "server")]
mod shutdown;
#[cfg(feature = "server")]
pub mod sparing;
pub mod table;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(feature = "server")]
pub mod tls;

pub use tec_core::system::{SystemClock, SystemEntropy};
