//! Which flags and commands need a state directory, and which a Kubernetes cluster.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command};
use tec_support::boot::{ChainArgs, MachineArgs};

use crate::image::is_reference;

/// Commands and flags for state directories only. An entry without flags covers the whole command.
const DIRECTORY: [(&str, &[&str]); 10] = [
    ("serve", &[]),
    ("backup", &[]),
    // Keys of a cluster are Secrets, which the operator does not rotate yet.
    ("key", &[]),
    ("machine prune", &[]),
    ("audit archive", &[]),
    ("audit verify", &[]),
    ("audit list", &["follow"]),
    ("ak approve", &["disk_keys"]),
    ("node nextboot", &["approved"]),
    ("pcr", &["approved"]),
];

/// Commands and flags for Kubernetes clusters only.
const CLUSTER: [(&str, &[&str]); 5] = [
    ("member", &[]),
    ("check", &[]),
    ("support-bundle", &[]),
    ("image approve", &["pull_secret"]),
    (
        "bootstrap init",
        &["registry", "operator_image", "pull_secret", "assigned_pod_user", "user_roles"],
    ),
];

/// Names what on the command line does not apply to this kind of anchor, as a sentence.
pub(crate) fn misplaced(matches: &ArgMatches, on_cluster: bool) -> Option<String> {
    let (table, hint): (&[_], _) = if on_cluster {
        (
            &DIRECTORY,
            "works on a state directory only (use `tec` without --namespace, --context and --kubeconfig)",
        )
    } else {
        (&CLUSTER, "works on a Kubernetes cluster only (use `kubectl tec`, or pass --namespace)")
    };
    let found = table.iter().find_map(|(path, flags)| offence(matches, path, flags));
    let found = found.or_else(|| on_cluster.then(|| boot_flag(matches)).flatten());
    found.map(|what| format!("{what} {hint}"))
}

/// Flags about a boot that an ApprovedImage has fields for.
const BOOT_FIELDS: [&str; 9] = [
    "kernel",
    "firmware_starts",
    "shim_starts",
    "shim_profile",
    "grub_profile",
    "stub_profile",
    "secure_boot",
    "grub_device",
    "grub_root",
];

/// Another flag of `tec image approve` that describes what boots, for an image that a Job reads.
fn boot_flag(matches: &ArgMatches) -> Option<String> {
    let matches = matches.subcommand_matches("image")?.subcommand_matches("approve")?;
    matches.get_one::<PathBuf>("image").filter(|image| is_reference(image))?;
    let flags = MachineArgs::augment_args(ChainArgs::augment_args(Command::new("approve")));
    let flags = flags.get_arguments().map(|flag| flag.get_id().as_str());
    let flags = flags.filter(|flag| !BOOT_FIELDS.contains(flag));
    given(matches, flags.chain(["accept_unpinned"]))
}

/// The command or the flag, if it was given.
fn offence(matches: &ArgMatches, path: &str, flags: &[&str]) -> Option<String> {
    let mut at = matches;
    for name in path.split(' ') {
        at = at.subcommand_matches(name)?;
    }
    if flags.is_empty() {
        return Some(format!("`tec {path}`"));
    }
    let mut at = Some(at);
    while let Some(matches) = at {
        if let Some(flag) = given(matches, flags.iter().copied()) {
            return Some(flag);
        }
        at = matches.subcommand().map(|(_, below)| below);
    }
    None
}

/// The first of these that the command line contains.
fn given<'a>(matches: &ArgMatches, mut flags: impl Iterator<Item = &'a str>) -> Option<String> {
    let is_given = |id: &&str| {
        matches.try_contains_id(id).is_ok_and(|present| present)
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    flags.find(is_given).map(|id| format!("--{}", id.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn said(words: &str, on_cluster: bool) -> Option<String> {
        let words = std::iter::once("tec").chain(words.split(' '));
        misplaced(&command(false).try_get_matches_from(words).unwrap(), on_cluster)
    }

    #[test]
    fn what_has_no_meaning_there_is_named() {
        for (words, on_cluster, culprit) in [
            ("serve", true, "`tec serve`"),
            ("key rotate a", true, "`tec key`"),
            ("key cancel a", true, "`tec key`"),
            ("machine prune", true, "`tec machine prune`"),
            ("audit verify", true, "`tec audit verify`"),
            ("audit list --follow", true, "--follow"),
            ("ak approve a --disk-keys random256", true, "--disk-keys"),
            ("image approve a r@sha256:0 --efivars d", true, "--efivars"),
            ("image approve a r@sha256:0 --accept-unpinned", true, "--accept-unpinned"),
            ("image approve a r@sha256:0 --no-mok", true, "--no-mok"),
            ("pcr identify --approved --log-file f", true, "--approved"),
            ("member list", false, "`tec member`"),
            ("check", false, "`tec check`"),
            ("image approve a p --pull-secret s", false, "--pull-secret"),
            ("bootstrap init --user-roles", false, "--user-roles"),
        ] {
            let said = said(words, on_cluster);
            assert!(said.as_ref().is_some_and(|said| said.contains(culprit)), "{words}: {said:?}");
        }
        for words in [
            "image approve a r --kernel k",
            "image approve a r@sha256:0 --kernel k --secure-boot off --grub-root hd1,gpt2",
            "image approve a --pcrs f",
            "audit list",
            "ak approve a",
            "status",
        ] {
            assert_eq!(said(words, true), None, "{words}");
            assert_eq!(said(words, false), None, "{words}");
        }
    }
}
