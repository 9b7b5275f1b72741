//! What is wrong with a configuration, and how to fix it.

use std::collections::BTreeSet;
use std::fmt;

use tec_core::trustee::PatchError;
use toml::{Table, Value};

use super::{DEFAULT_POLICIES, parse};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration works, but not as desired.
    Warn,
    /// Keys may be released to the wrong machines, or the KBS does not start. Do not deploy the
    /// configuration.
    Refuse,
}

macro_rules! rules {
    ($($name:ident = $text:literal, $severity:ident, $fix:literal;)*) => {
        /// What a finding is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = concat!("`", $text, "`. ", $fix)] $name,)*
        }

        impl Rule {
            /// Machine-readable name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Severity of the finding.
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }

            /// How to fix it.
            pub fn fix(self) -> &'static str {
                match self { $(Self::$name => $fix,)* }
            }
        }
    };
}

rules! {
    SelfSignedTokens = "self-signed-tokens", Refuse,
        "Remove the key: with it, anybody signs a token and obtains every resource.";
    OpenAdmin = "open-admin", Refuse,
        "Name a public key for admin tokens, or deny all admin requests.";
    NoTable = "no-table", Refuse,
        "Add the table; the KBS does not start without it.";
    UnknownAdminKey = "unknown-admin-key", Refuse,
        "Remove the key: the KBS rejects what it does not know in the table `admin`.";
    NoTrustedSigner = "no-trusted-signer", Refuse,
        "Generate a signer with a certificate, name both, and trust the certificate.";
    PlainHttp = "plain-http", Refuse,
        "Name certificate and private key, or listen on loopback behind the guard.";
    LostSessions = "lost-sessions", Refuse,
        "Set session_storage_type = \"Memory\": concurrent handshakes lose each other's session otherwise.";
    NoDefaultPolicy = "no-default-policy", Refuse,
        "Mount all default policies: the service writes missing ones at start, which a read-only mount refuses.";
    NoResourcePlugin = "no-resource-plugin", Refuse,
        "Add the plugin `resource`; without it there is no way to a key.";
    JsonFile = "json-file", Warn,
        "Use LocalFs: the JSON file is written anew for each change, and concurrent changes are lost.";
    MemoryOnly = "memory-only", Warn,
        "Use LocalFs on a volume: everything is gone after a restart, until it is published again.";
    AllowAll = "allow-all", Refuse,
        "Publish the policy of `tec trustee policy resource`: this one gives everything to everybody.";
    AllowSample = "allow-sample", Refuse,
        "Demand that ear.status is affirming: anybody makes evidence without hardware.";
    AllowUnaffirmed = "allow-unaffirmed", Refuse,
        "Demand that ear.status is affirming: this token is of a boot that is not approved.";
    AllowAnyMachine = "allow-any-machine", Refuse,
        "Compare the claim tec.machine with the second segment of the path: machines obtain each other's keys.";
    AffirmUnknown = "affirm-unknown", Refuse,
        "Compare evidence with reference values, and give 33 to executables where there are none.";
    AllowDevices = "allow-devices", Warn,
        "Demand count(input.submods) == 1: evidence of further devices is not looked at.";
    DenyOwn = "deny-own", Warn,
        "Publish the policy of `tec trustee policy resource`: no machine obtains its key.";
    LongTokens = "long-tokens", Warn,
        "Set duration_min to 1 or 2: a revoked machine may hold a token that long.";
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What the finding is about.
    pub rule: Rule,
    /// Dotted path of the key, of what is missing, or of what a policy fails to refuse.
    pub key: String,
}

impl Finding {
    pub(crate) fn new(rule: Rule, key: impl Into<String>) -> Self {
        let key = key.into();
        Self { rule, key }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.rule.severity() {
            Severity::Warn => "warning",
            Severity::Refuse => "refused",
        };
        let (rule, key, fix) = (self.rule.as_str(), &self.key, self.rule.fix());
        write!(f, "{word} {rule}: {key}\n  fix: {fix}")
    }
}

/// Returns all findings, in a fixed order. `mounted` are the names of the policies on a read-only mount, `None` if the
/// service may write them.
pub fn lint(text: &str, mounted: Option<&BTreeSet<String>>) -> Result<Vec<Finding>, PatchError> {
    let mut check = Check { config: parse(text)?, findings: Vec::new() };
    check.tables();
    check.http();
    check.admin();
    check.tokens();
    check.storage();
    check.mounts(mounted);
    Ok(check.findings)
}

/// Names of the attestation service that runs in the KBS itself (Trustee, KBS configuration).
const BUILTIN: [&str; 2] = ["coco_as_builtin", "CoCoASBuiltIn"];

struct Check {
    config: Table,
    findings: Vec<Finding>,
}

impl Check {
    fn find(&mut self, rule: Rule, key: impl Into<String>) {
        self.findings.push(Finding::new(rule, key));
    }

