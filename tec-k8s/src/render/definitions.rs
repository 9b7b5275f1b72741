//! Protects the definitions of the custom resources: deleting one would delete every object of its kind, and
//! with the Machines their disk keys.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation,
};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::api::crds;

const NAME: &str = "definitions.trusted-execution-clusters.io";
/// Annotation of a definition that may be deleted, with all of its objects; its value does not matter.
pub const DANGEROUS_DELETE: &str = "trusted-execution-clusters.io/dangerous-delete";

/// Refuses to delete a definition without the annotation [`DANGEROUS_DELETE`] (Kubernetes, Validating
/// Admission Policy, since 1.30).
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
    let validation = Validation {
        expression: format!(
            "has(oldObject.metadata.annotations) && '{DANGEROUS_DELETE}' in oldObject.metadata.annotations"
        ),
        message: Some(format!(
            "every object of this kind would be deleted, and with Machines their disk keys; if that is what \
             you want: kubectl annotate crd <name> {DANGEROUS_DELETE}=yes"
        )),
        ..Validation::default()
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![rule]),
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
