//! Two Helm charts: the definitions, which survive an uninstallation, and the operator.
//!
//! Templates are the rendered objects with a mark wherever a value goes. A mark cannot be mistaken for real
//! content, and none may be left over.

use anyhow::{Context as _, Result, ensure};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use tec_k8s::api::crds;
use tec_k8s::render::{
    Component, Images, Installation, OPERATOR_IMAGE, Object, PodUser, RelatedImage,
    definition_guard, node_rights, operator, user_roles,
};

use crate::kustomize::GUARD;
use crate::{Files, VERSION, base_url, dashboard, monitoring, values, yaml};

const CRDS: &str = "tec-crds";
const OPERATOR: &str = "tec-operator";
/// The oldest Kubernetes version that supports selectable fields of custom resources by default.
pub(crate) const KUBERNETES: &str = "1.31.0";

/// Where an image is stored.
type Place = fn(&mut Installation) -> &mut String;

/// Prefix of every mark.
const MARK: &str = "tec-mark-";
/// Member of `images` in values.yaml, the image of this release, and its accessor.
const IMAGES: [(&str, &str, Place); 6] = [
    ("operator", OPERATOR_IMAGE, |to| &mut to.image),
    ("kbsGuard", RelatedImage::KbsGuard.image_name(), |to| &mut to.deploy.images.kbs_guard),
    ("keyBroker", RelatedImage::KeyBroker.image_name(), |to| &mut to.deploy.images.key_broker),
    ("registrationServer", RelatedImage::RegistrationServer.image_name(), |to| {
        &mut to.deploy.images.register_server
    }),
    ("attestationKeyRegister", RelatedImage::AttestationKeyRegister.image_name(), |to| {
        &mut to.deploy.images.attestation_key_register
    }),
    ("computePcrs", RelatedImage::ComputePcrs.image_name(), |to| {
        &mut to.deploy.images.compute_pcrs
    }),
];
/// The same for the only image of another project, which has a default.
const TRUSTEE: &str = "trustee";

pub(crate) fn files() -> Result<Files> {
    let mut files = Files::new();
    for (name, text) in definitions()? {
        files.insert(format!("{CRDS}/{name}"), text);
    }
    for (name, text) in chart()? {
        files.insert(format!("{OPERATOR}/{name}"), text);
    }
    Ok(files)
}

fn definitions() -> Result<Files> {
    let mut files = Files::new();
    let about = "Definitions of the custom resources of Trusted Execution Clusters";
    files.insert("Chart.yaml".to_owned(), about_chart(CRDS, about)?);
    let (mut policy, mut binding) = definition_guard();
    keep(&mut policy.metadata);
    keep(&mut binding.metadata);
    let guard = yaml::documents(&[serde_json::to_value(policy)?, serde_json::to_value(binding)?])?;
    files.insert(format!("templates/{GUARD}"), guard);
    for mut crd in crds() {
        keep(&mut crd.metadata);
        let name = crd.metadata.name.clone().context("a CRD has no name")?;
        let text = yaml::document(&crd)?;
        ensure!(!text.contains("{{"), "{name} would be read as a template");
        files.insert(format!("templates/{name}.yaml"), text);
    }
    Ok(files)
}

fn keep(metadata: &mut ObjectMeta) {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
}

fn chart() -> Result<Files> {
    let about =
        "Operator of Trusted Execution Clusters: keys only for nodes that prove what they booted";
    let mut files = Files::from([
        ("Chart.yaml".to_owned(), about_chart(OPERATOR, about)?),
        ("README.md".to_owned(), values::readme()),
        ("values.yaml".to_owned(), values()),
        ("values.schema.json".to_owned(), schema()?),
        ("templates/_image.tpl".to_owned(), IMAGE.to_owned()),
        ("templates/NOTES.txt".to_owned(), NOTES.to_owned()),
        ("dashboards/tec.json".to_owned(), dashboard::json()?),
        ("templates/monitoring.yaml".to_owned(), monitoring_template()?),
        (
            "templates/users.yaml".to_owned(),
            guarded(".Values.userRoles", &yaml::documents(&user_roles())?),
        ),
    ]);
    let nodes = template(&node_rights(&marked(PodUser::Fixed)))?;
    let nodes = guarded(".Values.actOnNodes", &format!("---\n{}", nodes.join("---\n")));
    files.insert("templates/nodes.yaml".to_owned(), format!("{}{nodes}", yaml::GENERATED));
    let (accounts, programs) = operator_templates()?;
    files.insert("templates/accounts.yaml".to_owned(), accounts);
    files.insert("templates/operator.yaml".to_owned(), programs);
    Ok(files)
}

