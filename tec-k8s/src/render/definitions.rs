//! Protects the definitions of the custom resources, and the cluster objects: deleting a definition would delete every
//! object of its kind, deleting a cluster object whatever belongs to it, and with the Machines their disk keys.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation,
};
use kube::core::ObjectMeta;
use kube::{Resource as _, ResourceExt};

use crate::api::{TrustedExecutionCluster, crds};

const NAME: &str = "definitions.trusted-execution-clusters.io";
/// Annotation of a definition or cluster object that may be deleted, with all that belongs to it; its value does not
/// matter.
pub const DANGEROUS_DELETE: &str = "trusted-execution-clusters.io/dangerous-delete";

/// Who deletes what is in a deleted namespace: with its own account, or as the whole controller manager.
const NAMESPACES: &str =
    "['system:serviceaccount:kube-system:namespace-controller', 'system:kube-controller-manager']";

/// Refuses to delete a definition or a cluster object without the annotation [`DANGEROUS_DELETE`] (Kubernetes, Validating
/// Admission Policy, since 1.30). A namespace with a cluster object can be deleted: its Secrets would not wait.
pub fn definition_guard() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let metadata = || ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
    let text = |text: &str| Some(vec![text.to_owned()]);
    let rule = NamedRuleWithOperations {
        api_groups: text("apiextensions.k8s.io"),
        api_versions: text("*"),
        operations: text("DELETE"),
        resource_names: Some(crds().iter().map(ResourceExt::name_any).collect()),
        resources: text("customresourcedefinitions"),
        ..NamedRuleWithOperations::default()
    };
    let clusters = NamedRuleWithOperations {
        api_groups: text(&TrustedExecutionCluster::group(&())),
        resource_names: None,
        resources: text(&TrustedExecutionCluster::plural(&())),
        ..rule.clone()
    };
    let validation = Validation {
        expression: format!(
            "has(oldObject.metadata.annotations) && '{DANGEROUS_DELETE}' in oldObject.metadata.annotations || \
             request.userInfo.username in {NAMESPACES}"
        ),
        message: Some(format!(
            "everything that belongs to it would be deleted, and with Machines their disk keys; if that is what you \
             want: kubectl annotate <crd or tec> <name> {DANGEROUS_DELETE}=yes"
        )),
        ..Validation::default()
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![rule, clusters]),
                ..MatchResources::default()
            }),
            validations: Some(vec![validation]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(NAME.to_owned()),
            validation_actions: text("Deny"),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}
