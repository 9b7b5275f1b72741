//! Alerts based on the metrics, each with its runbook.

use super::condition::{Aggregate, Comparison, Condition, Matcher, Selector};
use super::metric::Metric;

/// How soon someone must respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Severity {
    /// Immediately: nodes cannot boot, or a key may be lost.
    Critical,
    /// Within the day.
    Warning,
}

impl Severity {
    /// The value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

/// An alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alert {
    /// Its name, and that of its runbook page.
    pub name: &'static str,
    /// How soon someone must respond.
    pub severity: Severity,
    /// The alert fires while one of these conditions holds.
    pub any_of: &'static [Condition],
    /// How long a condition must hold, in Prometheus syntax.
    pub hold: &'static str,
    /// Its message, as one sentence.
    pub summary: &'static str,
    /// What the alert means for nodes.
    pub impact: &'static str,
    /// What to do, step by step.
    pub steps: &'static [&'static str],
}

impl Alert {
    /// When it fires, in PromQL.
    pub fn expression(&self) -> String {
        let any_of: Vec<String> = self.any_of.iter().map(Condition::to_string).collect();
        any_of.join(" or ")
    }

    /// Every alert.
    pub const ALL: &'static [Self] = &[
        OPERATOR_DOWN,
        NO_LEADER,
        KEY_BROKER_DOWN,
        TRUSTEE_BEHIND,
        REGISTRATION_DOWN,
        REGISTRATION_FAILS,
        REFUSALS,
        FOREIGN_KEY,
        NO_IMAGE,
        IMAGE_FAILED,
        MACHINE_FAILING,
        KEYS_WAIT,
        RECONCILE_FAILS,
        CERTIFICATE_ENDS,
        CLOCK_SKEWED,
        NEXT_CA_WAITS,
    ];
}

const fn all(metric: Metric) -> Selector {
    Selector { metric, labels: &[] }
}

const fn of(metric: Metric, labels: &'static [Matcher]) -> Selector {
    Selector { metric, labels }
}

/// Requests that were refused with any code.
const REFUSED: &[Matcher] = &[Matcher::IsNot("code", "ok")];
/// A machine asked for a key that is not its own.
const DENIED: &[Matcher] = &[Matcher::Is("code", "TEC-A413")];

/// Something is in this state.
const fn any_in(metric: Metric, state: &'static [Matcher]) -> Condition {
    Condition::Level(Aggregate::Max, of(metric, state), Comparison::More(0))
}

const OPERATOR_DOWN: Alert = Alert {
    name: "TecOperatorDown",
    severity: Severity::Critical,
    any_of: &[Condition::Down(&["trusted-cluster-operator-metrics"])],
    hold: "10m",
    summary: "No replica of the operator can be reached.",
    impact: "Known nodes boot as before. New machines get no key, and revocations and newly \
             approved images do not reach the Trustee.",
    steps: &[
        "`kubectl tec check` names what is missing.",
        "`kubectl get pods -l app=trusted-cluster-operator` and the log of the last container \
         (`--previous`) say why it exited.",
        "If it exits right after an upgrade, return to the previous version; nothing is lost.",
    ],
};

const NO_LEADER: Alert = Alert {
    name: "TecNoLeader",
    severity: Severity::Critical,
    any_of: &[Condition::Level(Aggregate::Sum, all(Metric::Leader), Comparison::Less(1))],
    hold: "5m",
    summary: "Replicas of the operator are running, but none of them leads.",
    impact: "The same as for TecOperatorDown.",
    steps: &[
        "`kubectl get lease trusted-cluster-operator -o yaml` names the holder and its last renewal.",
        "A holder that is gone is replaced once the lease expires. If it is not, look in the log \
         for missing permissions on leases.",
    ],
};

const KEY_BROKER_DOWN: Alert = Alert {
    name: "TecKeyBrokerDown",
    severity: Severity::Critical,
    any_of: &[Condition::Down(&["kbs-metrics", "key-broker-metrics"])],
    hold: "5m",
    summary: "No key broker of the cluster answers.",
    impact: "A node that boots gets no key from it, and waits or tries the next server on its \
             list.",
    steps: &[
        "`kubectl tec check` names the pods that do not run, and why.",
        "A pod that waits for a volume lacks a Secret: that of the certificate, \
         `trustee-token-signer`, and `trustee-auth` (Trustee) or `broker-session` (built-in). \
         The operator creates all but the first.",
        "`kubectl logs deployment/trustee-deployment -c kbs` or `kubectl logs deployment/key-broker` \
         names the setting that the program does not accept.",
    ],
};

