//! Metrics.

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only increases.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size.
    Histogram,
}

impl MetricKind {
    /// The name in Prometheus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

macro_rules! metrics {
    ($($name:ident = $text:literal, $kind:ident, [$($label:literal),*], $program:literal, $help:literal;)*) => {
        /// A metric of one of the programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Metric {
            $(#[doc = concat!("`", $text, "`: ", $help)] $name,)*
        }

        impl Metric {
            /// Every metric, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// How it behaves over time.
            pub const fn kind(self) -> MetricKind {
                match self { $(Self::$name => MetricKind::$kind),* }
            }

            /// Its labels, each with few values.
            pub const fn labels(self) -> &'static [&'static str] {
                match self { $(Self::$name => &[$($label),*]),* }
            }

            /// Which program has it, or `all` of them.
            pub const fn program(self) -> &'static str {
                match self { $(Self::$name => $program),* }
            }

            /// What it means, as one sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help),* }
            }
        }
    };
}

metrics! {
    Leader = "tec_operator_leader", Gauge, [], "operator",
        "1 if this replica leads.";
    Reconciliations = "tec_operator_reconciliations_total", Counter, ["controller", "outcome"], "operator",
        "Reconciled objects, by controller and outcome: ok or error.";
    ReconcileSeconds = "tec_operator_reconcile_duration_seconds", Histogram, ["controller"], "operator",
        "Time to reconcile one object.";
    QueueDepth = "tec_operator_queue_depth", Gauge, ["controller"], "operator",
        "Objects waiting to be reconciled.";
    Machines = "tec_operator_machines", Gauge, ["state"], "operator",
        "Machines by state: active, failing, quarantined, retired, revoked or unclaimed.";
    Keys = "tec_operator_attestation_keys", Gauge, ["state"], "operator",
        "Attestation keys by state: bound, pending, rejected or revoked.";
    Images = "tec_operator_images", Gauge, ["state"], "operator",
        "Approved images by state: live, computing, failed, or ended (revoked or expired).";
    TargetConverged = "tec_operator_target_converged", Gauge, ["target"], "operator",
        "1 if the Trustee of that name is in sync.";
    TargetLag = "tec_operator_target_lag", Gauge, ["target"], "operator",
        "Changes that the Trustee of that name does not have yet.";
    DriftRepairs = "tec_operator_drift_repairs_total", Counter, ["kind"], "operator",
        "Objects that someone else changed or deleted, and that were restored.";
    NextCaHeldSince = "tec_operator_next_ca_held_since_seconds", Gauge, [], "operator",
        "Time since which the next CA waits for machines, in seconds since 1970; absent while it \
         does not wait.";
    Untrusted = "tec_operator_untrusted_machines", Gauge, ["outcome"], "operator",
        "Untrusted machines by what `spec.onUntrusted` led to: acted_on, dry_run, over_limit, no_node \
         or no_rights; absent without it.";
    RegisterRequests = "tec_register_requests_total", Counter, ["code"], "register-server",
        "Registrations by error code, ok for none.";
    RegisterSeconds = "tec_register_request_duration_seconds", Histogram, [], "register-server",
        "Time to answer a registration.";
    KeyRequests = "tec_ak_register_requests_total", Counter, ["code"], "attestation-key-register",
        "Submitted attestation keys by error code, ok for none.";
    KeySeconds = "tec_ak_register_request_duration_seconds", Histogram, [], "attestation-key-register",
        "Time to answer the submission of an attestation key.";
    GuardAttempts = "tec_guard_attempts_total", Counter, ["code"], "kbs-guard",
        "Attempts to attest or to obtain a resource, by error code, ok for none.";
    GuardOpened = "tec_guard_opened_total", Counter, [], "kbs-guard",
        "Sessions that began.";
    GuardReleases = "tec_guard_releases_total", Counter, [], "kbs-guard",
        "Resources released.";
    GuardRefusals = "tec_guard_refusals_total", Counter, [], "kbs-guard",
        "Requests that the guard itself refused.";
    GuardSessions = "tec_guard_sessions", Gauge, [], "kbs-guard",
        "Sessions in the table.";
    BrokerRequests = "tec_key_broker_requests_total", Counter, ["code"], "key-broker",
        "Requests to the built-in key broker by error code, ok for none.";
    BrokerSeconds = "tec_key_broker_request_duration_seconds", Histogram, [], "key-broker",
        "Time to answer a request to the built-in key broker.";
    BrokerAttempts = "tec_kbs_attempts_total", Counter, ["code"], "key-broker",
        "Attempts to attest or to obtain a resource, by error code, ok for none.";
    BrokerOpened = "tec_kbs_opened_total", Counter, [], "key-broker",
        "Sessions that began.";
    BrokerReleases = "tec_kbs_releases_total", Counter, [], "key-broker",
        "Resources released.";
    BrokerRefusals = "tec_kbs_refusals_total", Counter, [], "key-broker",
        "Requests refused.";
    BrokerSessions = "tec_kbs_sessions", Gauge, [], "key-broker",
        "Sessions in the table.";
    Refusing = "tec_refusing", Gauge, ["code"], "all programs",
        "1 while a server refuses every request with this code, or the operator refuses \
         time-dependent decisions; absent otherwise.";
    ConnectionsOpen = "tec_connections_open", Gauge, ["listener"], "all servers",
        "Open connections.";
    ConnectionsAccepted = "tec_connections_accepted_total", Counter, ["listener"], "all servers",
        "Accepted connections.";
    ConnectionsRefused = "tec_connections_refused_total", Counter, ["listener", "reason"], "all servers",
        "Connections refused or closed by the server, by reason.";
    CertificateNotAfter = "tec_tls_certificate_not_after_seconds", Gauge, [], "all servers",
        "When the served certificate expires, in seconds since 1970.";
}
