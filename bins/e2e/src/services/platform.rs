//! A controller that serves, with a vault that it brought up.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Parser as _;
use nkeys::KeyPair;
use services::bootstrap::controller::{Controller, Round};
use services::broker::bus::Bus;
use services::broker::identity::Identity;
use services::init::cli::Args as InitArgs;
use services::init::connect;
use tec_services::caller::Account;
use tec_services::shell::client::ComponentBootstrapRequest;
use tec_services::shell::client::bootstrap_client::BootstrapClient;
use tec_support::serve::{Shutdown, Transport};
use tec_support::{SystemClock, serve};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::services::stage::Stage;

/// A platform that serves.
#[derive(Debug)]
pub struct Platform {
    /// What it depends on.
    pub stage: Stage,
    /// The controller.
    pub controller: Arc<Controller>,
    /// The result of its last round.
    pub round: Round,
    /// Where it listens.
    pub address: SocketAddr,
    server: JoinSet<anyhow::Result<()>>,
}

/// A controller that listens. Stopped on drop.
#[derive(Debug)]
#[non_exhaustive]
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    server: JoinSet<anyhow::Result<()>>,
}

impl Platform {
    /// Brings everything up on the shared cluster.
    pub async fn new(flags: &[&str]) -> anyhow::Result<Self> {
        Self::on(Stage::new().await?, flags).await
    }

    /// Like [`new`](Self::new), on this stage.
    pub async fn on(stage: Stage, flags: &[&str]) -> anyhow::Result<Self> {
        let controller = stage.controller(flags).await?;
        Self::of(stage, controller).await
    }

    /// Like [`on`](Self::on), with this controller.
    pub async fn of(stage: Stage, controller: Controller) -> anyhow::Result<Self> {
        let controller = Arc::new(controller);
        let round = controller.round().await?;
        let Served { address, server } = Self::serve(&controller).await?;
        Ok(Self { stage, controller, round, address, server })
    }

    /// Starts the server of a controller whose vault is up.
    pub async fn serve(controller: &Controller) -> anyhow::Result<Served> {
        let listener = serve::bind(([127, 0, 0, 1], 0).into())?;
        let address = listener.local_addr()?;
        let transport = Transport::Tls(controller.certificate.server_config());
        let (shutdown, signals) = Shutdown::on_signals()?;
        let router = controller.router().await?;
        let mut server = JoinSet::new();
        server.spawn(async move {
            // Keeps the sender, so that nothing ends before the test does.
            let _signals = signals;
            serve::serve(listener, transport, router, shutdown).await
        });
        Ok(Served { address, server })
    }

    /// Makes the controller maintain the vault and the accounts by itself from now on, as its program does.
    pub fn keep(&mut self) -> anyhow::Result<()> {
        let controller = Arc::clone(&self.controller);
        let (shutdown, signals) = Shutdown::on_signals()?;
        self.server.spawn(async move {
            let _signals = signals;
            Ok(controller.keep(shutdown).await?)
        });
        Ok(())
    }

    /// A caller of the controller.
    pub async fn client(&self) -> anyhow::Result<BootstrapClient<Channel>> {
        self.client_at(self.address).await
    }

    /// A caller of another controller of this vault.
    pub async fn client_at(&self, address: SocketAddr) -> anyhow::Result<BootstrapClient<Channel>> {
        let account = self.stage.cluster.account("nats")?;
        let mut args = self.init(&account, &["nats"]).await?;
        args.way.controller = Some(address.to_string());
        connect::client(&args.way, &self.stage.authorities().await?)
    }

    /// The command line of an initializer in the pod of an account.
    pub async fn init(&self, account: &Account, service: &[&str]) -> anyhow::Result<InitArgs> {
        let mounted = self.stage.mount(account, &self.address.to_string()).await?;
        let line = ["services-init"].into_iter().chain(service.iter().copied());
        let line: Vec<String> = line.map(str::to_owned).chain(mounted).collect();
        Ok(InitArgs::try_parse_from(line)?)
    }

    /// A component's request for an identity with a new key.
    pub async fn request(&self, name: &str) -> anyhow::Result<ComponentBootstrapRequest> {
        let account = self.stage.cluster.component(name).await?;
        Ok(ComponentBootstrapRequest {
            service_account_token: self.stage.cluster.token(&account).await?.into_bytes(),
            request_id: "test".to_owned(),
            nats_user: KeyPair::new_user().public_key(),
            ..ComponentBootstrapRequest::default()
        })
    }

    /// The identity of a component's broker, in its pod.
    pub async fn identity(&self, name: &str) -> anyhow::Result<Arc<Identity>> {
        let account = self.stage.cluster.component(name).await?;
        let mut args = self.init(&account, &["nats"]).await?;
        // The default: where many start at the same time, each waits for a place.
        args.way.deadline_seconds = 300;
        Ok(Arc::new(Identity::new(args.way, Arc::new(SystemClock))))
    }

    /// A component that is connected to NATS.
    pub async fn broker(&self, name: &str, nats: &str) -> anyhow::Result<Bus> {
        Bus::connect(self.identity(name).await?, nats.to_owned()).await
    }
}