const TRUSTEE_BEHIND: Alert = Alert {
    name: "TecTrusteeBehind",
    severity: Severity::Critical,
    any_of: &[Condition::Level(
        Aggregate::MinBy("target"),
        all(Metric::TargetConverged),
        Comparison::Equal(0),
    )],
    hold: "15m",
    summary: "A Trustee is not in sync with the cluster.",
    impact: "Nodes that use it may be refused and, worse, revoked keys and images may still be \
             accepted there.",
    steps: &[
        "`kubectl tec status` names the Trustee and what is wrong with it.",
        "If it answers 401, its admin key differs from the one in the Secret.",
        "If it cannot be reached, check the NetworkPolicies, its certificate and its address.",
    ],
};

const REGISTRATION_DOWN: Alert = Alert {
    name: "TecRegistrationDown",
    severity: Severity::Warning,
    any_of: &[
        Condition::Down(&["register-server-metrics"]),
        Condition::Down(&["attestation-key-register-metrics"]),
    ],
    hold: "10m",
    summary: "New nodes cannot register: a registration server does not answer.",
    impact: "Known nodes boot as before; new nodes wait at their first boot.",
    steps: &[
        "`kubectl tec check` names the Deployment.",
        "A pod that waits for a volume lacks the Secret of its certificate.",
    ],
};

const REGISTRATION_FAILS: Alert = Alert {
    name: "TecRegistrationFails",
    severity: Severity::Warning,
    any_of: &[
        Condition::Share(
            of(Metric::RegisterRequests, REFUSED),
            all(Metric::RegisterRequests),
            50,
            15,
        ),
        Condition::Share(of(Metric::KeyRequests, REFUSED), all(Metric::KeyRequests), 50, 15),
    ],
    hold: "15m",
    summary: "A registration server refuses more than half of the requests.",
    impact: "New nodes wait at their first boot, or someone is probing the endpoint.",
    steps: &[
        "Check the label `code` of the two counters; docs/errors has a page for each code.",
        "TEC-R429 and TEC-R430 are limits: raise them for an expected wave of new nodes.",
        "TEC-R401 means that the token in the installer's Ignition config is missing or outdated.",
    ],
};

const REFUSALS: Alert = Alert {
    name: "TecAttestationsRefused",
    severity: Severity::Warning,
    any_of: &[
        Condition::Share(of(Metric::GuardAttempts, REFUSED), all(Metric::GuardAttempts), 10, 30),
        Condition::Share(of(Metric::BrokerAttempts, REFUSED), all(Metric::BrokerAttempts), 10, 30),
    ],
    hold: "15m",
    summary: "More than a tenth of the attempts to attest are refused.",
    impact: "The affected nodes do not boot, and keep retrying.",
    steps: &[
        "The label `code` shows which check failed; docs/errors has a page for each code.",
        "`kubectl tec machine list -o wide` shows the machines with their last code, and `kubectl tec \
         explain <machine>` says why.",
        "TEC-A412 on many machines at the same time means that an update was rolled out whose \
         image is not approved.",
    ],
};

const FOREIGN_KEY: Alert = Alert {
    name: "TecForeignKeyAsked",
    severity: Severity::Warning,
    any_of: &[
        Condition::Grows(None, of(Metric::GuardAttempts, DENIED), 0, 60),
        Condition::Grows(None, of(Metric::BrokerAttempts, DENIED), 0, 60),
    ],
    hold: "0m",
    summary: "A machine asked for a key that is not its own.",
    impact: "The key was not released. The cause is a cloned disk or an intruder.",
    steps: &[
        "`kubectl get events --field-selector reason=ResourcePolicyDenied` names the machine.",
        "If the disk was not cloned, revoke the machine: `kubectl tec machine revoke <id>`.",
    ],
};

const NO_IMAGE: Alert = Alert {
    name: "TecNoApprovedImage",
    severity: Severity::Critical,
    any_of: &[Condition::Level(
        Aggregate::Max,
        of(Metric::Images, &[Matcher::Is("state", "live")]),
        Comparison::Equal(0),
    )],
    hold: "10m",
    summary: "No image is approved.",
    impact: "No node that boots gets its disk key.",
    steps: &[
        "`kubectl tec image list` shows which approvals expired, were revoked or failed.",
        "Approve the image that the nodes run: `kubectl tec image approve <name> <image@digest>`.",
    ],
};

