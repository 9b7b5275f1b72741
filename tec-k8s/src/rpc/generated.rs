//! Messages and services, written by `cargo xtask codegen` from `proto/`. Messages have no `Debug`,
//! since they carry secrets.

macro_rules! generated {
    ($($package:ident: $($lint:path),*;)*) => {
        $(
            #[expect(
                $($lint,)*
                missing_docs,
                missing_debug_implementations,
                clippy::pedantic,
                clippy::exhaustive_structs,
                reason = "generated code"
            )]
            pub mod $package;
        )*
    };
}

generated! {
    init: clippy::exhaustive_enums;
    join:;
    recoverproto:;
}
