//! Configuration of collectors and senders of telemetry, always with mutual TLS.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use tec_core::time::Timestamp;

/// Interval after which a collector reloads its certificate. Without this setting, it never does.
const RELOAD: &str = "5m";

/// Paths of the certificate, its key and the CA certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub cert: String,
    /// The key.
    pub key: String,
    /// The CA certificates.
    pub ca: String,
}

/// Addresses where a collector listens for OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address for tracers, over gRPC.
    pub grpc: SocketAddr,
    /// Address for our own programs, and for other senders over HTTP.
    pub http: SocketAddr,
}

/// The configuration of an OpenTelemetry collector: receives OTLP, writes to OpenSearch. Its login
/// comes from a file that it rereads on every change: `${file:…}` is read only once, at the start,
/// and would keep a replaced password.
///
/// JSON, which is valid YAML.
pub fn collector(listen: &Listen, tls: &TlsFiles, opensearch: &str, login_file: &str) -> String {
    let receiver = |address: SocketAddr| {
        json!({"endpoint": address.to_string(), "tls": {
            "cert_file": tls.cert, "key_file": tls.key,
            // Requires a certificate from every sender.
            "client_ca_file": tls.ca, "client_ca_file_reload": true,
            "min_version": "1.3", "reload_interval": RELOAD,
        }})
    };
    let value: Value = json!({
        "receivers": {"otlp": {"protocols": {
            "grpc": receiver(listen.grpc), "http": receiver(listen.http),
        }}},
        "extensions": {"bearertokenauth/opensearch": {
            "scheme": "Basic", "filename": login_file,
        }},
        "processors": {"memory_limiter": {"check_interval": "1s", "limit_percentage": 75},
                       "batch": {}},
        "exporters": {"opensearch": {"http": {
            "endpoint": opensearch, "auth": {"authenticator": "bearertokenauth/opensearch"},
            "tls": {"ca_file": tls.ca},
        }}},
        "service": {
            "extensions": ["bearertokenauth/opensearch"],
            "pipelines": {
                "logs": pipeline(), "traces": pipeline(),
            },
        },
    });
    format!("{value:#}\n")
}

fn pipeline() -> Value {
    json!({"receivers": ["otlp"], "processors": ["memory_limiter", "batch"],
           "exporters": ["opensearch"]})
}

/// The environment of a tracer, with the variable names of the OpenTelemetry specification (OTLP
/// exporter).
pub fn tracer(endpoint: &Endpoint, tls: &TlsFiles) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.to_string()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", tls.ca.clone()),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", tls.cert.clone()),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", tls.key.clone()),
    ])
}

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Step-by-step details for developers.
    Trace,
    /// Details for developers.
    Debug,
    /// Something changed.
    Info,
    /// Degraded, but safe.
    Warn,
    /// Someone must act.
    Error,
}

impl Severity {
    /// Number and name (OpenTelemetry, logs data model, "Severity Fields").
    const fn written(self) -> (u8, &'static str) {
        match self {
            Self::Trace => (1, "TRACE"),
            Self::Debug => (5, "DEBUG"),
            Self::Info => (9, "INFO"),
            Self::Warn => (13, "WARN"),
            Self::Error => (17, "ERROR"),
        }
    }
}

/// A line of a program's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The time.
    pub at: Timestamp,
    /// Its severity.
    pub severity: Severity,
    /// The part of the program.
    pub target: String,
    /// The message.
    pub text: String,
    /// Additional values.
    pub fields: BTreeMap<&'static str, String>,
}

/// Path of logs over HTTP (OTLP 1.9, "OTLP/HTTP Request").
pub const LOGS: &str = "/v1/logs";

/// The lines of a program, in the JSON form of OTLP.
pub fn logs(service: &str, lines: &[Line]) -> Value {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let records: Vec<Value> = lines
        .iter()
        .map(|line| {
            let (number, name) = line.severity.written();
            let fields = line.fields.iter().map(|(key, value)| text(key, value));
            let attributes = std::iter::once(text("code.namespace", &line.target)).chain(fields);
            json!({
                // 64-bit values are strings in JSON (OTLP 1.9, "JSON Protobuf Encoding").
                "timeUnixNano": format!("{}000000000", line.at.unix_seconds()),
                "severityNumber": number, "severityText": name,
                "body": {"stringValue": line.text},
                "attributes": attributes.collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"resourceLogs": [{
        "resource": {"attributes": [text("service.name", service)]},
        "scopeLogs": [{"logRecords": records}],
    }]})
}

/// Address of a collector; always TLS.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("https://{host}:{port}")]
pub struct Endpoint {
    /// Host name.
    pub host: String,
    /// Port.
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> TlsFiles {
        TlsFiles {
            cert: "/tls/tls.crt".to_owned(),
            key: "/tls/tls.key".to_owned(),
            ca: "/tls/ca.crt".to_owned(),
        }
    }

    #[test]
    fn a_collector_demands_certificates_and_reads_its_own_again() {
        let listen =
            Listen { grpc: "0.0.0.0:4317".parse().unwrap(), http: "0.0.0.0:4318".parse().unwrap() };
        let text = collector(&listen, &files(), "https://opensearch:9200", "/tls/login");
        let value: Value = serde_json::from_str(&text).unwrap();
        for protocol in ["grpc", "http"] {
            let tls = &value["receivers"]["otlp"]["protocols"][protocol]["tls"];
            assert_eq!(tls["client_ca_file"], "/tls/ca.crt");
            assert_eq!(tls["reload_interval"], RELOAD);
        }
        let auth = &value["extensions"]["bearertokenauth/opensearch"];
        assert_eq!(auth["filename"], "/tls/login");
        assert_eq!(auth["scheme"], "Basic");
    }

    #[test]
    fn a_line_is_written_as_otlp_has_it() {
        let line = Line {
            at: Timestamp::from_unix_seconds(1_700_000_000),
            severity: Severity::Warn,
            target: "tec".to_owned(),
            text: "a step failed".to_owned(),
            fields: BTreeMap::from([("step", "7".to_owned())]),
        };
        let sent = logs("services-broker", &[line]);
        let scope = &sent["resourceLogs"][0]["scopeLogs"][0];
        let record = &scope["logRecords"][0];
        assert_eq!(record["timeUnixNano"], "1700000000000000000");
        assert_eq!(record["severityNumber"], 13);
        assert_eq!(record["body"]["stringValue"], "a step failed");
        assert_eq!(record["attributes"][1]["key"], "step");
        assert_eq!(record["attributes"][1]["value"]["stringValue"], "7");
    }

    #[test]
    fn a_tracer_never_speaks_without_tls() {
        let endpoint = Endpoint { host: "collector".to_owned(), port: 4317 };
        let tracer = tracer(&endpoint, &files());
        assert_eq!(tracer["OTEL_EXPORTER_OTLP_ENDPOINT"], "https://collector:4317");
        assert_eq!(tracer.len(), 4);
    }
}