/// Accounts and permissions, and the operator for either type of user.
fn operator_templates() -> Result<(String, String)> {
    let (mut accounts, mut programs) = (yaml::GENERATED.to_owned(), yaml::GENERATED.to_owned());
    let assigned = template(&operator(&marked(PodUser::Assigned)))?;
    let fixed = operator(&marked(PodUser::Fixed));
    for ((object, fixed), assigned) in fixed.iter().zip(template(&fixed)?).zip(assigned) {
        let text = if fixed == assigned {
            fixed
        } else {
            format!(
                "{{{{- if .Values.assignedPodUser }}}}\n{assigned}{{{{- else }}}}\n{fixed}{{{{- end }}}}\n"
            )
        };
        let file = match object.kind() {
            "ServiceAccount" | "Role" | "RoleBinding" => &mut accounts,
            _ => &mut programs,
        };
        file.push_str("---\n");
        file.push_str(&kept(object, &text));
        if matches!(object, Object::ServiceAccount(_)) {
            file.push_str(PULL_SECRETS);
        }
    }
    Ok((accounts, programs))
}

/// The servers' accounts and permissions stay when the chart is uninstalled. Their pods keep running, and the
/// tokens of an account that is deleted and recreated are void until the kubelet renews them.
fn kept(object: &Object, text: &str) -> String {
    let ends_with_the_operator = [Component::Operator, Component::ComputePcrs]
        .iter()
        .any(|component| object.name().starts_with(component.service_account()));
    match object.kind() {
        "ServiceAccount" | "Role" | "RoleBinding" if !ends_with_the_operator => {
            let kept = "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n";
            text.replacen("metadata:\n", kept, 1)
        }
        _ => text.to_owned(),
    }
}

/// Pods use the pull secrets of their account, including those that the operator deploys.
const PULL_SECRETS: &str = "{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 2 }}
{{- end }}
";

fn marked(user: PodUser) -> Installation {
    let mut installation = Installation::default();
    installation.namespace = format!("{MARK}namespace");
    for (name, _, image) in IMAGES {
        *image(&mut installation) = format!("{MARK}{name}-");
    }
    installation.deploy.images.trustee = format!("{MARK}{TRUSTEE}-");
    installation.deploy.user = user;
    installation
}

fn template(objects: &[Object]) -> Result<Vec<String>> {
    objects
        .iter()
        .map(|object| {
            let mut text = serde_saphyr::to_string(object)?;
            ensure!(!text.contains("{{"), "{} would be a template", object.name());
            if matches!(object, Object::Deployment(_)) {
                text = values::fill(&text)?;
            }
            text = text.replace(&format!("{MARK}namespace"), "{{ .Release.Namespace }}");
            for (name, image, _) in IMAGES {
                let value = format!(
                    "{{{{ include \"tec.image\" (list . .Values.images.{name} \"{image}\") | quote }}}}"
                );
                text = text.replace(&format!("{MARK}{name}-"), &value);
            }
            let value = format!("{{{{ .Values.images.{TRUSTEE} | quote }}}}");
            text = text.replace(&format!("{MARK}{TRUSTEE}-"), &value);
            ensure!(!text.contains(MARK), "{} has a mark left", object.name());
            Ok(text)
        })
        .collect()
}

fn guarded(condition: &str, text: &str) -> String {
    format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")
}

