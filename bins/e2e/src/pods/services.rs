//! Images of the services' chart and of the example next to it, with the names used in their manifests.

use std::path::{Path, PathBuf};

use tec_k8s::render;

use super::Image;
use crate::kube::program;
use crate::packages::{REGISTRY, tool};

const HOME: &str = "usr/share/opensearch";
/// Programs called by OpenSearch's own start script.
const SCRIPTED: [&str; 6] = ["basename", "dirname", "env", "expr", "ls", "uname"];

fn image(name: &str, program: PathBuf) -> Image {
    Image::of(render::image(REGISTRY, name), program)
}

/// Our programs, and the vault.
pub(super) fn services() -> anyhow::Result<Image> {
    Ok(image("tec-services", program("services-bootstrap")?)
        .with(program("services-init")?)
        .with(program("services-broker")?)
        .with(tool("bin/bao")?))
}

/// The example.
pub(super) fn component() -> anyhow::Result<Image> {
    Ok(image("tec-example-component", program("examples/component")?))
}

/// A NATS server.
///
/// # Errors
/// The server is missing; `cargo xtask tools` sets it up.
pub fn nats() -> anyhow::Result<Image> {
    Ok(image("tec-nats", tool("bin/nats-server")?))
}

/// The OpenTelemetry Collector.
///
/// # Errors
/// The collector is missing; `cargo xtask tools` sets it up.
pub fn collector() -> anyhow::Result<Image> {
    Ok(image("tec-collector", tool("bin/otelcol")?))
}

/// OpenSearch with its security plugin, a Java runtime, and a shell for its start script.
///
/// # Errors
/// A part is missing; `cargo xtask tools --opensearch` sets it up.
pub fn opensearch() -> anyhow::Result<Image> {
    let home = tool("opensearch/bin/opensearch")?;
    let home = home.ancestors().nth(2).unwrap_or(&home);
    let mut image = image("tec-opensearch", "/usr/bin/bash".into());
    for name in SCRIPTED {
        image = image.with(Path::new("/usr/bin").join(name));
    }
    for folder in ["bin", "lib", "modules", "plugins"] {
        image = image.with_tree(home.join(folder), Path::new(HOME).join(folder));
    }
    // The rest of a JDK is documentation and modules for linking.
    for folder in ["bin", "conf", "lib"] {
        let to = Path::new(HOME).join("jdk").join(folder);
        image = image.with_tree(home.join("jdk").join(folder), to);
    }
    image.words = vec![format!("/{HOME}/bin/opensearch")];
    Ok(Image { user: "1000:1000".to_owned(), ..image })
}