const IMAGE_FAILED: Alert = Alert {
    name: "TecImageFailed",
    severity: Severity::Warning,
    any_of: &[any_in(Metric::Images, &[Matcher::Is("state", "failed")])],
    hold: "15m",
    summary: "The measurements of an approved image could not be computed.",
    impact: "Nodes that boot this image are refused.",
    steps: &[
        "`kubectl tec image list` names the image and the reason.",
        "If the registry refused access, name a pull Secret in the object.",
    ],
};

const MACHINE_FAILING: Alert = Alert {
    name: "TecMachineFailing",
    severity: Severity::Warning,
    any_of: &[any_in(Metric::Machines, &[Matcher::Is("state", "failing")])],
    hold: "15m",
    summary: "A machine cannot be served.",
    impact: "The machine may not boot: its disk key is lost, its ID is in use by another machine, or the \
             object is malformed.",
    steps: &[
        "`kubectl tec machine list -o wide` shows the reason.",
        "KeyLost: restore the Secret from a backup. Without one, the disk opens with its recovery key \
         only; remove the machine and reinstall it.",
        "Duplicate: remove the wrong object.",
    ],
};

const KEYS_WAIT: Alert = Alert {
    name: "TecKeysWait",
    severity: Severity::Warning,
    any_of: &[any_in(Metric::Keys, &[Matcher::Is("state", "pending")])],
    hold: "1h",
    summary: "Attestation keys are waiting to be approved.",
    impact: "The affected nodes wait at their first boot.",
    steps: &[
        "`kubectl tec ak list` shows the keys, and `kubectl describe attestationkey` what each waits for.",
        "If a key waits for an admin, compare its fingerprint with the one on the node's console, \
         then run `kubectl tec ak approve <key>`.",
    ],
};

const RECONCILE_FAILS: Alert = Alert {
    name: "TecReconcileFails",
    severity: Severity::Warning,
    // An object that keeps failing is retried after at most five minutes.
    any_of: &[Condition::Grows(
        Some("controller"),
        of(Metric::Reconciliations, &[Matcher::Is("outcome", "error")]),
        3,
        30,
    )],
    hold: "30m",
    summary: "A controller of the operator fails repeatedly.",
    impact: "Some objects are not reconciled; the others are.",
    steps: &[
        "The operator's log names the object and the cause: `kubectl logs \
         deployment/trusted-cluster-operator`.",
        "\"forbidden\" means a missing permission: apply the Roles of this release.",
    ],
};

const CERTIFICATE_ENDS: Alert = Alert {
    name: "TecCertificateEnds",
    severity: Severity::Critical,
    any_of: &[Condition::Within(all(Metric::CertificateNotAfter), 7)],
    hold: "1h",
    summary: "A certificate that nodes check expires within a week.",
    impact: "After it expires, no node can reach the server, and no disk is unlocked.",
    steps: &[
        "Renew the Secret; cert-manager's events show why it was not renewed. Servers load it \
         without a restart.",
        "Keep the CA: nodes pinned it when they were installed.",
    ],
};

const CLOCK_SKEWED: Alert = Alert {
    name: "TecClockSkewed",
    severity: Severity::Critical,
    any_of: &[any_in(Metric::Refusing, &[Matcher::Is("code", "TEC-C425")])],
    hold: "2m",
    summary: "The clock of a program differs from the API server's by more than 30 seconds.",
    impact: "A server with a wrong clock serves no nodes: if all replicas have one, no node boots \
             or registers. The operator issues and removes nothing until the clocks agree.",
    steps: &[
        "The labels `job` and `instance` name the pod; `kubectl get pod -o wide` shows its node.",
        "The pod's log says by how many seconds the clock is ahead or behind (TEC-C425).",
        "Check time synchronization (chrony, systemd-timesyncd) on that node. If every pod reports the \
         same difference, check the node of the API server.",
        "Everything resumes within seconds after the clocks agree; no restart is needed.",
    ],
};

const NEXT_CA_WAITS: Alert = Alert {
    name: "TecNextCaWaits",
    severity: Severity::Warning,
    any_of: &[Condition::Since(all(Metric::NextCaHeldSince), 7)],
    hold: "1h",
    summary: "The next CA has waited for machines for more than 7 days.",
    impact: "None yet: the current CA keeps signing. Machines that do not trust the next CA will be \
             locked out if an admin forces the switch.",
    steps: &[
        "`kubectl tec check` names the machines that do not trust the next CA (TEC-T409).",
        "Switch each one on and run `node-agent refresh-ca` on it; install the timer `tec-refresh-ca`, \
         so that it updates itself in the future.",
        "Retire machines that are gone: `kubectl tec machine retire <machine>`.",
    ],
};
