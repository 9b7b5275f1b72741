//! The page of a state directory: `tec status --html`, and live at `tec serve --ui-addr`.

use tec_core::code::Code;
use tec_core::image::ApprovedImage;
use tec_core::machine::Machine;
use tec_core::port::{AttemptLog as _, Clock as _, ImageRegistry, MachineRegistry, PortError};
use tec_core::store::Store;
use tec_support::SystemClock;
use tec_support::exit::CodedError;
use tec_support::page::{Page, Seen, standing};

/// Attempts that the page looks back on.
const LOOK_BACK: usize = 1000;
/// Machines are read in pages of this size.
const PAGE: usize = 1000;

/// What the store knows, for people.
pub(crate) async fn page(store: &Store) -> anyhow::Result<Page> {
    let unavailable = || unavailable("read the store");
    let mut names = store
        .machine_names()
        .map_err(|error| CodedError::caused(error.code(), "list the names of machines", error))?;
    let machines = machines(store).await?;
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

/// All machines of a store.
pub(crate) async fn machines(store: &Store) -> anyhow::Result<Vec<Machine>> {
    let mut machines: Vec<Machine> = Vec::new();
    loop {
        let after = machines.last().map(|machine| machine.id);
        let page = MachineRegistry::list(store, after, PAGE)
            .await
            .map_err(unavailable("list the machines"))?;
        if page.is_empty() {
            return Ok(machines);
        }
        machines.extend(page);
    }
}

fn unavailable(what: &'static str) -> impl FnOnce(PortError) -> CodedError {
    move |error| CodedError::caused(error.code().unwrap_or(Code::StoreUnavailable), what, error)
}
