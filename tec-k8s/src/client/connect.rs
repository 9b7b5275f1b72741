//! The client of services that run in a cluster.

use std::time::Duration;

use kube::{Client, Config, Error};

/// Time limit of a connection; an API server that takes longer counts as down. A node that waits for an
/// answer gives up later than this, so that it learns the reason.
const CONNECT: Duration = Duration::from_secs(5);

/// A client for the API server of this pod, or else of the current context of a kubeconfig.
pub async fn connect() -> Result<Client, Error> {
    let mut config = Config::infer().await.map_err(Error::InferConfig)?;
    config.connect_timeout = Some(CONNECT);
    Client::try_from(config)
}
