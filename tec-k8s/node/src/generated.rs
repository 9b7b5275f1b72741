//! Messages and services, written by `cargo xtask codegen` from `proto/`. Messages have no `Debug`,
//! since they carry secrets.

macro_rules! generated {
    ($($name:ident;)*) => {
        $(
            #[expect(
                missing_docs,
                missing_debug_implementations,
                clippy::pedantic,
                reason = "generated code"
            )]
            pub mod $name {
                include!(concat!("generated/", stringify!($name), ".rs"));
            }
        )*
    };
}

generated! {
    init;
    join;
    recoverproto;
}
