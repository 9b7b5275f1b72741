//! `services-demo`: plays the bootstrap of a platform's services in pods; started by `cargo xtask
//! services-demo`.

use std::io;

use clap::Parser;
use tec_e2e::services::demo;

#[derive(Debug, Parser)]
struct Args {}

fn main() -> anyhow::Result<()> {
    let Args {} = Args::parse();
    // Another provider that somebody installed before is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    demo::play(&mut io::stdout()).map(drop)
}
