//! NATS in operator mode: keys as text, JWTs, and the configuration of a server.
//!
//! *What it is*: the text forms, and which claims whose JWT has. Keys stay where they are, in the
//! vault; what is to be signed is given out as [`Unsigned`], and the signature taken in.
//!
//! *What it is not*: a NATS client.
//!
//! ```text
//!   operator ─signs─► account SYS                      (who may push and revoke accounts)
//!            └signs─► account APP ─scoped key signs─► user: one per component, its own subjects only
//! ```

mod config;
mod jwt;
mod nkey;

pub use self::config::ConfigError;
pub use self::config::Resolver;
pub use self::config::ServerConfig;
pub use self::jwt::Account;
pub use self::jwt::Operator;
pub use self::jwt::Revocations;
pub use self::jwt::Scope;
pub use self::jwt::Unsigned;
pub use self::jwt::User;
pub use self::jwt::user_name;
pub use self::nkey::KeyKind;
pub use self::nkey::Nonce;
pub use self::nkey::NonceError;
pub use self::nkey::PublicKey;
pub use self::nkey::PublicKeyError;

#[cfg(test)]
mod tests;
