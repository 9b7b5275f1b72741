//! `services-demo`: plays the bootstrap of a platform's services; started by `cargo xtask services-demo`.

use std::io;

use clap::Parser;
use tec_e2e::services::demo;
use tec_e2e::services::demo::Extent;

#[derive(Debug, Parser)]
struct Args {
    /// Go on to a log line that is found in OpenSearch; `cargo xtask tools --opensearch` sets it up
    #[arg(long)]
    opensearch: bool,
    /// Let twenty components publish for two minutes while JWTs and certificates of twenty seconds are renewed
    #[arg(long)]
    rotation: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let extent = if args.opensearch { Extent::Telemetry } else { Extent::Messages };
        demo::play(extent, &mut io::stdout()).await?;
        if args.rotation {
            demo::rotate(&mut io::stdout()).await?;
        }
        Ok(())
    })
}
