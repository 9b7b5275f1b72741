//! What tests need besides a clone and `cargo xtask tools`. A test that needs something carries
//! `#[ignore = "needs NAME: what to set"]`: plain `cargo test` does not run it, and `cargo xtask test` runs it
//! where the need is met. What does not run is counted and named.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::count::{Count, Ignored, ignored};
use crate::{process, term, tools};

/// Folder of recorded boots and evidence, outside the repository.
const FIXTURES: &str = "TEC_FIXTURES";
/// Begins the reason of an ignored test.
const NEEDS: &str = "needs ";
/// The reason of a test that another test starts as a program of its own.
const STARTED: &str = "started by ";
/// Begins a line on standard error about a part of a test that did not run.
const PART: &str = "NOT RUN needs ";
pub(crate) const ADVISORIES: &str = "advisories";
pub(crate) const RUST_VERSIONS: &str = "rust-versions";

#[derive(Clone, Copy, Debug)]
struct Need {
    name: &'static str,
    /// What to do to meet it.
    how: &'static str,
    met: Met,
}

/// How to find out whether a need is met.
#[derive(Clone, Copy, Debug)]
enum Met {
    /// All of these exist below [`FIXTURES`].
    Fixtures(&'static [&'static str]),
    /// The variable names a program.
    Program(&'static str),
    /// The variable names a folder.
    Folder(&'static str),
    /// All variables are set.
    Variables(&'static [&'static str]),
    /// The variable names a program, or the cache of tools has this one.
    Tool(&'static str, &'static str),
    Root,
    /// The repository has the commit before HEAD.
    History,
    /// Only the step itself can tell.
    Later,
}

/// All needs. Tests may name no others.
static ALL: [Need; 12] = [
    Need {
        name: ADVISORIES,
        how: "the database of advisories cannot be fetched: allow access to github.com",
        met: Met::Later,
    },
    Need {
        name: "event-logs",
        how: "set TEC_FIXTURES to a folder with eventlogs/",
        met: Met::Fixtures(&["eventlogs"]),
    },
    Need { name: "history", how: "fetch the commit before HEAD", met: Met::History },
    Need {
        name: "more-snp-reports",
        how: "set TEC_FIXTURES to a folder with all files of snp/ that the tests name",
        met: Met::Fixtures(&[
            "snp/go-sev-guest/attestation.bin",
            "snp/go-sev-guest/vcek.testcer",
            "snp/trustee/evidence-genoa.json",
            "snp/trustee/evidence-v2.json",
            "snp/trustee/test-report.bin",
            "snp/trustee/test-vcek.der",
            "snp/trustee/test-vcek-invalid-legacy.der",
            "snp/trustee/test-vcek-invalid-new.der",
            "snp/trustee/test-vlek-report.bin",
            "snp/trustee/test-vlek.der",
            "snp/trustee/vcek-genoa.pem",
            "snp/virtee-sev/report_milan.hex",
        ]),
    },
    Need {
        name: "old-bao",
        how: "run `cargo xtask tools --old-bao`, or set TEC_OLD_BAO",
        met: Met::Tool("TEC_OLD_BAO", "old-bao/bao"),
    },
    Need {
        name: "recorded-boots",
        how: "set TEC_FIXTURES to a folder with qemu/",
        met: Met::Fixtures(&[
            "qemu/bookworm-sb-on/esp",
            "qemu/bookworm-shim-mokgrub/esp",
            "qemu/trixie-sb-off/esp",
            "qemu/trixie-sb-on/esp",
            "qemu/trixie-shim-uki-mok/esp",
            "qemu/trixie-uki/esp",
        ]),
    },
    Need { name: "root", how: "run as root", met: Met::Root },
    Need { name: RUST_VERSIONS, how: "install rustup", met: Met::Later },
    Need {
        name: "snp-reports",
        how: "set TEC_FIXTURES to a folder with snp/",
        met: Met::Fixtures(&["snp/azure-cvm-tooling", "snp/trustee", "snp/virtee-sev"]),
    },
    Need {
        name: "trustee",
        how: "set TRUSTEE_BIN to the program kbs of a Trustee",
        met: Met::Program("TRUSTEE_BIN"),
    },
    Need {
        name: "trustee-url",
        how: "set TRUSTEE_URL and TRUSTEE_ADMIN_KEY",
        met: Met::Variables(&["TRUSTEE_URL", "TRUSTEE_ADMIN_KEY"]),
    },
    Need {
        name: "upstream-operator",
        how: "set UPSTREAM_OPERATOR_DIR to a checkout after `make manifests`",
        met: Met::Folder("UPSTREAM_OPERATOR_DIR"),
    },
];

/// This machine, as far as needs look at it.
struct Machine<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    root: &'a Path,
    cache: &'a Path,
}

