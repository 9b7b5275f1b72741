//! `services-demo`: plays the bootstrap of a platform's services in pods; started by `cargo xtask
//! services-demo`.

use std::io;

use tec_e2e::services::demo;

fn main() -> anyhow::Result<()> {
    // A provider installed by other code is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    demo::play(&mut io::stdout()).map(drop)
}
