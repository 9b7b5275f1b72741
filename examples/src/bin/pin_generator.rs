//! Pin generation: what a new machine receives, here for two key brokers.
//!
//! ```text
//! cargo run -p tec-examples --bin pin_generator
//! ```
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use anyhow::{Context as _, ensure};
use tec_core::endpoint::Endpoint;
use tec_core::id::MachineId;
use tec_core::ignition::{
    ClevisPinGenerator, MergeSource, PinConfig, PinGenerator as _, render_merge,
};

/// The CA that nodes pin; a real PEM bundle in production.
const CA: &str = "-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n";

fn main() -> anyhow::Result<()> {
    let machine: MachineId = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse()?;
    let service = |url: &str| anyhow::Ok(Endpoint::new(url.parse()?, CA));

    // Servers are tried in this order. Without `register_ak_at` the node registers no key itself.
    let generator = ClevisPinGenerator::new(service("https://kbs.example.org:8080")?)
        .also(service("https://kbs.example.net:8080")?)
        .register_ak_at(service("https://register.example.org:8001")?);

    // Only the pin: the argument of `clevis luks bind … trustee '<config>'`.
    let pin = generator.pin_config(&machine);
    for (number, server) in pin.servers.iter().enumerate() {
        println!("server {}   {}", number + 1, server.url);
    }
    println!("key        {}", pin.path);

    // The Ignition config that carries it. The same machine always gets the same bytes.
    let ignition = generator.render_ignition(&machine)?;
    ensure!(ignition == generator.render_ignition(&machine)?);
    let config: serde_json::Value = serde_json::from_slice(&ignition)?;
    let text = |pointer| config.pointer(pointer).and_then(serde_json::Value::as_str);
    let (version, bytes) = (text("/ignition/version"), ignition.len());
    println!("ignition   {}, {bytes} bytes", version.context("no version")?);
    println!("volume     on {}", text("/storage/luks/0/device").context("no volume")?);
    let carried = text("/storage/luks/0/clevis/custom/config").context("no pin")?;
    ensure!(PinConfig::parse(carried)? == pin);

    // What goes into the installer's config: where to fetch the rest, and whom to trust for it.
    let source = MergeSource::new(service("https://register.example.org:8000")?);
    let merge: serde_json::Value = serde_json::from_slice(&render_merge(&source)?)?;
    let from = merge.pointer("/ignition/config/merge/0/source");
    println!("merge      {}", from.context("no merge directive")?);
    Ok(())
}
