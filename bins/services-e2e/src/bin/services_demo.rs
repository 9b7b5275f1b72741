//! `services-demo`: plays the bootstrap of a platform's services; started by `cargo xtask services-demo`.

use std::io;

use clap::Parser;
use tec_services_e2e::demo;

#[derive(Debug, Parser)]
struct Args {
    /// Let twenty components publish for two minutes while their JWTs of twenty seconds are renewed
    #[arg(long)]
    rotation: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let took = demo::play(&mut io::stdout()).await?;
            anyhow::ensure!(took < demo::LIMIT, "it took longer than a minute");
            if args.rotation {
                demo::rotate(&mut io::stdout()).await?;
            }
            Ok(())
        })
}
