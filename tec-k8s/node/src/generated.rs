//! Messages and services, written by `cargo xtask codegen` from `proto/`. Messages have no `Debug`,
//! since they carry secrets.

macro_rules! generated {
    ($($name:ident $(, $more:path)?;)*) => {
        $(
            #[expect(
                missing_docs,
                missing_debug_implementations,
                clippy::pedantic,
                clippy::exhaustive_structs,
                $($more,)?
                reason = "generated code"
            )]
            pub mod $name {
                include!(concat!("generated/", stringify!($name), ".rs"));
            }
        )*
    };
}

generated! {
    init, clippy::exhaustive_enums;
    join;
    recoverproto;
}
