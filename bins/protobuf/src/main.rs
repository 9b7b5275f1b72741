//! Writes the Rust code of one protobuf file and its descriptors into a directory:
//! `tec-protobuf <file.proto> <directory>`. `cargo xtask codegen` runs it, so that xtask itself
//! stays light and no library has a build script.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Fields that hold secrets print nothing: their messages get no derived Debug.
const SECRETS: [&str; 11] = [
    ".tec.bootstrap.v1.TlsMaterial",
    ".tec.bootstrap.v1.NATSBootstrapRequest",
    ".tec.bootstrap.v1.OpenSearchBootstrapRequest",
    ".tec.bootstrap.v1.OpenSearchBootstrapResponse",
    ".tec.bootstrap.v1.ComponentBootstrapRequest",
    ".tec.bootstrap.v1.ComponentBootstrapResponse",
    ".tec.bootstrap.v1.NATSBootstrapResponse",
    ".tec.bootstrap.v1.SignNonceRequest",
    ".tec.bootstrap.v1.SignNonceResponse",
    ".tec.bootstrap.v1.TelemetryBootstrapRequest",
    ".tec.bootstrap.v1.TelemetryBootstrapResponse",
];

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let (Some(proto), Some(out)) = (args.next(), args.next()) else {
        anyhow::bail!("usage: tec-protobuf <file.proto> <directory>");
    };
    let (proto, out) = (Path::new(&proto), Path::new(&out));
    let dir = proto.parent().context("the file has no directory")?;
    let mut compiler = protox::Compiler::new([dir]).context("look at the directory")?;
    compiler
        .open_file(proto)
        .context("compile the protobuf file")?;
    // Text, as every generated file is.
    let descriptors = BASE64.encode(compiler.encode_file_descriptor_set());
    let name = proto.file_stem().context("the file has no name")?;
    std::fs::write(
        out.join(name).with_extension("descriptors"),
        descriptors + "\n",
    )
    .context("write the descriptors")?;
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(out)
        .skip_debug(SECRETS)
        .compile_fds(compiler.file_descriptor_set())
        .context("write the code")
}
