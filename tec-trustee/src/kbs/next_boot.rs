//! `PUT next-boot`: see [`crate::next_boot`].

use axum::body::Body;
use axum::http::request::Parts;
use tec_core::attest::Attested;
use tec_core::flow::NextBoot;

use super::reply::{Refusal, Reply};
use super::resource::refusal;
use super::{Admission, Kbs, reply, strict};
use crate::next_boot::{Answer, MAX_BODY, Question};
use crate::wire::ErrorKind;

impl Kbs {
    pub(super) async fn next_boot(&self, parts: &Parts, body: Body) -> Reply {
        let (_, admission) = self.authenticate(&parts.headers)?;
        let body = self.receive(parts, body, MAX_BODY).await?;
        let question: Question = strict::from_slice(&body.bytes).map_err(|_| {
            Refusal::new(&ErrorKind::SerdeError, "the body is not a list of registers")
        })?;
        let next = self.0.config.backend.next_boot(&admission, &question.pcrs).await;
        let next = next.map_err(|error| refusal(&error, &admission))?;
        let not_here =
            || Refusal::new(&ErrorKind::PluginNotFound, "this server judges no boots in advance");
        let next = next.ok_or_else(not_here)?;
        log(&admission, &next);
        reply::json(&Answer::from(&next))
    }
}

/// The admin sees what the node is not told.
fn log(admission: &Admission, next: &NextBoot) {
    let machine = admission.attested.as_ref().map(Attested::machine);
    let machine = machine.map(|machine| machine.to_string()).unwrap_or_default();
    match next {
        NextBoot::Accepted { states } => {
            tracing::info!(machine.id = machine, ?states, "next boot would be accepted");
        }
        NextBoot::Refused { pcrs, trouble } => {
            let pcrs: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
            tracing::warn!(machine.id = machine, ?pcrs, trouble, "next boot would be refused");
        }
        NextBoot::Undetermined { pcrs } => {
            let pcrs: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
            tracing::warn!(machine.id = machine, ?pcrs, "next boot is not predicted");
        }
    }
}
