//! The commands that read or change the store.

pub(crate) mod ak;
pub(crate) mod attest;
pub(crate) mod audit;
pub(crate) mod backup;
mod booted;
pub(crate) mod bootstrap;
pub(crate) mod eventlog;
pub(crate) mod explain;
pub(crate) mod ignition;
pub(crate) mod image;
mod input;
mod key;
pub(crate) mod machine;
pub(crate) mod member;
pub(crate) mod migrate;
pub(crate) mod node;
pub(crate) mod pcr;
mod reseal;
mod status;
pub(crate) mod ticket;
pub(crate) mod trustee;

pub(crate) use self::ak::ak;
pub(crate) use self::attest::attest;
pub(crate) use self::audit::audit;
pub(crate) use self::backup::backup;
pub(crate) use self::bootstrap::bootstrap;
pub(crate) use self::eventlog::eventlog;
pub(crate) use self::explain::{explain, explain_code};
pub(crate) use self::ignition::ignition;
pub(crate) use self::image::{approve_plain, image};
pub(crate) use self::key::key;
pub(crate) use self::machine::machine;
pub(crate) use self::migrate::migrate;
pub(crate) use self::node::node;
pub(crate) use self::pcr::pcr;
pub(crate) use self::status::status;
pub(crate) use self::ticket::ticket;
pub(crate) use self::trustee::trustee;

use tec_core::code::Code;
use tec_core::port::PortError;
use tec_support::exit::CodedError;

use crate::output::word;

/// Adds a code and the failed operation to a port's error.
fn coded(fallback: Code, context: impl Into<String>) -> impl FnOnce(PortError) -> CodedError {
    let context = context.into();
    move |error| CodedError::caused(error.code().unwrap_or(fallback), context, error)
}
