use super::*;

/// Labels whose values an admin or the code bounds.
const BOUNDED: [&str; 8] =
    ["code", "controller", "kind", "listener", "outcome", "reason", "state", "target"];

#[test]
fn no_label_grows_with_the_fleet() {
    for metric in Metric::ALL {
        for label in metric.labels() {
            assert!(BOUNDED.contains(label), "{} {label}", metric.as_str());
        }
    }
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for metric in Metric::ALL {
        let name = metric.as_str();
        assert!(name.starts_with("tec_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind() == MetricKind::Counter, "{name}");
        assert!(metric.help().ends_with('.'), "{name}");
    }
}

/// The metrics that an expression names.
fn names(expression: &str) -> Vec<&str> {
    expression
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("tec_"))
        .collect()
}

#[test]
fn alerts_look_only_at_metrics_that_exist() {
    for alert in Alert::ALL {
        for name in names(alert.expression) {
            let found = Metric::ALL.iter().any(|metric| metric.as_str() == name);
            assert!(found, "{}: {name}", alert.name);
        }
    }
}

#[test]
fn alerts_name_codes_that_exist() {
    for alert in Alert::ALL {
        let texts = alert.steps.iter().chain([&alert.expression]);
        for text in texts {
            for (at, _) in text.match_indices("TEC-") {
                let code = &text[at..at + "TEC-A400".len()];
                let found = tec_core::code::Code::ALL.iter().any(|known| known.as_str() == code);
                assert!(found, "{}: {code}", alert.name);
            }
        }
    }
}

#[test]
fn every_alert_says_what_to_do() {
    let mut names: Vec<_> = Alert::ALL.iter().map(|alert| alert.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Alert::ALL.len());
    for alert in Alert::ALL {
        assert!(!alert.steps.is_empty(), "{}", alert.name);
    }
}

#[test]
fn no_two_events_share_a_reason() {
    let mut reasons: Vec<_> = Event::ALL.iter().map(|event| event.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), Event::ALL.len());
}
