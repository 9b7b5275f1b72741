//! The current service.

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use parking_lot::RwLock;
use tec_core::code::Code;
use tec_core::http::{RegisterService, ReplyStyle, refusal};

/// How requests are answered.
#[derive(Clone, Debug)]
pub(crate) enum Answering {
    Service(RegisterService),
    /// Refuses every request with this code.
    Refusing(Code),
}

/// Holds whatever answers requests now; replaced when the cluster object changes.
#[derive(Debug)]
pub(crate) struct Slot(RwLock<Answering>);

impl Default for Slot {
    fn default() -> Self {
        Self(RwLock::new(Answering::Refusing(Code::RegisterNotReady)))
    }
}

impl Slot {
    pub(crate) fn put(&self, answering: Answering) {
        *self.0.write() = answering;
    }

    fn get(&self) -> Answering {
        self.0.read().clone()
    }

    pub(crate) async fn respond(&self, request: Request) -> Response {
        // The body is not needed.
        let request = request.map(drop);
        match self.get() {
            Answering::Service(service) => service.respond(request).await.into_response(),
            Answering::Refusing(code) => refusal(ReplyStyle::Registration, code).into_response(),
        }
    }
}