    fn at(&self, dotted: &str) -> Option<&Value> {
        let mut keys = dotted.split('.');
        let first = self.config.get(keys.next()?)?;
        keys.try_fold(first, |value, key| value.get(key))
    }

    fn text(&self, dotted: &str) -> Option<&str> {
        self.at(dotted).and_then(Value::as_str)
    }

    fn is_on(&self, dotted: &str) -> bool {
        // Anything but a plain false counts as on: environment variables supply numbers and text too.
        self.at(dotted).is_some_and(|value| value.as_bool() != Some(false))
    }

    fn tables(&mut self) {
        for name in ["http_server", "admin"] {
            if self.at(name).and_then(Value::as_table).is_none() {
                self.find(Rule::NoTable, name);
            }
        }
        let plugins = self.at("plugins").and_then(Value::as_array);
        let has_resource = plugins.is_some_and(|plugins| {
            let name =
                |plugin: &Value| plugin.get("name").and_then(Value::as_str) == Some("resource");
            plugins.iter().any(name)
        });
        if !has_resource {
            self.find(Rule::NoResourcePlugin, "plugins");
        }
    }

    fn http(&mut self) {
        let plain = self.is_on("http_server.insecure_http");
        let sockets = self.at("http_server.sockets").and_then(Value::as_array);
        let is_public = sockets.is_some_and(|sockets| {
            sockets.iter().any(|socket| !socket.as_str().is_some_and(is_loopback))
        });
        if plain && is_public {
            self.find(Rule::PlainHttp, "http_server.insecure_http");
        }
    }

    fn admin(&mut self) {
        let open = |value: Option<&str>| value.is_some_and(|value| value == "InsecureAllowAll");
        for key in ["admin.authorization_mode", "admin.type"] {
            if open(self.text(key)) {
                self.find(Rule::OpenAdmin, key);
            }
        }
        if self.is_on("admin.insecure_api") {
            self.find(Rule::OpenAdmin, "admin.insecure_api");
        }
        let known = ["authorization_mode", "authentication", "authorization"];
        let Some(admin) = self.at("admin").and_then(Value::as_table).cloned() else {
            return;
        };
        for key in admin.keys() {
            if !known.contains(&key.as_str()) {
                self.find(Rule::UnknownAdminKey, format!("admin.{key}"));
            }
        }
    }

    fn tokens(&mut self) {
        for key in ["attestation_token.insecure_header_jwk", "attestation_token.insecure_key"] {
            if self.is_on(key) {
                self.find(Rule::SelfSignedTokens, key);
            }
        }
        let lists = ["trusted_certs_paths", "trusted_jwk_sets"];
        let trusts = lists.iter().any(|list| {
            let list = self.at(&format!("attestation_token.{list}"));
            list.and_then(Value::as_array).is_some_and(|list| !list.is_empty())
        });
        if !trusts {
            self.find(Rule::NoTrustedSigner, "attestation_token.trusted_certs_paths");
        }
        // The signer of a remote service is in its own configuration.
        let service = self.text("attestation_service.type").unwrap_or(BUILTIN[0]);
        if BUILTIN.contains(&service) {
            let signer = "attestation_service.attestation_token_broker.signer";
            for key in ["key_path", "cert_path"].map(|key| format!("{signer}.{key}")) {
                if self.text(&key).is_none() {
                    self.find(Rule::NoTrustedSigner, key);
                }
            }
        }
        let duration = "attestation_service.attestation_token_broker.duration_min";
        if self.at(duration).and_then(Value::as_integer).is_some_and(|minutes| minutes > 5) {
            self.find(Rule::LongTokens, duration);
        }
    }

    fn storage(&mut self) {
        match self.text("storage_backend.storage_type").map(storage_name) {
            None | Some("Memory") => self.find(Rule::MemoryOnly, "storage_backend.storage_type"),
            Some("LocalJson") => {
                self.find(Rule::JsonFile, "storage_backend.storage_type");
                if self.text("session_storage_type").map(storage_name) != Some("Memory") {
                    self.find(Rule::LostSessions, "session_storage_type");
                }
            }
            Some(_) => {}
        }
    }

    fn mounts(&mut self, mounted: Option<&BTreeSet<String>>) {
        if let Some(mounted) = mounted {
            for name in DEFAULT_POLICIES {
                if !mounted.contains(name) {
                    self.find(Rule::NoDefaultPolicy, format!("{name}.rego"));
                }
            }
        }
    }
}

/// A storage back end by its first name; Trustee accepts another one for each (key-value storage, configuration).
pub(super) fn storage_name(name: &str) -> &str {
    match name {
        "memory" => "Memory",
        "local_fs" => "LocalFs",
        "local_json" => "LocalJson",
        "postgres" => "Postgres",
        "redis" => "Redis",
        other => other,
    }
}

fn is_loopback(socket: &str) -> bool {
    socket.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}
