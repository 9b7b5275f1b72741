//! Why pods do not run, as reported by the scheduler and the kubelet.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use tec_core::code::Code;
use tec_support::exit::CodedError;

use super::super::access::Cluster;

/// What the pods of a Deployment are waiting for, each reason once. Empty if this user may not see them.
pub(super) async fn reasons(
    cluster: &Cluster,
    deployment: &Deployment,
) -> Result<Vec<String>, CodedError> {
    let spec = deployment.spec.as_ref();
    let Some(labels) = spec.and_then(|spec| spec.selector.match_labels.as_ref()) else {
        return Ok(Vec::new());
    };
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    match cluster.list_labeled::<Pod>(&labels.join(",")).await {
        Ok(pods) => {
            let mut reasons: Vec<String> = pods.iter().flat_map(of_pod).collect();
            reasons.sort_unstable();
            reasons.dedup();
            Ok(reasons)
        }
        Err(error) if error.code == Code::ClusterForbidden => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn of_pod(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let all = [&status.init_container_statuses, &status.container_statuses];
    let containers = all.into_iter().flatten().flatten();
    unscheduled(status).into_iter().chain(containers.filter_map(of_container)).collect()
}

fn unscheduled(status: &PodStatus) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let scheduled = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    scheduled.message.clone()
}

fn of_container(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let (reason, message) = match (&state.waiting, &state.terminated) {
        // It is about to run, and has no reason yet.
        (Some(waiting), _) if waiting.reason.as_deref() == Some("ContainerCreating") => {
            return None;
        }
        (Some(waiting), _) => (waiting.reason.as_deref(), waiting.message.as_deref()),
        // Init containers exit successfully.
        (None, Some(ended)) if ended.exit_code == 0 => return None,
        (None, Some(ended)) => (ended.reason.as_deref(), ended.message.as_deref()),
        (None, None) => return None,
    };
    let words = [Some(container.name.as_str()), reason, message];
    Some(words.into_iter().flatten().collect::<Vec<_>>().join(": "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(status: &serde_json::Value) -> Vec<String> {
        of_pod(&serde_json::from_value(json!({ "status": status })).unwrap())
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_named() {
        let message = "Back-off pulling image \"registry.example/kbs:1\"";
        let waiting = json!({ "reason": "ImagePullBackOff", "message": message });
        let kbs = json!({ "name": "kbs", "state": { "waiting": waiting } });
        let guard = json!({ "name": "guard", "state": { "running": {} } });
        assert_eq!(
            said(&json!({ "containerStatuses": [kbs, guard] })),
            [format!("kbs: ImagePullBackOff: {message}")]
        );
    }

    #[test]
    fn a_pod_without_a_node_says_why_and_one_that_starts_says_nothing() {
        let message = "0/1 nodes are available: 1 Insufficient memory.";
        let waits = json!({ "type": "PodScheduled", "status": "False", "message": message });
        assert_eq!(said(&json!({ "conditions": [waits] })), [message]);
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        let done = json!({ "terminated": { "exitCode": 0, "reason": "Completed" } });
        let init = json!([{ "name": "files", "state": done }]);
        let main = json!([{ "name": "kbs", "state": creating }]);
        assert!(
            said(&json!({ "initContainerStatuses": init, "containerStatuses": main })).is_empty()
        );
    }

    #[test]
    fn a_container_that_crashes_is_named() {
        let ended = json!({ "terminated": { "exitCode": 1, "reason": "Error" } });
        let containers = json!([{ "name": "kbs", "state": ended }]);
        assert_eq!(said(&json!({ "containerStatuses": containers })), ["kbs: Error"]);
    }
}
