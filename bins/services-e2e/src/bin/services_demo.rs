//! `services-demo`: plays the bootstrap of a platform's services; started by `cargo xtask services-demo`.

use std::io;

use clap::Parser;
use tec_services_e2e::demo;
use tec_services_e2e::load;

#[derive(Debug, Parser)]
struct Args {
    /// Let twenty components publish for two minutes while JWTs and certificates of twenty seconds are renewed
    #[arg(long)]
    rotation: bool,
    /// Compare calls for components with bare logins at the vault
    #[arg(long)]
    load: bool,
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
            if args.load {
                load::compare(&mut io::stdout()).await?;
            }
            Ok(())
        })
}
