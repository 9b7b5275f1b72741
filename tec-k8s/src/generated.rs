//! Messages and services, written by `cargo xtask codegen` from `proto/`. Messages have no `Debug`,
//! since they carry secrets.

macro_rules! generated {
    ($($feature:literal: $name:ident = $file:literal $(, $more:path)?;)*) => {
        $(
            #[cfg(feature = $feature)]
            #[expect(
                missing_docs,
                missing_debug_implementations,
                clippy::pedantic,
                clippy::exhaustive_structs,
                $($more,)?
                reason = "generated code"
            )]
            pub mod $name {
                include!(concat!("generated/", $file));
            }
        )*
    };
}

generated! {
    "rpc": init = "init.rs", clippy::exhaustive_enums;
    "rpc": join = "join.rs";
    "rpc": recoverproto = "recoverproto.rs";
    "service": bootstrap = "tec.bootstrap.v1.rs", clippy::exhaustive_enums;
    "service": broker = "tec.broker.v1.rs";
}
