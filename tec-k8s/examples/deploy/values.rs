//! The values of the operator's chart: one table, from which values.yaml, its schema, the README and the
//! template expressions are generated.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use crate::yaml;

/// One value of the chart.
pub(crate) struct Setting {
    name: &'static str,
    /// Default value, as written in values.yaml.
    default: &'static str,
    about: &'static str,
    /// Its JSON Schema.
    schema: fn() -> Value,
    place: Place,
}

/// How a template uses a value.
enum Place {
    /// It replaces a mark in the template, or decides what is installed.
    Elsewhere,
    /// A flag of the operator, from text.
    Flag(&'static str),
    /// A flag, from a list that is joined with commas.
    List(&'static str),
    /// A flag for each member of a list.
    Each(&'static str),
    /// A flag, from JSON.
    Json(&'static str),
    /// A member of the pod.
    Pod,
}

fn text() -> Value {
    json!({"type": "string"})
}

fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string", "minLength": 1}})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn any() -> Value {
    json!({"type": "object"})
}

fn registers() -> Value {
    json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 23}})
}

/// All values except `registry`, `images`, `imagePullSecrets` and `monitoring`, which have members of their own.
pub(crate) const SETTINGS: [Setting; 14] = [
    Setting {
        name: "assignedPodUser",
        default: "false",
        about: "Leave the users of pods to the platform. OpenShift needs this.",
        schema: flag,
        place: Place::Elsewhere,
    },
    Setting {
        name: "userRoles",
        default: "true",
        about: "ClusterRoles with which people may see or change the custom resources.",
        schema: flag,
        place: Place::Elsewhere,
    },
    Setting {
        name: "actOnNodes",
        default: "false",
        about: "Let the operator get and patch all Nodes, for spec.onUntrusted of the cluster object.",
        schema: flag,
        place: Place::Elsewhere,
    },
    Setting {
        name: "replicas",
        default: "2",
        about: "Replicas of the operator. One leads, the others wait.",
        schema: || json!({"type": "integer", "minimum": 1}),
        place: Place::Elsewhere,
    },
    Setting {
        name: "resources",
        default: "{}",
        about: "Requests and limits of the operator. Empty: 100m CPU, 64Mi to 256Mi memory.",
        schema: any,
        place: Place::Elsewhere,
    },
    Setting {
        name: "nodeSelector",
        default: "{}",
        about: "Labels of the nodes that the operator may run on.",
        schema: any,
        place: Place::Pod,
    },
    Setting {
        name: "tolerations",
        default: "[]",
        about: "Taints that the operator tolerates.",
        schema: || json!({"type": "array", "items": {"type": "object"}}),
        place: Place::Pod,
    },
    Setting {
        name: "affinity",
        default: "{}",
        about: "Affinity of the operator.",
        schema: any,
        place: Place::Pod,
    },
    Setting {
        name: "logLevel",
        default: "\"\"",
        about: "Log filter of the operator, such as info,kube=debug. Empty: info.",
        schema: text,
        place: Place::Flag("--log"),
    },
    Setting {
        name: "pcrs",
        default: "[]",
        about: "PCRs that must be those of approved images. Empty: what the operator pins by default.",
        schema: registers,
        place: Place::List("--pcrs"),
    },
    Setting {
        name: "registryMirrors",
        default: "[]",
        about: "Mirrors that images are read from when they are measured: registry.example/team=mirror.local/copies.",
        schema: texts,
        place: Place::Each("--mirror"),
    },
    Setting {
        name: "sharedSources",
        default: "[]",
        about: "Networks whose addresses stand for many nodes each, such as 10.0.0.0/8.",
        schema: texts,
        place: Place::List("--shared-sources"),
    },
    Setting {
        name: "settings",
        default: "{}",
        about: "Pods and Services that the operator creates: replicas, log, nodeSelector, tolerations, affinity, \
                resources by container, services by name (type, annotations, externalTrafficPolicy), egressPorts. \
                Jobs that read images follow them, too (containers measure and compute-pcrs).",
        schema: deployed,
        place: Place::Json("--settings"),
    },
    Setting {
        name: "extraArgs",
        default: "[]",
        about: "Further flags of the operator.",
        schema: texts,
        place: Place::Each(""),
    },
];

