//! `tec key reseal`.

use std::path::Path;

use serde::Serialize;
use tec_core::code::Code;
use tec_core::port::Clock as _;
use tec_core::store::{Store, StoreError};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use crate::args::Consent;
use crate::consent::consented;
use crate::output::Output;
use crate::state::{Running, open_existing};

/// The secrets of a store, and whether they have a new seal key.
#[derive(Serialize)]
struct Resealed {
    secrets: u64,
    replaced: bool,
}

impl Resealed {
    fn sentence(&self) -> String {
        let Self { secrets, replaced } = self;
        if *replaced {
            format!(
                "{secrets} secrets are sealed with a new seal key; back up seal.key and tec.db now, because \
                 older copies match only one another"
            )
        } else {
            format!("{secrets} secrets would be sealed with a new seal key")
        }
    }
}

pub(super) async fn reseal(
    state_dir: &Path,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<u8> {
    // Closed again, because a store that stays open would have the old key.
    let secrets = open_existing(state_dir)?.count_secrets().map_err(failed(state_dir))?;
    if Running::is(state_dir) {
        let context = format!(
            "cannot replace the seal key in {}: a server runs on it, and would keep the old key (stop it: \
             systemctl stop tec)",
            state_dir.display()
        );
        return Err(CodedError::new(Code::ServerRunning, context).into());
    }
    let effect = format!("{secrets} secrets in {} get a new seal key", state_dir.display());
    let mut resealed = Resealed { secrets, replaced: consented(&[effect], consent)? };
    if resealed.replaced {
        let _no_server = Running::mark(state_dir).await?;
        resealed.secrets = Store::reseal(state_dir, &SystemEntropy, SystemClock.now())
            .map_err(failed(state_dir))?;
    }
    output.print(&resealed, Resealed::sentence)?;
    Ok(OK)
}

fn failed(state_dir: &Path) -> impl FnOnce(StoreError) -> CodedError {
    let context = format!("cannot replace the seal key in {}", state_dir.display());
    move |error| CodedError::caused(error.code(), context, error)
}
