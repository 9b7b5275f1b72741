use super::*;

/// Labels whose values are bounded by an admin or by the code.
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

/// The selectors of an alert's conditions.
fn selectors(alert: &Alert) -> Vec<Selector> {
    let of = |condition: &Condition| match condition {
        Condition::Down(_) => Vec::new(),
        Condition::Level(_, of, _)
        | Condition::Grows(_, of, ..)
        | Condition::Since(of, _)
        | Condition::Within(of, _) => vec![*of],
        Condition::Share(of, all, ..) => vec![*of, *all],
    };
    alert.any_of.iter().flat_map(of).collect()
}

#[test]
fn alerts_select_by_labels_that_the_metric_has() {
    for selector in Alert::ALL.iter().flat_map(selectors) {
        for matcher in selector.labels {
            let (Matcher::Is(label, _) | Matcher::IsNot(label, _)) = matcher;
            assert!(selector.metric.labels().contains(label), "{selector}");
        }
    }
}

#[test]
fn conditions_are_written_in_promql() {
    let expression = |name| {
        let alert = Alert::ALL.iter().find(|alert| alert.name == name);
        alert.unwrap().expression()
    };
    assert_eq!(
        expression("TecKeyBrokerDown"),
        r#"absent(up{job=~"kbs-metrics|key-broker-metrics"} == 1)"#
    );
    assert_eq!(
        expression("TecReconcileFails"),
        "sum by (controller) (increase(tec_operator_reconciliations_total{outcome=\"error\"}[30m])) > 3"
    );
    assert_eq!(
        expression("TecTrusteeBehind"),
        "min by (target) (tec_operator_target_converged) == 0"
    );
    assert_eq!(
        expression("TecNextCaWaits"),
        "time() - max(tec_operator_next_ca_held_since_seconds) > 7 * 86400"
    );
    assert_eq!(expression("TecImageFailed"), r#"max(tec_operator_images{state="failed"}) > 0"#);
}

#[test]
fn alerts_name_codes_that_exist() {
    for alert in Alert::ALL {
        let expression = alert.expression();
        for text in alert.steps.iter().copied().chain([&*expression]) {
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
