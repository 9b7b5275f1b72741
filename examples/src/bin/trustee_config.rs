//! Trustee configuration: patches an existing KBS configuration so that nothing insecure remains.
//!
//! ```text
//! cargo run -p tec-examples --bin trustee_config
//! ```
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use anyhow::{bail, ensure};
use tec_core::trustee::{Patched, TrusteeConfigurator as _, TrusteeIntent};
use tec_trustee::config::Schema;

const CURRENT: &str = r#"[http_server]
sockets = ["0.0.0.0:8080"]
insecure_http = true
worker_count = 4

[admin]
authorization_mode = "InsecureAllowAll"

[attestation_token]
insecure_header_jwk = true

[attestation_service]
timeout = 5
"#;

fn main() -> anyhow::Result<()> {
    let signer = ("/etc/kbs/token.key".to_owned(), "/etc/kbs/token.crt".to_owned());
    let trusted = vec!["/etc/kbs/token-ca.crt".to_owned()];
    let mut intent = TrusteeIntent::new("0.0.0.0:8080", signer, trusted, "/opt/trustee/storage");
    intent.tls = Some(("/etc/tls/tls.crt".to_owned(), "/etc/tls/tls.key".to_owned()));
    intent.admin_public_key = Some("/etc/kbs/admin.pub".to_owned());

    let Patched::Changed(patched) = Schema.patch(CURRENT, &intent)? else {
        bail!("an insecure configuration was not changed");
    };
    // The patch orders tables by name, so this compares lines, not their positions.
    for line in CURRENT.lines().filter(|line| !patched.lines().any(|new| new == *line)) {
        println!("- {line}");
    }
    for line in patched.lines().filter(|line| !CURRENT.lines().any(|old| old == *line)) {
        println!("+ {line}");
    }

    ensure!(!patched.contains("nsecure"), "a setting that disables checks was kept");
    ensure!(patched.contains("worker_count = 4"), "an unrelated key was removed");
    ensure!(Schema.patch(&patched, &intent)? == Patched::Unchanged);
    println!("patched again: unchanged");
    Ok(())
}
