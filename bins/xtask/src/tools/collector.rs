//! The OpenTelemetry Collector, reduced to the components that our configuration uses: built from the Go
//! modules pinned in the `go.sum` next to its source.

use std::fs;

use anyhow::{Context as _, Result};

use super::{Tools, go, is_stamped, remove_dir, scratch, stamp};
use crate::term;

const NAME: &str = "otelcol";
const SOURCE: [(&str, &str); 3] = [
    ("main.go", include_str!("../../../services/collector/main.go")),
    ("go.mod", include_str!("../../../services/collector/go.mod")),
    ("go.sum", include_str!("../../../services/collector/go.sum")),
];

/// Builds it unless it exists.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let place = tools.cache.join("bin").join(NAME);
    let wanted = SOURCE.map(|(_, text)| text).concat();
    if is_stamped(tools, NAME, &wanted) && place.is_file() {
        return Ok(());
    }
    term::note("go build of the OpenTelemetry Collector (about two minutes on two cores)");
    let dir = scratch(tools, NAME)?;
    go::build(tools, &dir, &SOURCE, "-s -w", NAME, &["."])?;
    fs::rename(dir.join(NAME), &place)
        .with_context(|| format!("cannot move {NAME} to {}", place.display()))?;
    stamp(tools, NAME, &wanted)?;
    remove_dir(&dir)
}
