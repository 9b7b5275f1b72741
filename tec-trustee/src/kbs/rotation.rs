//! `GET` and `PUT rotation`: see [`crate::rotation`].

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use tec_core::code::Code;
use tec_core::rotation::{Confirmed, KeyMark};

use super::reply::{Refusal, Reply, no_such_plugin};
use super::resource::refusal;
use super::{Admission, Kbs, reply, strict};
use crate::rotation::{MAX_BODY, Report};
use crate::wire::ErrorKind;

impl Kbs {
    pub(super) async fn rotation(&self, headers: &HeaderMap) -> Reply {
        let (_, admission) = self.authenticate(headers)?;
        self.kept(&admission).await
    }

    pub(super) async fn confirm_rotation(&self, parts: &Parts, body: Body) -> Reply {
        let (_, admission) = self.authenticate(&parts.headers)?;
        let body = self.receive(parts, body, MAX_BODY).await?;
        let report: Report = strict::from_slice(&body.bytes).map_err(|_| {
            Refusal::new(&ErrorKind::SerdeError, "the body is not a step of a rotation")
        })?;
        let mark = KeyMark::from_digest(report.sha256);
        let backend = &self.0.config.backend;
        let confirmed = backend.confirm_rotation(&admission, report.step, &mark).await;
        let confirmed = confirmed.map_err(|error| refusal(&error, &admission))?;
        match confirmed.ok_or_else(no_such_plugin)? {
            Confirmed::Changed(keys) => {
                let attempt = admission.attempt;
                tracing::info!(%attempt, step = ?report.step, "disk key rotated");
                reply::json(&keys.map(KeyMark::name))
            }
            Confirmed::Already => self.kept(&admission).await,
            Confirmed::Unknown => {
                let attempt = Some(admission.attempt);
                Err(Refusal::with_code(&ErrorKind::PolicyDeny, Code::RotationNotCurrent, attempt))
            }
        }
    }

    async fn kept(&self, admission: &Admission) -> Reply {
        let keys = self.0.config.backend.rotation(admission).await;
        let keys = keys.map_err(|error| refusal(&error, admission))?;
        reply::json(&keys.ok_or_else(no_such_plugin)?.map(KeyMark::name))
    }
}
