//! The client of services that run in a cluster.

use std::time::Duration;

use kube::{Client, Config, Error};

/// An API server that takes longer to be connected to is away. A node that waits for an answer gives up
/// later than this, so that it is told why.
const CONNECT: Duration = Duration::from_secs(5);

/// A client of the API server of this pod, else of the current context of a kubeconfig.
///
/// # Errors
/// There is neither a service account nor a kubeconfig.
pub async fn connect() -> Result<Client, Error> {
    let mut config = Config::infer().await.map_err(Error::InferConfig)?;
    config.connect_timeout = Some(CONNECT);
    Client::try_from(config)
}