impl Machine<'_> {
    fn path(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).map(PathBuf::from)
    }

    /// The program that the variable names.
    fn program(&self, variable: &str) -> Result<bool> {
        match self.path(variable) {
            Some(path) if !process::is_executable(&path) => {
                bail!("{variable}={} is not a program that can run", path.display())
            }
            path => Ok(path.is_some()),
        }
    }

    fn folder(&self, variable: &str) -> Result<Option<PathBuf>> {
        match self.path(variable) {
            Some(path) if !path.is_absolute() || !path.is_dir() => {
                bail!("{variable}={} is not the absolute path of a folder", path.display())
            }
            path => Ok(path),
        }
    }

    /// # Errors
    /// Something is set, and it is not what it should be: then nobody wants the tests left out.
    fn meets(&self, met: Met) -> Result<bool> {
        Ok(match met {
            Met::Fixtures(paths) => {
                let folder = self.folder(FIXTURES)?;
                folder.is_some_and(|folder| paths.iter().all(|path| folder.join(path).exists()))
            }
            Met::Program(variable) => self.program(variable)?,
            Met::Folder(variable) => self.folder(variable)?.is_some(),
            Met::Variables(all) => {
                let is_set = |name: &&&str| (self.variable)(name).is_some();
                let set = all.iter().filter(is_set).count();
                if set > 0 && set < all.len() {
                    bail!("set all of {}, or none", all.join(", "));
                }
                set > 0
            }
            Met::Tool(variable, path) => {
                self.program(variable)? || process::is_executable(&self.cache.join(path))
            }
            Met::Root => rustix::process::geteuid().is_root(),
            Met::History => {
                let mut git = process::command("git");
                git.current_dir(self.root);
                git.args(["rev-parse", "--verify", "--quiet", "HEAD~1"]);
                process::output(&mut git).is_ok_and(|output| output.status.success())
            }
            Met::Later => true,
        })
    }

    fn needs(&self) -> Result<Needs> {
        let mut met = BTreeSet::new();
        for need in &ALL {
            if self.meets(need.met)? {
                met.insert(need.name);
            }
        }
        Ok(Needs { met })
    }
}

/// The needs that this machine meets.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    met: BTreeSet<&'static str>,
}

impl Needs {
    /// # Errors
    /// A variable of the environment has an unusable value.
    pub(crate) fn of_this_machine(root: &Path) -> Result<Self> {
        let cache = tools::locate()?.cache;
        // An empty variable is one that is not set, as in a shell.
        let variable =
            |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        Machine { variable: &variable, root, cache: &cache }.needs()
    }

    #[cfg(test)]
    pub(crate) fn that_meet(names: &[&'static str]) -> Self {
        Self { met: names.iter().copied().collect() }
    }

    /// # Errors
    /// A name is unknown, or this machine does not meet the need.
    pub(crate) fn require(&self, names: &[String]) -> Result<()> {
        for name in names {
            let Some(need) = named(name) else {
                let known: Vec<_> = ALL.iter().map(|need| need.name).collect();
                bail!("there is no need {name:?}; these are known: {}", known.join(", "));
            };
            if !self.met.contains(need.name) {
                bail!("{name} is required: {}", need.how);
            }
        }
        Ok(())
    }

    /// Says what will not run.
    pub(crate) fn announce(&self) {
        for need in ALL.iter().filter(|need| !self.met.contains(need.name)) {
            term::note(&format!("without {}: {}", need.name, need.how));
        }
    }

    /// Sorts what a test program ignored: tests to run now, and what does not run here.
    pub(crate) fn sort(&self, suite: &str, output: &str) -> (Vec<String>, Count) {
        let (mut now, mut count) = (Vec::new(), Count::default());
        for Ignored { test, reason } in ignored(output) {
            match need_of(&reason) {
                Some(need) if self.met.contains(need) => now.push(test),
                Some(need) => count.add(Count::not_run(need, format!("{suite}::{test}"))),
                None if reason.starts_with(STARTED) => {}
                None => {
                    let report = format!("{suite}::{test} is ignored and says no known need");
                    count.add(Count { reports: vec![report], ..Count::failed() });
                }
            }
        }
        (now, count)
    }
}

/// What did not run of a command that runs every test that it can: a met need changes nothing.
pub(crate) fn all_not_run(suite: &str, output: &str) -> Count {
    Needs { met: BTreeSet::new() }.sort(suite, output).1
}

/// Parts of tests that did not run: lines `NOT RUN needs NAME: what`.
pub(crate) fn parts(errors: &str) -> Count {
    let mut count = Count::default();
    for line in errors.lines().filter_map(|line| line.strip_prefix(PART)) {
        let (name, what) = line.split_once(": ").unwrap_or((line, ""));
        match named(name) {
            Some(need) => count.add(Count::not_run(need.name, what)),
            None => count.add(Count::failed()),
        }
    }
    count
}

/// `needs NAME: what to set`
fn need_of(reason: &str) -> Option<&'static str> {
    let (name, how) = reason.strip_prefix(NEEDS)?.split_once(": ")?;
    named(name).filter(|_| !how.is_empty()).map(|need| need.name)
}

fn named(name: &str) -> Option<&'static Need> {
    ALL.iter().find(|need| need.name == name)
}

