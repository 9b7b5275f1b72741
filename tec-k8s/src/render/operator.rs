//! The operator itself: the objects that an admin applies, with packages or manually.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, EnvVar, Namespace, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::installation::Installation;
use super::meta::{label_selector, labels};
use super::name::Component;
use super::network::Reach;
use super::pod::ApiAccess;
use super::server::disruption_budget;
use super::{Object, PodUser, RelatedImage, network, pod, rbac};

/// Number of replicas: one leads, one waits.
const REPLICAS: i32 = 2;
/// Tells the operator that the platform assigns users to pods.
const ASSIGNED_USER_FLAG: &str = "--assigned-pod-user";

/// Accounts and permissions of all components, and the operator's Deployment, Service for metrics, disruption
/// budget and network policy; without the namespace and the custom resources.
///
/// The operator cannot grant permissions that it lacks, so the accounts and Roles of the programs that it
/// deploys are included.
pub fn operator(installation: &Installation) -> Vec<Object> {
    let component = Component::Operator;
    let name = component.deployment();
    let metadata = |name: &str| installation.metadata(name, component);
    let mut objects = rbac::accounts(installation);
    objects.extend([
        network::metrics_service(metadata(&format!("{name}-metrics")), component).into(),
        network::policy(metadata(name), component, None, Reach::Anything).into(),
        disruption_budget(metadata(name), component).into(),
        deployment(installation).into(),
    ]);
    objects
}

/// A namespace in which every pod must meet the profile "restricted"; all of ours do.
pub fn namespace(name: &str) -> Object {
    let mut labels = labels(Component::Operator);
    labels.remove("app");
    let profile = "pod-security.kubernetes.io/enforce".to_owned();
    labels.insert(profile, "restricted".to_owned());
    Namespace {
        metadata: ObjectMeta {
            labels: Some(labels),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
    .into()
}

fn deployment(installation: &Installation) -> Deployment {
    let component = Component::Operator;
    let spec = PodSpec {
        containers: vec![container(installation)],
        topology_spread_constraints: Some(pod::spread(component)),
        ..PodSpec::default()
    };
    let user = installation.deploy.user;
    Deployment {
        metadata: installation.metadata(component.deployment(), component),
        spec: Some(DeploymentSpec {
            replicas: Some(REPLICAS),
            selector: label_selector(component),
            template: pod::template(component, user, ApiAccess::Pod, spec),
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn container(installation: &Installation) -> Container {
    let mut arguments = vec![pod::metrics_argument()];
    if installation.deploy.user == PodUser::Assigned {
        arguments.push(ASSIGNED_USER_FLAG.to_owned());
    }
    if !installation.pcrs.is_empty() {
        arguments.push(pod::pcrs_argument(installation.pcrs.iter().copied()));
    }
    arguments.extend_from_slice(&installation.arguments);
    Container {
        args: Some(arguments),
        env: Some(environment(installation)),
        image: Some(installation.image.clone()),
        liveness_probe: Some(pod::own_probe("/livez")),
        name: Component::Operator.deployment().to_owned(),
        ports: Some(vec![pod::metrics_port()]),
        readiness_probe: Some(pod::own_probe("/readyz")),
        resources: Some(pod::resources("100m", "64Mi", "256Mi")),
        security_context: Some(pod::container_security()),
        ..Container::default()
    }
}

fn environment(installation: &Installation) -> Vec<EnvVar> {
    let images = &installation.deploy.images;
    let fixed = [
        pod::field_variable("POD_NAME", "metadata.name"),
        pod::field_variable("POD_NAMESPACE", "metadata.namespace"),
        pod::variable(pod::LOG_FORM, "json"),
    ];
    let related = RelatedImage::ALL.map(|related| {
        let image = images.of(related);
        pod::variable(related.variable(), image)
    });
    fixed.into_iter().chain(related).collect()
}
