//! `tec platform`: firmware and Secure Boot policies of machines, and what their images leave open.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::pcr::PcrIndex;
use tec_core::platform::{ChangeEffect, ImageBoot, PlatformChange, changes};
use tec_core::port::{PlatformEntry, PlatformLog, PlatformRecord, PortErrorKind};
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::{CodedError, OK};

use crate::anchor::Anchor;
use crate::args::{Consent, MachineRef};
use crate::consent::consented;
use crate::output::{Output, Table};

#[derive(Debug, Subcommand)]
pub(crate) enum PlatformCommand {
    /// List machines by firmware and Secure Boot policy, and what waits for approval.
    List,
    /// Show what changed between the baseline of a machine and its last boot, and which PCRs are held to the
    /// first boot of an image.
    Diff {
        #[command(flatten)]
        machine: MachineRef,
    },
    /// Approve the firmware, Secure Boot policy or boot files that a machine reported last.
    ///
    /// Firmware and policy are approved for every machine with the same baseline: approve an update once for
    /// each model and version. The previous baseline of a machine is accepted until its first boot with the
    /// update. Boot files that the image does not state are approved for this machine alone, at once.
    Approve {
        #[command(flatten)]
        machine: MachineRef,
        #[command(flatten)]
        consent: Consent,
    },
}

/// Number of digits of an ID that a table shows.
const DIGITS: usize = 12;

pub(crate) async fn platform(
    anchor: &Anchor,
    command: PlatformCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let platforms = Platforms(anchor);
    match command {
        PlatformCommand::List => platforms.list(output).await?,
        PlatformCommand::Diff { machine } => {
            platforms.diff(anchor.id_of(&machine).await?, output).await?;
        }
        PlatformCommand::Approve { machine, consent } => {
            platforms.approve(anchor.id_of(&machine).await?, consent, output).await?;
        }
    }
    Ok(OK)
}

/// The platforms that an anchor recorded.
#[derive(Clone, Copy)]
struct Platforms<'a>(&'a Anchor);

impl Platforms<'_> {
    /// Prints all machines: what waits comes first, then the odd ones out.
    async fn list(self, output: &Output) -> anyhow::Result<()> {
        let entries = self.entries().await?;
        let mut sharing: BTreeMap<Sha256Digest, usize> = BTreeMap::new();
        for entry in &entries {
            *sharing.entry(entry.baseline).or_default() += 1;
        }
        let shared = |entry: &PlatformEntry| sharing.get(&entry.baseline).copied().unwrap_or(1);
        let mut listed: Vec<_> =
            entries.iter().map(|entry| Listed::of(entry, shared(entry))).collect();
        listed
            .sort_by_key(|one| (one.refused_at.is_none(), one.machines, one.baseline, one.machine));
        output.table(&listed, &table(&listed))
    }

    /// Prints what changed on a machine.
    async fn diff(self, id: MachineId, output: &Output) -> anyhow::Result<()> {
        let (_, record) = self.recorded(id).await?;
        output.print(&Diff::of(id, &record), Diff::text)
    }

    /// Approves what a machine showed last.
    async fn approve(self, id: MachineId, consent: Consent, output: &Output) -> anyhow::Result<()> {
        let (key, record) = self.recorded(id).await?;
        if record.refused_at.is_none() {
            let context = format!(
                "nothing waits for approval: the last boot of machine {id} was not refused for its platform"
            );
            return Err(CodedError::new(Code::MachineUnknown, context).into());
        }
        let mut machines = vec![id];
        if record.has_other_firmware() {
            machines = self.sharing(&key).await?;
        }
        if consented(&effects(id, &record, machines.len()), consent)? {
            let (ports, seen) = (&*self.0.ports, &record.seen);
            let approved = flow::approve_platform(ports, &SystemClock, (id, &key), seen).await;
            machines = approved.map_err(|error| self.0.failed(refused(id, error.kind()))(error))?;
        }
        let dry_run = consent.dry_run.dry_run;
        let value = serde_json::json!({ "machines": machines, "dry_run": dry_run });
        output.print(&value, |_| {
            let would = if dry_run { "would be " } else { "" };
            let lines =
                machines.iter().map(|id| format!("platform {would}approved for machine {id}"));
            lines.collect::<Vec<_>>().join("\n")
        })
    }

    async fn entries(self) -> Result<Vec<PlatformEntry>, CodedError> {
        let listed = PlatformLog::list(&*self.0.ports).await;
        listed.map_err(self.0.failed("list platforms"))
    }

    /// The machines with the baseline of this key.
    async fn sharing(self, key: &Fingerprint) -> Result<Vec<MachineId>, CodedError> {
        let all = self.entries().await?;
        let baseline = all.iter().find(|entry| entry.key == *key).map(|entry| entry.baseline);
        let same = all.iter().filter(|entry| Some(entry.baseline) == baseline);
        Ok(same.map(|entry| entry.machine).collect())
    }

    /// The platform recorded for the bound key of a machine.
    async fn recorded(self, id: MachineId) -> Result<(Fingerprint, PlatformRecord), CodedError> {
        let ports = &*self.0.ports;
        let failed = || self.0.failed(format!("look up the platform of machine {id}"));
        let none = || {
            let context =
                format!("no boot of machine {id} was accepted yet, so it has no baseline");
            CodedError::new(Code::MachineUnknown, context)
        };
        let key = ports.bound_to(&id).await.map_err(failed())?.ok_or_else(none)?.fingerprint();
        let record = PlatformLog::find(ports, &key).await;
        let record = record.map_err(failed())?.ok_or_else(none)?;
        Ok((key, record))
    }
}

