//! The audit log as Events.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Resource as _};
use tec_core::port::{AuditAction, AuditEvent, AuditSink, PortError, PortErrorKind};

use super::error::port_error;
use super::{KubeRegistry, note};
use crate::api;
use crate::api::FIELD_MANAGER;

/// Maximum number of bytes of an Event's note (k8s.io/api, events/v1, type Event).
const MAX_NOTE: usize = 1024;

#[async_trait]
impl AuditSink for KubeRegistry {
    /// An Event about the machine, or about no object in particular; the line is also logged. The API server
    /// forgets Events after some time, an hour by default: collect them if you must keep the lines.
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        tracing::info!(
            audit.action = ?event.action,
            machine.id = event.machine.map(tracing::field::display),
            audit.subject = event.subject,
            "audit"
        );
        let object = self.event(event)?;
        let events: Api<Event> = self.objects();
        events
            .create(&PostParams::default(), &object)
            .await
            .map_err(|error| port_error("write an audit line", error))?;
        Ok(())
    }
}

impl KubeRegistry {
    fn event(&self, line: &AuditEvent) -> Result<Event, PortError> {
        let time = jiff::Timestamp::from_second(line.at.unix_seconds()).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "write an audit line").because(error)
        })?;
        let mut note = note(line).unwrap_or_default();
        let cut = note.floor_char_boundary(MAX_NOTE);
        note.truncate(cut);
        Ok(Event {
            metadata: ObjectMeta {
                generate_name: Some("tec-audit-".to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(reason(line.action)),
            event_time: Some(MicroTime(time)),
            note: Some(note),
            reason: Some(reason(line.action)),
            regarding: Some(self.regarding(line)),
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(FIELD_MANAGER.to_owned()),
            type_: Some(severity(line.action).to_owned()),
            ..Event::default()
        })
    }

    fn regarding(&self, line: &AuditEvent) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{}", api::GROUP, api::VERSION)),
            kind: Some(api::Machine::kind(&()).into_owned()),
            name: line.machine.as_ref().map(api::Machine::name_of),
            namespace: Some(self.namespace.clone()),
            ..ObjectReference::default()
        }
    }
}

/// The action in CamelCase, as is usual in Events.
fn reason(action: AuditAction) -> String {
    format!("{action:?}")
}

fn severity(action: AuditAction) -> &'static str {
    match action {
        AuditAction::AkRejected | AuditAction::KeyRefused => "Warning",
        _ => "Normal",
    }
}
