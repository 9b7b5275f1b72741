//! The OpenTelemetry Collector, reduced to the components that our configuration uses: built from the Go
//! modules pinned in the `go.sum` next to its source.

use anyhow::Result;

use super::{Tools, go, provide};
use crate::term;

const NAME: &str = "otelcol";
const SOURCE: [(&str, &str); 3] = [
    ("main.go", include_str!("../../../services/collector/main.go")),
    ("go.mod", include_str!("../../../services/collector/go.mod")),
    ("go.sum", include_str!("../../../services/collector/go.sum")),
];

/// Builds it unless it exists.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let wanted = SOURCE.map(|(_, text)| text).concat();
    provide(tools, (NAME, &wanted), &tools.cache.join("bin").join(NAME), |dir| {
        term::note("go build of the OpenTelemetry Collector (about two minutes on two cores)");
        go::build(tools, dir, &SOURCE, "-s -w", NAME, &["."])?;
        Ok(dir.join(NAME))
    })
}
