//! What Prometheus in the cluster would scrape from real pods, and which alerts it would fire.

use std::time::Duration;

use tec_core::port::Clock as _;
use tec_e2e::kube::Prometheus;
use tec_e2e::pods::{BROKER, Charts, NAMESPACE, OPERATOR, until};
use tec_support::SystemClock;

/// Deployments, each with its metrics Service selected by the ServiceMonitor.
const SCRAPED: [&str; 4] = [OPERATOR, BROKER, "register-server", "attestation-key-register"];
const DAY: i64 = 86_400;

/// One scrape of every pod.
pub(crate) fn scrape(charts: &Charts, prometheus: &mut Prometheus) {
    let mut answers = Vec::new();
    for name in SCRAPED {
        let job = format!("{name}-metrics");
        charts.kubectl(&["get", "service", &job]).unwrap();
        let mut pods = charts.pods(name).unwrap();
        pods.sort();
        for pod in pods {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/http:{pod}:9090/proxy/metrics");
            // A pod may be about to end.
            answers.push((job.clone(), charts.kubectl(&["get", "--raw", &path]).ok()));
        }
    }
    let answers: Vec<_> = answers.iter().map(|(job, text)| (&**job, text.as_deref())).collect();
    prometheus.scrape(&answers);
}

/// Alerts about programs, images and certificates, none of which fires while everything works.
const QUIET: [&str; 6] = [
    "TecOperatorDown",
    "TecKeyBrokerDown",
    "TecRegistrationDown",
    "TecNoLeader",
    "TecNoApprovedImage",
    "TecCertificateEnds",
];

/// Nothing fires, at the latest once the operator's lease was acquired again: alerts have a hold time.
pub(crate) fn nothing_fires(charts: &Charts, prometheus: &mut Prometheus) {
    let is_quiet = || {
        let mut now = Prometheus::default();
        scrape(charts, &mut now);
        QUIET.iter().all(|alert| !now.fires(alert, SystemClock.now().unix_seconds()))
    };
    until("no alert fires", Duration::from_mins(1), is_quiet).unwrap();
    scrape(charts, prometheus);
    let later = SystemClock.now().unix_seconds() + 85 * DAY;
    assert!(prometheus.fires("TecCertificateEnds", later), "no server tells its expiry");
}

/// A node was refused between the last two scrapes.
pub(crate) fn a_refusal_fires(prometheus: &Prometheus) {
    let now = SystemClock.now().unix_seconds();
    assert!(prometheus.fires("TecAttestationsRefused", now));
}
