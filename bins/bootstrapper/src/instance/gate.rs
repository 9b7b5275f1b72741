//! The Init call, detached from its connection.

use std::sync::Arc;

use async_trait::async_trait;
use tec_node::rpc::generated::init::api_server::Api;
use tec_node::rpc::generated::init::{InitRequest, InitResponse};
use tec_node::rpc::{InitService, Progress, Watcher};
use tec_support::log;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

/// Runs each Init to completion, whether or not its caller stays: after the lock there is no way back. A
/// caller that lost its answer asks again, with the same request; once a caller has received it, the
/// bootstrapper has done its work.
#[derive(Clone, Debug)]
pub struct InitGate {
    service: Arc<InitService>,
    running: Arc<Mutex<JoinSet<()>>>,
    end: watch::Sender<bool>,
}

impl InitGate {
    /// Wraps this service; `end` turns true when a caller has its cluster.
    pub fn new(service: InitService, end: watch::Sender<bool>) -> Self {
        Self { service: Arc::new(service.with_log(log::recent)), running: Arc::default(), end }
    }

    /// Waits until no Init is running.
    pub async fn ended(&self) {
        while self.running.lock().await.join_next().await.is_some() {}
    }

    async fn run(&self, init: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().await;
        // Finished ones must not pile up.
        while running.try_join_next().is_some() {}
        running.spawn(init);
    }
}

/// Whether the cluster exists, and someone has its kubeconfig. A check creates none.
fn is_done(checks: bool, answer: &Result<InitResponse, Status>) -> bool {
    !checks && answer.is_ok()
}

#[async_trait]
impl Api for InitGate {
    type InitWithProgressStream = Progress;

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        let (sender, receiver) = oneshot::channel();
        let service = Arc::clone(&self.service);
        let request = request.into_inner();
        let checks = request.check;
        // Not in a task: a caller that leaves without the secret leaves nothing behind.
        let admitted = service.admit(request).await?;
        self.run(async move {
            let answer = service.carry_out(admitted, &Watcher::nobody()).await;
            // A caller that disconnected asks again.
            let _ = sender.send(answer);
        })
        .await;
        let answer = receiver.await;
        let answer = answer.unwrap_or_else(|_| Err(Status::internal("the call has died")));
        if is_done(checks, &answer) {
            self.end.send_replace(true);
        }
        answer.map(Response::new)
    }

    async fn init_with_progress(
        &self,
        request: Request<InitRequest>,
    ) -> Result<Response<Progress>, Status> {
        let (watcher, progress) = Watcher::new();
        let (service, end) = (Arc::clone(&self.service), self.end.clone());
        let request = request.into_inner();
        let checks = request.check;
        let admitted = service.admit(request).await?;
        self.run(async move {
            let answer = service.carry_out(admitted, &watcher).await;
            let done = is_done(checks, &answer);
            if watcher.end(answer).await && done {
                end.send_replace(true);
            }
        })
        .await;
        Ok(Response::new(progress))
    }
}
