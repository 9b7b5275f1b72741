//! The gRPC server for the runtime in the same pod.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::{Stream, StreamExt as _};
use tec_services::shell::broker::broker_server::{Broker, BrokerServer, SERVICE_NAME};
use tec_services::shell::broker::{Message, PublishRequest, PublishResponse, SubscribeRequest};
use tec_support::serve;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::broker::bus::Bus;
use crate::broker::events::{EventError, Events};

/// Interval between checks of the connection.
const LOOK: Duration = Duration::from_secs(1);

/// The service, backed by the bus.
#[derive(Clone, Debug)]
struct Face {
    bus: Arc<Bus>,
    events: Option<Events>,
}

impl Face {
    /// The store for this subject, if its messages are stored.
    fn stored(&self, subject: &str) -> Option<&Events> {
        self.events.as_ref().filter(|_| Events::are_at(subject))
    }
}

/// The routes (broker and health), and the health reporter.
pub fn router(bus: Arc<Bus>, events: Option<Events>) -> (HealthReporter, Router) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let routes = tonic::service::Routes::new(BrokerServer::new(Face { bus, events }))
        .add_service(health)
        .into_axum_router();
    (reporter, routes)
}

/// `/livez`, and `/readyz`: whether messages can be published.
pub fn probes(bus: Arc<Bus>) -> Router {
    serve::probes(move || {
        let bus = Arc::clone(&bus);
        async move { (!bus.is_connected().await).then_some("NATS is not connected") }
    })
}

/// Reports whether messages can be published, for the server as a whole and for its only service, for as long
/// as it is polled.
pub async fn tell(bus: &Bus, health: &HealthReporter) {
    loop {
        let status = if bus.is_connected().await {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for service in ["", SERVICE_NAME] {
            health.set_service_status(service, status).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn refused(error: &anyhow::Error) -> Status {
    Status::invalid_argument(format!("{error:#}"))
}

#[tonic::async_trait]
impl Broker for Face {
    async fn publish(
        &self,
        request: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        let PublishRequest { subject, payload, id } = request.into_inner();
        if let Some(events) = self.stored(&subject) {
            let stored = events.publish(&subject, payload, &id).await;
            stored.map_err(|error| match error {
                EventError::Foreign(_) => Status::permission_denied(error.to_string()),
                EventError::NotStored(..) => Status::unavailable(error.to_string()),
            })?;
        } else {
            let published = self.bus.publish(&subject, payload).await;
            published.map_err(|error| refused(&error))?;
        }
        Ok(Response::new(PublishResponse {}))
    }

    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let subject = request.into_inner().subject;
        let from = match self.stored(&subject) {
            // The stream may come yet, and so may a server.
            Some(events) => events
                .subscribe(&subject)
                .await
                .map_err(|error| Status::unavailable(format!("{error:#}")))?,
            None => self.bus.subscribe(&subject).await.map_err(|error| refused(&error))?,
        };
        let messages = futures::stream::unfold(from, |mut from| async move {
            let message = from.recv().await?;
            Some((message, from))
        });
        let messages = messages.map(|message| {
            Ok(Message { subject: message.subject.to_string(), payload: message.payload.to_vec() })
        });
        Ok(Response::new(messages.boxed()))
    }
}
