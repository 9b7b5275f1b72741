//! The Init call, cut loose from its connection.

use std::sync::Arc;

use async_trait::async_trait;
use tec_k8s::rpc::InitService;
use tec_k8s::rpc::generated::init::InitRequest;
use tec_k8s::rpc::generated::init::InitResponse;
use tec_k8s::rpc::generated::init::api_server::Api;
use tokio::sync::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::Response;
use tonic::Status;

use crate::cleaner::Cleaner;

/// Runs each Init to its end, whether its caller stays or not: beyond the lock there is only
/// forward. A caller that lost its answer asks again, with the same request; when one got it, the
/// bootstrapper has done its work.
#[derive(Clone, Debug)]
pub struct InitGate {
    service: Arc<InitService>,
    running: Arc<Mutex<JoinSet<()>>>,
    cleaner: Cleaner,
}

impl InitGate {
    /// Before this service.
    pub fn new(service: InitService, cleaner: Cleaner) -> Self {
        Self {
            service: Arc::new(service),
            running: Arc::default(),
            cleaner,
        }
    }

    /// Waits until no Init runs any more.
    pub async fn ended(&self) {
        while self.running.lock().await.join_next().await.is_some() {}
    }
}

#[async_trait]
impl Api for InitGate {
    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        let (sender, receiver) = oneshot::channel();
        let service = Arc::clone(&self.service);
        let mut running = self.running.lock().await;
        // Callers without the secret come here, too: what ended must not pile up.
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            // A caller that went away asks again.
            let _ = sender.send(service.init(request).await);
        });
        drop(running);
        let answer = receiver.await;
        let answer = answer.unwrap_or_else(|_| Err(Status::internal("the call has died")));
        if answer.is_ok() {
            self.cleaner.clean();
        }
        answer
    }
}
