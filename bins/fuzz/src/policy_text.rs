//! Policies as text.

use serde_json::json;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::pcr::PcrIndex;
use tec_trustee::policy::{AttestationPolicy, PolicyIntent, ResourcePolicy};

use crate::Seed;

/// Maximum length: longer policies only take longer.
const MAX_TEXT: usize = 16 << 10;
/// Nesting of brackets that no policy may have: the parser's time doubles with each level.
const TOO_DEEP: usize = 16;

/// A string is a policy of both kinds or of neither, regardless of white space at its end, and the check is
/// fast: deep nesting is refused. Policies of strangers are not evaluated, since admins set the policies.
pub(crate) fn policy_text(data: &[u8]) {
    let Some(text) = std::str::from_utf8(data).ok().filter(|text| text.len() <= MAX_TEXT) else {
        return;
    };
    let attestation = AttestationPolicy::parse(text);
    let resource = ResourcePolicy::parse(text);
    assert_eq!(attestation.is_ok(), resource.is_ok());
    assert!(resource.is_err() || nesting(text) < TOO_DEEP);
    let longer = format!("{text}\n\n");
    assert_eq!(ResourcePolicy::parse(&longer).is_ok(), resource.is_ok());
}

/// Deepest nesting of brackets, including those in strings and comments.
fn nesting(text: &str) -> usize {
    let depths = text.bytes().scan(0_usize, |depth, byte| {
        *depth = match byte {
            b'[' | b'{' => *depth + 1,
            b']' | b'}' => depth.saturating_sub(1),
            _ => *depth,
        };
        Some(*depth)
    });
    depths.max().unwrap_or_default()
}

/// What the rendered policies enforce here.
pub(crate) fn intent() -> PolicyIntent {
    let pinned = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect();
    let pinned = PinnedPcrs::new(pinned).expect("two registers");
    PolicyIntent::new(pinned, [Tee::Tpm]).expect("an intent")
}

pub(crate) fn seeds() -> Vec<Seed> {
    let azure = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm, Tee::AzSnpVtpm]);
    let azure = azure.expect("an intent");
    let resource = intent().render_resource();
    let denied =
        ResourcePolicy::parse(&resource).map(|policy| policy.allows(&json!({}), &json!({})));
    assert!(matches!(denied, Ok(Ok(false))));
    vec![
        Seed::new("attestation", intent().render_attestation()),
        Seed::new("attestation_azure", azure.render_attestation()),
        Seed::new("resource", resource),
        Seed::new("nested", format!("package policy\nx := {}{}\n", "[".repeat(20), "]".repeat(20))),
        Seed::new("small", "package policy\ndefault allow = true\n"),
        Seed::new("other_package", "package other\nx := [y | some y in [1, 2]]\n"),
        Seed::new(
            "builtins",
            "package policy\nimport rego.v1\nallow if {\n\tevery x in [1] { x > 0 }\n\t\
             not input.deny\n\tsprintf(\"%d\", [1]) == \"1\"\n} else := false\n",
        ),
    ]
}
