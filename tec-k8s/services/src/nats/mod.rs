//! NATS in operator mode: keys as text, JWTs, and the configuration of a server.
//!
//! *What it is*: the text forms, and the claims of each JWT. Keys stay in the vault; what must be
//! signed is returned as [`Unsigned`], and the signature is passed in.
//!
//! *What it is not*: a NATS client.
//!
//! ```text
//!   operator ─signs─► account SYS                      (who may push and revoke accounts)
//!            └signs─► account APP ─scoped key signs─► user: one per component, its own subjects only
//!                         └──── another one ──► who makes the stream of events, and nothing else
//! ```

mod config;
mod jwt;
mod nkey;

pub use self::config::{ConfigError, Resolver, ServerConfig, Storage};
pub use self::jwt::{
    Account, EVENTS, Operator, READ_EVENTS, Revocations, Scope, Unsigned, User, events_stream,
    stream_call, user_name,
};
pub use self::nkey::{KeyKind, Nonce, NonceError, PublicKey, PublicKeyError};

#[cfg(test)]
mod tests;
