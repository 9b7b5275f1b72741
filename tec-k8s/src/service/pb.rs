//! Generated from proto/bootstrap.proto by `cargo xtask codegen`; named by `grpc` only.
#![expect(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "generated"
)]

include!("pb/tec.bootstrap.v1.rs");
