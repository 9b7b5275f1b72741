//! `tec node verify`: what a node proves, check by check.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::chain;
use tec_node::atls::{AtlsError, AttestedPeer, Expectation, Measurements, Severity};
use tec_support::exit::{FAILED, NOT_READY, OK};
use tec_tpm::output::root_text;
use tokio::net::TcpStream;

use super::args::{TrustArgs, address, cluster_id};
use crate::output::{Check, Output, table};

/// Port of Init (Constellation).
const PORT: u16 = 9000;
/// Timeout of a connection, not including the handshake, which has its own limit.
const CONNECT: Duration = Duration::from_secs(10);
/// Registers that may contain the command line of the kernel: from GRUB, the kernel, and a unified kernel image.
const COMMAND_LINE: [PcrIndex; 4] =
    [PcrIndex::BOOT_COMMANDS, PcrIndex::BOOT_FILES, PcrIndex::KERNEL_BOOT, PcrIndex::KERNEL_CONFIG];

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Address of the node, `HOST` or `HOST:PORT`: port 9000 until it is a member, 9999 until its disk is
    /// open.
    node: String,
    #[command(flatten)]
    trust: TrustArgs,
    /// ID of the cluster that the node must be in; `none` for no cluster.
    #[arg(long, value_name = "ID", value_parser = cluster)]
    cluster: Option<Sha256Digest>,
}

/// The value that the cluster's register must have.
fn cluster(text: &str) -> Result<Sha256Digest, String> {
    if text == "none" {
        return Ok(Sha256Digest::ZERO);
    }
    Ok(cluster_id(text)?.marker())
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    node: String,
    /// Whether every check passed.
    accepted: bool,
    checks: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ak: Option<Fingerprint>,
    /// All registers, by number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pcrs: BTreeMap<u8, Sha256Digest>,
    /// `false` if no command line is checked, so that no hash on it counts. Otherwise values do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    root_hash: Option<bool>,
}

impl Report {
    fn note(&mut self, what: impl Into<String>, found: anyhow::Result<String>) {
        self.checks.push(Check::of(what, found));
    }
}

/// Exit code 0 if every check passes, 1 if one does not, and 3 if the node does not answer. After the
/// handshake, nothing is requested from the node or sent to it.
pub(crate) async fn verify(args: VerifyArgs, output: &Output) -> anyhow::Result<u8> {
    let node = address(&args.node, PORT);
    let expected = args.trust.measurements(args.cluster)?;
    let mut report = Report { node: node.clone(), ..Report::default() };
    let code = match connect(&node).await {
        Ok(transport) => {
            report.note("answers", Ok(node));
            judge(&args.trust, &expected, transport, &mut report).await?;
            report.accepted = report.checks.iter().all(|check| check.ok);
            if report.accepted { OK } else { FAILED }
        }
        Err(error) => {
            report.note("answers", Err(error));
            NOT_READY
        }
    };
    output.print(&report, render)?;
    Ok(code)
}

async fn connect(node: &str) -> anyhow::Result<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(node));
    Ok(connecting.await.map_err(anyhow::Error::from)??)
}

/// The handshake accepts any key and any registers, which are then evaluated individually.
async fn judge(
    trust: &TrustArgs,
    expected: &Measurements,
    transport: TcpStream,
    report: &mut Report,
) -> anyhow::Result<()> {
    let endpoint = trust.judging(trust.hardware()?, Measurements::default())?;
    let attested = endpoint.connect(transport).await;
    let peer = attested.and_then(|stream| stream.peer().cloned().ok_or(AtlsError::NoCertificate));
    let peer = match peer {
        Ok(peer) => peer,
        Err(error) => {
            report.note("evidence", Err(anyhow::anyhow!("{}", chain(&error))));
            return Ok(());
        }
    };
    let key = peer.key_hash();
    let found = format!("{}, for the key {key} of this connection", peer.variant());
    report.note("evidence", Ok(found));
    report.note("channel binding", bound(&peer));
    report.ak = peer.ak().map(tec_core::ak::PublicKey::fingerprint);
    report.note("attestation key", known(trust, report.ak));
    if let Some(values) = peer.pcrs() {
        registers(expected, values, report);
    }
    Ok(())
}

fn bound(peer: &AttestedPeer) -> anyhow::Result<String> {
    anyhow::ensure!(peer.is_channel_bound(), "no evidence was received over this connection");
    Ok("evidence over this very connection".to_owned())
}

fn known(trust: &TrustArgs, ak: Option<Fingerprint>) -> anyhow::Result<String> {
    let Some(ak) = ak else { anyhow::bail!("the evidence contains no attestation key") };
    match trust.pinned() {
        Some(pinned) => {
            anyhow::ensure!(pinned.contains(&ak), "{ak} is not one of the accepted keys");
            Ok(format!("{ak}, as given"))
        }
        None => Ok(format!("{ak}; none was given to compare it with")),
    }
}

fn registers(expected: &Measurements, values: &PcrValues, report: &mut Report) {
    report.pcrs = PcrIndex::all().map(|index| (index.into(), *values.value(index))).collect();
    let is_line = |(index, one): (PcrIndex, Expectation)| {
        one.severity == Severity::Enforce && COMMAND_LINE.contains(&index)
    };
    report.root_hash = (!expected.registers().any(is_line)).then_some(false);
    for (index, expectation) in expected.registers() {
        let found = values.value(index);
        let result = if *found == expectation.expected {
            Ok(found.to_string())
        } else if expectation.severity == Severity::Warn {
            Ok(format!("found {found}, expected {}; only a warning", expectation.expected))
        } else {
            Err(anyhow::anyhow!("found {found}, expected {}", expectation.expected))
        };
        report.note(format!("PCR {index}"), result);
    }
}

fn render(report: &Report) -> String {
    let rows: Vec<_> = report.checks.iter().map(Check::row).collect();
    let verdict = if report.accepted { "accepted" } else { "REFUSED" };
    let checks = table(["", "WHAT", "FOUND"], &rows);
    let root = if report.pcrs.is_empty() { "" } else { root_text(report.root_hash) };
    format!("{} {verdict}\n{checks}\n{root}", report.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_never_show_that_a_hash_covers_the_root_and_without_a_command_line_none_does() {
        let values = PcrValues::predicted(|_| Some(Sha256Digest::ZERO));
        for (index, severity, root_hash) in [
            (PcrIndex::KERNEL_CONFIG, Severity::Enforce, None),
            (PcrIndex::KERNEL_CONFIG, Severity::Warn, Some(false)),
            (PcrIndex::BOOT_MANAGER, Severity::Enforce, Some(false)),
        ] {
            let expectation = Expectation { expected: Sha256Digest::ZERO, severity };
            let expected = Measurements::default().with(index, expectation);
            let mut report = Report::default();
            registers(&expected, &values, &mut report);
            assert_eq!(report.root_hash, root_hash, "{index} {severity:?}");
            let text = render(&report);
            assert!(text.ends_with(root_text(root_hash)), "{text}");
        }
    }
}
