//! `PUT escrow`: a machine deposits the recovery key of its disk, sealed to an admin. Trustee has no such
//! path.

use axum::body::Body;
use axum::http::request::Parts;
use tec_core::flow::MAX_ESCROW;
use tec_core::secret::SecretBytes;

use super::reply::{Refusal, Reply};
use super::resource::refusal;
use super::{Kbs, reply};
use crate::jwe::Jwe;
use crate::wire::{ErrorKind, Escrowed};

impl Kbs {
    pub(super) async fn escrow(&self, parts: &Parts, body: Body) -> Reply {
        let (_, admission) = self.authenticate(&parts.headers)?;
        let body = self.receive(parts, body, MAX_ESCROW).await?;
        // Only the admin can tell whether it can be opened; what is not a JWE at all is a mistake.
        let sealed: Jwe = serde_json::from_slice(&body.bytes)
            .map_err(|_| Refusal::new(&ErrorKind::SerdeError, "the body is not a JWE"))?;
        let sealed = serde_json::to_vec(&sealed)
            .map_err(|_| Refusal::new(&ErrorKind::SerdeError, "the body is not a JWE"))?;
        let sealed = SecretBytes::new(sealed);
        let kept = self.0.config.backend.escrow(&admission, &sealed).await;
        let number = kept.map_err(|error| refusal(&error, &admission))?;
        tracing::info!(attempt = %admission.attempt, number, "recovery key escrowed");
        reply::json(&Escrowed { number })
    }
}
