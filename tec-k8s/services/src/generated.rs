//! Messages and services, written by `cargo xtask codegen` from `proto/`. Messages have no `Debug`,
//! since they carry secrets.

macro_rules! generated {
    ($($name:ident = $file:literal;)*) => {
        $(
            #[expect(
                missing_docs,
                missing_debug_implementations,
                clippy::pedantic,
                reason = "generated code"
            )]
            pub mod $name {
                include!(concat!("generated/", $file));
            }
        )*
    };
}

generated! {
    bootstrap = "tec.bootstrap.v1.rs";
    broker = "tec.broker.v1.rs";
}
