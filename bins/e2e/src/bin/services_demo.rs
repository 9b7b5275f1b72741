//! `services-demo`: plays the bootstrap of a platform's services in pods; started by `cargo xtask
//! services-demo`.

use std::io;

use clap::Parser;
use tec_e2e::services::{demo, kills};

#[derive(Debug, Parser)]
struct Args {
    /// Kill each pod this many times while components publish and read, and print a table, instead of running
    /// the demo
    #[arg(long)]
    kills: Option<u32>,
    /// Kill only pods whose names begin with one of these, separated by commas
    #[arg(long, requires = "kills", value_delimiter = ',', default_value = "")]
    only: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let Args { kills, only } = Args::parse();
    // A provider installed by other code is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match kills {
        Some(times) => kills::play(times, &only, &mut io::stdout()),
        None => demo::play(&mut io::stdout()).map(drop),
    }
}
