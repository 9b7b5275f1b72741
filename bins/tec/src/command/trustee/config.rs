//! Checks, compares and patches configurations.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::trustee::{Patched, TrusteeConfigurator as _, TrusteeIntent};
use tec_support::exit::{FAILED, OK};
use tec_support::files::write_private;
use tec_trustee::config::{Change, Finding, Schema, Severity, changes};
use tec_trustee::policy::{lint_attestation, lint_resource};

use super::MAX_TEXT;
use super::args::{LintArgs, PatchArgs};
use crate::command::input;
use crate::output;
use crate::output::Output;

/// A finding as printed.
#[derive(Serialize)]
struct FindingView {
    file: String,
    severity: &'static str,
    rule: &'static str,
    /// The key, or what is missing or not refused.
    at: String,
    fix: &'static str,
}

impl FindingView {
    fn new(file: &Path, finding: Finding) -> Self {
        Self {
            file: file.display().to_string(),
            severity: match finding.rule.severity() {
                Severity::Warn => "warning",
                Severity::Refuse => "refused",
            },
            rule: finding.rule.as_str(),
            at: finding.key,
            fix: finding.rule.fix(),
        }
    }
}

fn findings_text(findings: &[FindingView]) -> String {
    if findings.is_empty() {
        return "nothing to object to".to_owned();
    }
    let line = |found: &FindingView| {
        let FindingView { file, severity, rule, at, fix } = found;
        format!("{severity} {rule}: {file}: {at}\n  fix: {fix}")
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Exit status 1 if something must not be deployed.
pub(super) fn lint(args: &LintArgs, output: &Output) -> anyhow::Result<u8> {
    let mut views = Vec::new();
    let mut add = |file: &Path, findings: Vec<Finding>| {
        views.extend(findings.into_iter().map(|finding| FindingView::new(file, finding)));
    };
    if let Some(file) = &args.config {
        let text = read(file)?;
        let mounted = args.mounted_policies.iter().cloned().collect();
        let mounted = (!args.mounted_policies.is_empty()).then_some(&mounted);
        let findings = tec_trustee::config::lint(&text, mounted);
        add(file, findings.with_context(|| file.display().to_string())?);
    }
    if let Some(file) = &args.attestation_policy {
        let findings = lint_attestation(&read(file)?);
        add(file, findings.with_context(|| file.display().to_string())?);
    }
    if let Some(file) = &args.resource_policy {
        let findings = lint_resource(&read(file)?);
        add(file, findings.with_context(|| file.display().to_string())?);
    }
    let is_refused = views.iter().any(|view| view.severity == "refused");
    output.print(&views, |views| findings_text(views))?;
    Ok(if is_refused { FAILED } else { OK })
}

pub(super) fn read(file: &Path) -> anyhow::Result<String> {
    input::text(file, MAX_TEXT)
}

/// A change as printed.
#[derive(Serialize)]
struct ChangeView {
    key: String,
    before: Option<String>,
    after: Option<String>,
    #[serde(skip)]
    line: String,
}

impl From<Change> for ChangeView {
    fn from(change: Change) -> Self {
        Self {
            line: change.to_string(),
            key: change.key,
            before: change.before,
            after: change.after,
        }
    }
}

pub(super) fn diff(before: &Path, after: &Path, output: &Output) -> anyhow::Result<u8> {
    let changes = changes(&read(before)?, &read(after)?)
        .with_context(|| format!("cannot compare {} with {}", before.display(), after.display()))?;
    print_changes(changes, output)
}

fn print_changes(changes: Vec<Change>, output: &Output) -> anyhow::Result<u8> {
    let views: Vec<ChangeView> = changes.into_iter().map(ChangeView::from).collect();
    output.print(&views, |views| {
        if views.is_empty() {
            return "no difference".to_owned();
        }
        views.iter().map(|view| view.line.as_str()).collect::<Vec<_>>().join("\n")
    })?;
    Ok(OK)
}

pub(super) fn patch(args: &PatchArgs, output: &Output) -> anyhow::Result<u8> {
    let current = match &args.config {
        Some(file) => read(file)?,
        None => String::new(),
    };
    let patched = Schema.patch(&current, &intent(args)).with_context(|| {
        let file = args.config.as_deref().unwrap_or_else(|| Path::new("a new file"));
        format!("patch {}", file.display())
    })?;
    let text = match patched {
        Patched::Unchanged => current.clone(),
        Patched::Changed(text) => text,
    };
    if args.dry_run {
        return print_changes(changes(&current, &text)?, output);
    }
    match args.config.as_deref().filter(|_| args.write) {
        None => output::raw(&text)?,
        Some(file) => {
            let made = changes(&current, &text)?;
            if text != current {
                write_private(file, text.as_bytes())
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            print_changes(made, output)?;
        }
    }
    Ok(OK)
}

fn intent(args: &PatchArgs) -> TrusteeIntent {
    let signer = (args.signer_key.clone(), args.signer_cert.clone());
    let trusted = args.trusted_certs.clone();
    let mut intent = TrusteeIntent::new(&args.socket, signer, trusted, &args.storage_dir);
    intent.tls = args.tls_cert.clone().zip(args.tls_key.clone());
    intent.admin_public_key.clone_from(&args.admin_key);
    intent
}