/// The members of `tec_k8s::render::Settings`.
fn deployed() -> Value {
    let ports =
        json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}});
    let service = json!({"type": "object", "additionalProperties": false, "properties": {
        "annotations": any(),
        "externalTrafficPolicy": {"enum": ["Local", "Cluster"]},
        "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    }});
    json!({"type": "object", "additionalProperties": false, "properties": {
        "affinity": any(),
        "egressPorts": ports,
        "log": text(),
        "nodeSelector": any(),
        "replicas": {"type": "integer", "minimum": 1},
        "resources": any(),
        "services": {"type": "object", "additionalProperties": false, "properties": {
            "attestation-key-register": service, "kbs-service": service, "register-server": service,
        }},
        "tolerations": {"type": "array", "items": {"type": "object"}},
    }})
}

/// Lines of values.yaml.
pub(crate) fn values() -> String {
    let line = |setting: &Setting| {
        format!("\n# {}\n{}: {}\n", setting.about, setting.name, setting.default)
    };
    SETTINGS.iter().map(line).collect()
}

/// Properties of the schema.
pub(crate) fn properties() -> Map<String, Value> {
    let settings = SETTINGS.iter().map(|setting| (setting.name, (setting.schema)()));
    // A value of earlier charts that `helm upgrade --reuse-values` still sends. The generation that is left had it.
    let former = ("trusteeGeneration", json!({ "enum": ["", "v0.21"] }));
    settings.chain([former]).map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// The page of the chart.
pub(crate) fn readme() -> String {
    let row = |name: &str, default: &str, about: &str| {
        format!("| `{name}` | `{default}` | {} |\n", about.replace('|', "\\|"))
    };
    let mut rows = String::new();
    rows.push_str(&row(
        "registry",
        "none",
        "The registry that you pushed the images of this release to. Required, unless every image is set.",
    ));
    rows.push_str(&row("images.*", "this release", "Images, by tag or digest."));
    rows.push_str(&row(
        "imagePullSecrets",
        "[]",
        "Secrets with credentials of the registry, for all pods.",
    ));
    for Setting { name, default, about, .. } in &SETTINGS {
        rows.push_str(&row(name, default, about));
    }
    rows.push_str(&row("monitoring.*", "false", "ServiceMonitor, PrometheusRule and dashboard."));
    format!(
        "<!-- {} -->
# tec-operator

The operator of Trusted Execution Clusters. Install the chart `tec-crds` first.

| value | default | meaning |
|---|---|---|
{rows}
Values that the chart does not know are refused. A load balancer in front of the servers:

```yaml
settings:
  services:
    kbs-service: {{type: LoadBalancer}}
    register-server: {{type: LoadBalancer}}
    attestation-key-register: {{type: LoadBalancer}}
```
",
        yaml::GENERATED.trim_start_matches('#').trim()
    )
}

/// The operator's Deployment, with the values in their places.
pub(crate) fn fill(deployment: &str) -> Result<String> {
    let mut filled = deployment.to_owned();
    let mut put = |at: &str, with: String| {
        ensure!(
            filled.matches(at).count() == 1,
            "the Deployment does not contain {at:?} exactly once"
        );
        filled = filled.replace(at, &with);
        anyhow::Ok(())
    };
    let first = "        - --metrics-addr=0.0.0.0:9090\n";
    put(first, format!("{first}{}", SETTINGS.iter().map(argument).collect::<String>()))?;
    put("  replicas: 2\n", "  replicas: {{ .Values.replicas }}\n".to_owned())?;
    let last = "      serviceAccountName: trusted-cluster-operator\n";
    put(last, format!("{last}{}", SETTINGS.iter().map(member).collect::<String>()))?;
    let (start, rest) = filled.split_once("        resources:\n").unwrap_or_default();
    let end = rest.find("        securityContext:\n");
    let (resources, rest) = rest.split_at(end.unwrap_or_default());
    ensure!(!resources.is_empty(), "the operator's container has no resources");
    Ok(format!(
        "{start}        resources:\n{{{{- with .Values.resources }}}}\n{{{{- toYaml . | nindent 10 }}}}\n\
         {{{{- else }}}}\n{resources}{{{{- end }}}}\n{rest}"
    ))
}

fn argument(setting: &Setting) -> String {
    let name = setting.name;
    match setting.place {
        Place::Flag(flag) => {
            with(name, &format!("        - {{{{ printf \"{flag}=%s\" . | quote }}}}"))
        }
        Place::List(flag) => {
            with(name, &format!("        - {{{{ printf \"{flag}=%s\" (join \",\" .) | quote }}}}"))
        }
        Place::Json(flag) => {
            with(name, &format!("        - {{{{ printf \"{flag}=%s\" (toJson .) | quote }}}}"))
        }
        Place::Each("") => each(name, "        - {{ . | quote }}"),
        Place::Each(flag) => {
            each(name, &format!("        - {{{{ printf \"{flag}=%s\" . | quote }}}}"))
        }
        Place::Elsewhere | Place::Pod => String::new(),
    }
}

fn member(setting: &Setting) -> String {
    let name = setting.name;
    match setting.place {
        Place::Pod => with(name, &format!("      {name}:\n{{{{- toYaml . | nindent 8 }}}}")),
        _ => String::new(),
    }
}

fn with(name: &str, text: &str) -> String {
    format!("{{{{- with .Values.{name} }}}}\n{text}\n{{{{- end }}}}\n")
}

fn each(name: &str, text: &str) -> String {
    format!("{{{{- range .Values.{name} }}}}\n{text}\n{{{{- end }}}}\n")
}