/// A machine in the list.
#[derive(Debug, Serialize)]
struct Listed {
    machine: MachineId,
    key: Fingerprint,
    baseline: Sha256Digest,
    /// Machines with this baseline.
    machines: usize,
    seen: Sha256Digest,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_at: Option<Timestamp>,
}

impl Listed {
    fn of(entry: &PlatformEntry, machines: usize) -> Self {
        Self {
            machine: entry.machine,
            key: entry.key,
            baseline: entry.baseline,
            machines,
            seen: entry.seen,
            state: if entry.refused_at.is_some() { "waits for approval" } else { "accepted" },
            refused_at: entry.refused_at,
        }
    }
}

fn table(listed: &[Listed]) -> Table {
    let short = |id: &Sha256Digest| id.to_string().chars().take(DIGITS).collect::<String>();
    let row = |one: &Listed| {
        vec![
            one.machine.to_string(),
            short(&one.baseline),
            one.machines.to_string(),
            one.state.to_owned(),
            short(&one.seen),
            one.refused_at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
            one.key.to_string(),
        ]
    };
    let head = ["MACHINE", "BASELINE", "SHARED BY", "STATE", "LAST SEEN", "REFUSED", "KEY"];
    Table::new(&head, listed.iter().map(row)).narrow(4)
}

/// The changes of a machine.
#[derive(Debug, Serialize)]
struct Diff {
    machine: MachineId,
    refused: bool,
    changes: Vec<PlatformChange>,
    weaknesses: Vec<&'static str>,
    images: Vec<Held>,
}

/// The registers that an image does not state: those of its first boot on a machine count.
#[derive(Debug, Serialize)]
struct Held {
    image: String,
    pcrs: Vec<PcrIndex>,
}

impl Diff {
    fn of(machine: MachineId, record: &PlatformRecord) -> Self {
        let changes = changes(&record.baseline, &record.seen);
        let held = |boot: &ImageBoot| Held {
            image: boot.image.clone(),
            pcrs: boot.registers.keys().copied().collect(),
        };
        let images = record.baseline.boots.iter().map(held).collect();
        let weaknesses = record.seen.firmware.policy.weaknesses();
        Self { machine, refused: record.refused_at.is_some(), changes, weaknesses, images }
    }

    fn text(&self) -> String {
        let id = self.machine;
        let line = |change: &PlatformChange| format!("{}  {change}", effect(change.effect));
        let mut lines: Vec<_> = self.changes.iter().map(line).collect();
        if lines.is_empty() {
            lines.push(format!("the last boot of machine {id} matches its baseline"));
        }
        lines.extend(self.weaknesses.iter().map(|what| weakness(what)));
        lines.extend(self.images.iter().map(|Held { image, pcrs }| {
            let pcrs: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
            format!("image {image}: PCR {} as in its first boot or as approved", pcrs.join(", "))
        }));
        if self.refused {
            lines.push(format!("to approve it: tec platform approve {id}"));
        }
        lines.join("\n")
    }
}

fn weakness(what: &str) -> String {
    format!("weakness: the firmware says that {what}")
}

fn effect(effect: ChangeEffect) -> &'static str {
    match effect {
        ChangeEffect::Refused => "refused ",
        ChangeEffect::Admitted => "admitted",
        ChangeEffect::Recorded => "recorded",
    }
}

/// What an approval means, for the admin who is asked.
fn effects(id: MachineId, record: &PlatformRecord, machines: usize) -> Vec<String> {
    let Diff { changes, weaknesses, .. } = Diff::of(id, record);
    let enforced = changes.iter().filter(|change| change.effect != ChangeEffect::Recorded);
    let mut effects: Vec<_> = enforced.map(ToString::to_string).collect();
    effects.extend(weaknesses.into_iter().map(weakness));
    if record.has_other_firmware() {
        effects.push(format!(
            "This platform is accepted from now on, for {} with the baseline of machine {id}.",
            match machines {
                1 => "the only machine".to_owned(),
                count => format!("all {count} machines"),
            }
        ));
    }
    for boot in &record.seen.boots {
        let (image, names) = (&boot.image, boot.names());
        effects.push(format!("Machine {id} is held to this boot of image {image}: {names}."));
    }
    effects
}

fn refused(id: MachineId, kind: PortErrorKind) -> String {
    match kind {
        PortErrorKind::Conflict => {
            format!("machine {id} booted in the meantime (run tec platform diff {id} again)")
        }
        _ => format!("approve the platform of machine {id}"),
    }
}
