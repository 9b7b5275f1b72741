//! The page of a state directory: `tec status --html`, and live at `tec serve --ui-addr`.

use std::path::Path;

use anyhow::Context as _;
use tec_core::code::Code;
use tec_core::image::ApprovedImage;
use tec_core::port::{AttemptLog as _, Clock as _, ImageRegistry};
use tec_core::store::Store;
use tec_support::SystemClock;
use tec_support::page::{Page, Seen, standing};

use super::coded;
use super::machine::all;

/// Attempts that the page looks back on.
const LOOK_BACK: usize = 1000;

/// What the store knows, for people.
pub(crate) async fn page(store: &Store) -> anyhow::Result<Page> {
    let unavailable = || coded(Code::StoreUnavailable, "read the store");
    let mut names = store.machine_names().map_err(|error| {
        tec_support::exit::CodedError::caused(error.code(), "list the names of machines", error)
    })?;
    let machines = all(store).await?;
    let machines = machines.into_iter().map(|machine| {
        let name = names.remove(&machine.id);
        (machine, name)
    });
    let machines: Vec<Seen> = machines.collect();
    let now = SystemClock.now();
    let images = ImageRegistry::list(store).await.map_err(unavailable())?;
    let live = images.iter().filter(|image| image.is_live(now));
    let live: Vec<_> = live.map(|ApprovedImage { name, .. }| name.clone()).collect();
    let attempts = store.latest(None, LOOK_BACK).await.map_err(unavailable())?;
    let mut page = standing(&machines, &live, &attempts);
    page.lead = format!("As of {now}, from the last {} boot attempts.", attempts.len());
    Ok(page)
}

/// Writes a page; only its owner can read it, since it names machines.
pub(crate) fn write(page: &Page, file: &Path) -> anyhow::Result<()> {
    tec_support::files::write_private(file, page.render().as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}