fn monitoring_template() -> Result<String> {
    let service_monitor = serde_saphyr::to_string(&monitoring::service_monitor())?;
    let rules = serde_saphyr::to_string(&monitoring::rules())?;
    let mark = format!("{MARK}dashboard");
    let dashboard = serde_saphyr::to_string(&monitoring::dashboard_config_map(&mark))?;
    // The dashboard's own braces belong to Grafana; a file is not read as a template.
    let file = "{{ .Files.Get \"dashboards/tec.json\" | toJson }}";
    let dashboard = dashboard.replace(&mark, file);
    let mut text = yaml::GENERATED.to_owned();
    for (value, object) in
        [("serviceMonitor", service_monitor), ("prometheusRule", rules), ("dashboard", dashboard)]
    {
        let condition = format!(".Values.monitoring.{value}");
        text.push_str(&guarded(&condition, &format!("---\n{object}")));
    }
    Ok(text)
}

fn about_chart(name: &str, description: &str) -> Result<String> {
    let mut chart = json!({
        "apiVersion": "v2",
        "appVersion": VERSION,
        "description": description,
        "kubeVersion": format!(">={KUBERNETES}-0"),
        "name": name,
        "type": "application",
        "version": VERSION,
    });
    if let Some(url) = base_url() {
        yaml::set(&mut chart, "home", json!(url));
    }
    yaml::document(&chart)
}

fn values() -> String {
    let images = IMAGES.map(|(name, ..)| format!("  {name}: \"\"\n")).concat();
    let trustee = Images::default().trustee;
    format!(
        "{GENERATED}
# The registry that you pushed the images of this release to, such as registry.example/tec. Required, unless
# every image is set.
registry: \"\"

# Images, by tag or digest. Empty: those of this release in the registry. The Trustee is another project's.
images:
{images}  {TRUSTEE}: {trustee}

# Secrets with credentials of the registry: a list of objects with `name`.
imagePullSecrets: []
{settings}
# For the Prometheus operator and for Grafana's sidecar.
monitoring:
  serviceMonitor: false
  prometheusRule: false
  dashboard: false
",
        GENERATED = yaml::GENERATED,
        settings = values::values(),
    )
}

/// Refuses values that no template reads: a typo would otherwise have no effect.
fn schema() -> Result<String> {
    let flag = json!({"type": "boolean"});
    let object = |members: Value| {
        let properties = members.as_object().cloned().unwrap_or_default();
        json!({"type": "object", "additionalProperties": false, "properties": properties})
    };
    let text = json!({"type": "string", "minLength": 1});
    let names = IMAGES.iter().map(|(name, ..)| *name).chain([TRUSTEE]);
    let images: Value = names.map(|name| (name.to_owned(), json!({"type": "string"}))).collect();
    let secret = json!({"type": "object", "required": ["name"], "properties": {"name": text}});
    let mut schema = object(json!({
        // Helm gives this member to every chart that is a dependency.
        "global": {"type": "object"},
        "imagePullSecrets": {"type": "array", "items": secret},
        "images": object(images),
        "monitoring": object(
            json!({"dashboard": flag, "prometheusRule": flag, "serviceMonitor": flag})
        ),
        "registry": {"type": "string"},
    }));
    if let Some(Value::Object(members)) = schema.get_mut("properties") {
        members.extend(values::properties());
    }
    if let Some(members) = schema.as_object_mut() {
        let draft = "https://json-schema.org/draft/2020-12/schema";
        members.insert("$schema".to_owned(), json!(draft));
    }
    Ok(format!("{}\n", serde_json::to_string_pretty(&schema)?))
}

/// Fails in one sentence where neither an image nor the registry is named: nothing else knows where the images
/// of a release are.
const IMAGE: &str = r#"{{- /* The image that a value names, or that of this release in the registry. */}}
{{- define "tec.image" -}}
{{- $root := index . 0 -}}
{{- if index . 1 -}}
{{- index . 1 -}}
{{- else -}}
{{- required "set the registry that you pushed the images of this release to: --set registry=registry.example/tec" $root.Values.registry | trimSuffix "/" -}}
/{{ index . 2 }}:v{{ $root.Chart.AppVersion }}
{{- end -}}
{{- end }}
"#;

const NOTES: &str = "The operator of Trusted Execution Clusters runs in {{ .Release.Namespace }}.

Next:
  kubectl tec check --namespace {{ .Release.Namespace }}
  kubectl apply --namespace {{ .Release.Namespace }} -f <your TrustedExecutionCluster>
  kubectl tec image approve <name> <image@sha256:digest>
";