/// Prints what failed, the total, and what did not run.
pub(crate) fn report(total: &Count) {
    for report in &total.reports {
        term::failure(report);
    }
    term::out(&total.headline());
    for line in lines(total) {
        term::out(&line);
    }
}

/// One line for each need that was not met, with what did not run.
fn lines(count: &Count) -> Vec<String> {
    let line = |(name, what): (&&str, &BTreeSet<String>)| {
        let how = named(name).map_or("", |need| need.how);
        let what: Vec<&str> = what.iter().map(String::as_str).collect();
        format!("  {name} ({how}): {}", what.join(", "))
    };
    count.not_run.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn meets(variables: &[(&str, &Path)], name: &str) -> Result<bool> {
        let variable = |name: &str| {
            variables.iter().find(|set| set.0 == name).map(|set| set.1.as_os_str().to_owned())
        };
        let nowhere = Path::new("/nowhere");
        let machine = Machine { variable: &variable, root: nowhere, cache: nowhere };
        machine.meets(named(name).unwrap().met)
    }

    #[test]
    fn a_reason_names_a_known_need_and_what_to_set() {
        assert_eq!(need_of("needs trustee: set TRUSTEE_BIN"), Some("trustee"));
        for other in ["", "slow", "needs trustee", "needs trustee: ", "needs luck: have it"] {
            assert_eq!(need_of(other), None, "{other}");
        }
    }

    #[test]
    fn ignored_tests_run_where_their_need_is_met_and_are_named_elsewhere() {
        let output = "test a ... ignored, needs root: run as root\n\
            test b ... ignored, needs trustee: set TRUSTEE_BIN\n\
            test c ... ignored, started by d\ntest d ... ok\n";
        let needs = Needs::that_meet(&["root"]);
        let (now, count) = needs.sort("s", output);
        assert_eq!(now, ["a"]);
        assert_eq!(count, Count::not_run("trustee", "s::b"));
        let mut all = Count::not_run("trustee", "s::b");
        all.add(Count::not_run("root", "s::a"));
        assert_eq!(all_not_run("s", output), all);
        let lines = lines(&all);
        assert_eq!(lines[0], "  root (run as root): s::a");
    }

    #[test]
    fn a_test_that_is_ignored_for_another_reason_fails_the_run() {
        for reason in ["", ", slow", ", needs luck: have it"] {
            let (now, count) =
                Needs::that_meet(&[]).sort("s", &format!("test a ... ignored{reason}\n"));
            assert_eq!((now.len(), count.failed, count.reports.len()), (0, 1, 1), "{reason}");
        }
    }

    #[test]
    fn parts_of_tests_that_did_not_run_are_counted() {
        let expected = Count::not_run("history", "an upgrade");
        assert_eq!(parts("x\nNOT RUN needs history: an upgrade\n"), expected);
        assert_eq!(parts("NOT RUN needs luck: a\n"), Count::failed());
        assert_eq!(parts("nothing of that"), Count::default());
    }

    #[test]
    fn what_is_set_and_unusable_is_an_error_and_what_is_not_set_is_not_met() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kbs");
        fs::write(&file, "").unwrap();
        for name in ["trustee", "trustee-url", "old-bao", "recorded-boots", "upstream-operator"] {
            assert!(!meets(&[], name).unwrap(), "{name}");
        }
        meets(&[("TRUSTEE_BIN", &file)], "trustee").unwrap_err();
        meets(&[("TEC_OLD_BAO", &file)], "old-bao").unwrap_err();
        meets(&[("TRUSTEE_URL", &file)], "trustee-url").unwrap_err();
        meets(&[(FIXTURES, Path::new("relative"))], "snp-reports").unwrap_err();
        meets(&[(FIXTURES, &file)], "snp-reports").unwrap_err();
        crate::tools::make_executable(&file).unwrap();
        assert!(meets(&[("TRUSTEE_BIN", &file)], "trustee").unwrap());
        assert!(meets(&[("UPSTREAM_OPERATOR_DIR", dir.path())], "upstream-operator").unwrap());
    }

    #[test]
    fn fixtures_meet_a_need_where_all_of_its_files_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let met = |name| meets(&[(FIXTURES, dir.path())], name).unwrap();
        assert!(!met("event-logs"));
        fs::create_dir_all(dir.path().join("eventlogs")).unwrap();
        fs::create_dir_all(dir.path().join("qemu/trixie-sb-on/esp")).unwrap();
        assert!(met("event-logs"));
        assert!(!met("recorded-boots"));
    }

    #[test]
    fn a_required_need_that_is_not_met_is_an_error() {
        let needs = Needs::that_meet(&["root"]);
        let names = |name: &str| [name.to_owned()];
        needs.require(&names("root")).unwrap();
        let missing = needs.require(&names("trustee")).unwrap_err();
        assert!(missing.to_string().contains("TRUSTEE_BIN"), "{missing}");
        needs.require(&names("luck")).unwrap_err();
    }
}
