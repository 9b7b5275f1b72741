//! Which part of the project a package, a test program or a step of `cargo xtask test` is about, and what a
//! change can reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::cargo::{Metadata, Package, array, text};
use crate::process;
use crate::suites::Suite;
use crate::walk::{files_below, is_rust};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Area {
    /// Evidence, images, keys: the libraries, the anchor, the node's program
    Attest,
    /// Bootstrap of nodes
    Node,
    /// A platform's services
    Services,
    /// The operator and its cluster
    K8s,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tier {
    /// Lints, unit tests, documentation, WebAssembly, public interfaces
    Quick,
}

use Area::{Attest, K8s, Node, Services};

/// Packages, by the beginning of their path; the longest one counts.
const PACKAGES: [(&str, Area); 11] = [
    ("benches", Attest),
    ("bins", Attest),
    ("bins/bootstrapper", Node),
    ("bins/operator", K8s),
    ("bins/registration", K8s),
    ("bins/services", Services),
    ("examples", Attest),
    ("tec-", Attest),
    ("tec-k8s", K8s),
    ("tec-k8s/node", Node),
    ("tec-k8s/services", Services),
];

/// The package whose tests start programs of all others, and links them: which of its test programs a change
/// reaches, [`STARTED`] knows better than its manifest.
const TESTS: &str = "tec-e2e";

/// A test program of [`TESTS`] or a step: its areas, and the programs and packages that it is about. All that
/// these depend on reaches it, too.
struct Started {
    name: &'static str,
    areas: &'static [Area],
    starts: &'static [&'static str],
}

const ANCHOR: &[&str] = &["node-agent", "tec"];
const CLUSTER: &[&str] = &[
    "attestation-key-register",
    "bootstrapper",
    "compute-pcrs",
    "kbs-guard",
    "key-broker",
    "node-agent",
    "operator",
    "register-server",
    "tec",
];
const PLATFORM: &[&str] = &["services-bootstrap", "services-broker", "services-init"];
const NODES: &[&str] = &["bootstrapper", "join-service", "node-agent", "tec", "tec-guest"];

const fn started(
    name: &'static str,
    areas: &'static [Area],
    starts: &'static [&'static str],
) -> Started {
    Started { name, areas, starts }
}

static STARTED: [Started; 32] = [
    // Test programs; "opensearch" is a step, too.
    started("flood", &[Attest], ANCHOR),
    started("kill_loop", &[Attest], ANCHOR),
    started("kubernetes", &[K8s], CLUSTER),
    started("migrate", &[Attest], ANCHOR),
    started("mixed", &[Attest], ANCHOR),
    started("opensearch", &[Services], PLATFORM),
    started("packages", &[K8s], CLUSTER),
    started("page", &[Attest], ANCHOR),
    started("phases", &[Attest], ANCHOR),
    started("platform", &[Services], PLATFORM),
    started("pods", &[K8s], CLUSTER),
    started("properties", &[K8s], CLUSTER),
    started("rotation", &[Attest], ANCHOR),
    started("runbook", &[Attest], ANCHOR),
    started("serve", &[Attest], ANCHOR),
    started("services", &[Services], PLATFORM),
    started("systemd", &[Attest, Node], ANCHOR),
    // Steps. Those that are not listed concern every change.
    started("demo", &[Attest], ANCHOR),
    started("static", &[Node, Services, K8s], CLUSTER),
    started("examples", &[Attest], &["tec-examples"]),
    started("services-demo", &[Services], PLATFORM),
    started("boots", &[Attest], &["tec-guest", "tec-tpm"]),
    started("bootstrap-demo", &[Node], NODES),
    started("vm", &[Attest, Node], NODES),
    started("machines", &[Attest, Node], NODES),
    started("fuzz", &[Attest], &["tec-fuzz"]),
    started("fuzzers", &[Attest], &["tec-fuzz"]),
    started("crosscheck", &[Attest], &["tec-trustee"]),
    started("outside", &[Attest, K8s], &["tec-core", "tec-k8s", "tec-tpm", "tec-trustee"]),
    started("interfaces", &[Attest, K8s], &["tec-core", "tec-k8s", "tec-tpm", "tec-trustee"]),
    started("installation", &[Attest], &["node-agent"]),
    started("doctests", &[Attest, K8s], &["tec-core", "tec-k8s", "tec-tpm", "tec-trustee"]),
];

fn find(name: &str) -> Option<&'static Started> {
    STARTED.iter().find(|one| one.name == name)
}

/// Steps of [`Tier::Quick`].
const QUICK: [&str; 4] = ["check", "interfaces", "site", "tests"];
/// Steps that concern every package, and nothing else.
const OF_PACKAGES: [&str; 2] = ["build", "tests"];
/// What another step contains.
const CONTAINED: &str = "interfaces";

/// What to run.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    pub(crate) tier: Option<Tier>,
    /// Empty for all.
    pub(crate) areas: Vec<Area>,
    pub(crate) reach: Option<Reach>,
    root: PathBuf,
    /// Names of packages, by their directory.
    packages: BTreeMap<PathBuf, String>,
}

impl Selection {
    pub(crate) fn new(
        root: &Path,
        tier: Option<Tier>,
        areas: &[Area],
        changed_since: Option<&str>,
    ) -> Result<Self> {
        let metadata = Metadata::workspace(root)?;
        let reach =
            changed_since.map(|commit| Reach::since(root, &metadata, commit)).transpose()?;
        Ok(Self {
            tier,
            areas: areas.to_vec(),
            reach,
            root: root.to_owned(),
            packages: metadata
                .members()
                .map(|one| (directory(one), one.name().to_owned()))
                .collect(),
        })
    }

    pub(crate) fn step(&self, name: &str) -> bool {
        match self.tier {
            Some(Tier::Quick) if !QUICK.contains(&name) => return false,
            None if name == CONTAINED => return false,
            _ => {}
        }
        let nothing = self.reach.as_ref().is_some_and(|reach| reach.packages.is_empty());
        if nothing && OF_PACKAGES.contains(&name) {
            return false;
        }
        find(name).is_none_or(|started| self.is_wanted(started))
    }

    pub(crate) fn suite(&self, suite: &Suite) -> bool {
        let name = self.packages.get(&suite.dir).map_or("", String::as_str);
        if name == TESTS && !suite.is_unit {
            // A new test program concerns every change until it is listed.
            return find(&suite.name).is_none_or(|started| self.is_wanted(started));
        }
        let area = suite.dir.strip_prefix(&self.root).ok().and_then(area_of);
        let in_area = self.areas.is_empty() || area.is_some_and(|area| self.areas.contains(&area));
        in_area && self.reach.as_ref().is_none_or(|reach| reach.packages.contains(name))
    }

    fn is_wanted(&self, started: &Started) -> bool {
        let in_area =
            self.areas.is_empty() || started.areas.iter().any(|area| self.areas.contains(area));
        in_area && self.reach.as_ref().is_none_or(|reach| reach.reaches(started))
    }
}

/// The area of the package at this path from the root.
fn area_of(path: &Path) -> Option<Area> {
    let path = path.to_str()?;
    let begins = PACKAGES.iter().filter(|(begin, _)| path.starts_with(begin));
    begins.max_by_key(|(begin, _)| begin.len()).map(|(_, area)| *area)
}

fn directory(package: Package<'_>) -> PathBuf {
    package.manifest().parent().map(Path::to_owned).unwrap_or_default()
}

/// What a change can have an effect on.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) since: String,
    /// Packages with a changed file, and all that depend on them.
    pub(crate) packages: BTreeSet<String>,
    /// Programs of these packages.
    programs: BTreeSet<String>,
    /// Whether a file of [`TESTS`] itself changed.
    tests_changed: bool,
}

impl Reach {
    fn since(root: &Path, metadata: &Metadata, commit: &str) -> Result<Self> {
        let git = |words: &[&str]| {
            process::capture(process::command("git").current_dir(root).args(words))
        };
        let known = git(&["diff", "--name-only", "--no-renames", commit, "--"])?;
        let new = git(&["ls-files", "--others", "--exclude-standard"])?;
        let files: Vec<&str> = known.lines().chain(new.lines()).collect();
        if files.is_empty() {
            bail!("no file differs from {commit}");
        }
        Ok(Self::of(root, metadata, commit, &files))
    }

    fn of(root: &Path, metadata: &Metadata, since: &str, files: &[&str]) -> Self {
        let members: Vec<Package<'_>> = metadata.members().collect();
        let mut packages = changed(root, &members, files);
        let tests_changed = packages.contains(TESTS);
        loop {
            let before = packages.len();
            for member in &members {
                let depends = |on: &str| packages.contains(on);
                if member.dependencies().any(|dependency| depends(text(dependency, "name"))) {
                    packages.insert(member.name().to_owned());
                }
            }
            if packages.len() == before {
                break;
            }
        }
        let reached = members.iter().filter(|member| packages.contains(member.name()));
        let programs = reached.flat_map(|member| programs(*member)).collect();
        Self { since: since.to_owned(), packages, programs, tests_changed }
    }

    fn reaches(&self, started: &Started) -> bool {
        let is_reached =
            |name: &&str| self.programs.contains(*name) || self.packages.contains(*name);
        self.tests_changed || started.starts.iter().any(is_reached)
    }
}

fn programs(package: Package<'_>) -> impl Iterator<Item = String> {
    let is_program = |target: &&serde_json::Value| array(target, "kind").any(|kind| kind == "bin");
    package.targets().filter(is_program).map(|target| text(target, "name").to_owned())
}

/// Packages with a changed file. What belongs to no package concerns all of them, except pages: these concern
/// the packages that read them.
fn changed(root: &Path, members: &[Package<'_>], files: &[&str]) -> BTreeSet<String> {
    let mut changed = BTreeSet::new();
    for file in files {
        let path = root.join(file);
        let contains = |member: &&Package<'_>| path.starts_with(directory(**member));
        let innermost = members
            .iter()
            .filter(contains)
            .max_by_key(|member| directory(**member).as_os_str().len());
        match innermost {
            // It decides which tools and steps there are.
            Some(member) if member.name() == "xtask" => return all(members),
            Some(member) => {
                changed.insert(member.name().to_owned());
            }
            None if is_page(file) => {
                // The step `check` looks at pages, always.
                let reads = |member: &&Package<'_>| {
                    file.contains('/')
                        && member.name() != "xtask"
                        && names(&directory(**member), file)
                };
                changed.extend(members.iter().filter(reads).map(|one| one.name().to_owned()));
            }
            None => return all(members),
        }
    }
    changed
}

fn all(members: &[Package<'_>]) -> BTreeSet<String> {
    members.iter().map(|member| member.name().to_owned()).collect()
}

fn is_page(file: &str) -> bool {
    let is_text = Path::new(file).extension().is_some_and(|end| end == "md");
    file.starts_with("docs/") || !file.contains('/') && is_text
}

/// Whether the code of a Rust file below the folder names this file, or the folder of pages that has it.
fn names(folder: &Path, file: &str) -> bool {
    // The end of a literal.
    let parent = file.rsplit_once('/').map(|(parent, _)| format!("{parent}\""));
    let named = |line: &str| {
        !line.trim_start().starts_with("//")
            && (line.contains(file) || parent.as_ref().is_some_and(|end| line.contains(end)))
    };
    let files = files_below(folder, |_| true).unwrap_or_default().into_iter();
    files
        .filter(|file| is_rust(file))
        .any(|file| fs::read_to_string(folder.join(file)).unwrap_or_default().lines().any(named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::workspace_root;

    fn reach(files: &[&str]) -> Reach {
        let root = workspace_root().unwrap();
        Reach::of(&root, &Metadata::workspace(&root).unwrap(), "HEAD", files)
    }

    fn reaches(reach: &Reach, name: &str) -> bool {
        reach.reaches(find(name).unwrap())
    }

    #[test]
    fn every_package_belongs_to_an_area() {
        let root = workspace_root().unwrap();
        for member in Metadata::workspace(&root).unwrap().members() {
            let path = directory(member);
            let path = path.strip_prefix(&root).unwrap();
            assert!(area_of(path).is_some(), "{} is in no area", path.display());
        }
        for (path, area) in [
            ("tec-core", Attest),
            ("tec-tpm/agent", Attest),
            ("tec-k8s", K8s),
            ("tec-k8s/node", Node),
            ("tec-k8s/services", Services),
            ("bins/node-agent", Attest),
        ] {
            assert_eq!(area_of(Path::new(path)), Some(area), "{path}");
        }
    }

    #[test]
    fn every_test_program_of_many_programs_is_listed_and_every_listed_program_is_there() {
        let metadata = Metadata::workspace(&workspace_root().unwrap()).unwrap();
        let tests = metadata.members().find(|member| member.name() == TESTS).unwrap();
        for target in tests.targets().filter(|one| array(one, "kind").any(|kind| kind == "test")) {
            let name = text(target, "name");
            assert!(find(name).is_some(), "{name} is not in the table");
        }
        let known: BTreeSet<String> = metadata
            .members()
            .flat_map(|member| programs(member).chain([member.name().to_owned()]))
            .collect();
        for name in STARTED.iter().flat_map(|started| started.starts) {
            assert!(known.contains(*name), "there is no program or package {name}");
        }
    }

    #[test]
    fn a_change_reaches_what_depends_on_it_and_what_starts_it() {
        let services = reach(&["bins/services/src/lib.rs"]);
        assert!(services.packages.contains(TESTS));
        assert!(reaches(&services, "services") && reaches(&services, "services-demo"));
        assert!(!reaches(&services, "kubernetes") && !reaches(&services, "vm"));
        assert!(!services.packages.contains("tec-core"));
        let core = reach(&["tec-core/src/lib.rs"]);
        assert!(STARTED.iter().all(|started| core.reaches(started)));
        // Also through dependencies of tests alone.
        assert!(core.packages.contains("node-agent"));
        // The innermost package has the file.
        assert!(!reach(&["tec-k8s/node/src/lib.rs"]).packages.contains("tec-k8s"));
        assert!(STARTED.iter().all(|started| reach(&["bins/e2e/src/lib.rs"]).reaches(started)));
    }

    #[test]
    fn what_belongs_to_no_package_reaches_everything_and_a_page_only_its_readers() {
        for file in ["Cargo.lock", "clippy.toml", "bins/xtask/src/main.rs", ".cargo/config.toml"] {
            assert_eq!(reach(&[file]).packages.len(), reach(&["Cargo.toml"]).packages.len());
        }
        assert!(reach(&["docs/adr/README.md"]).packages.is_empty());
        assert!(reach(&["README.md", "CHANGELOG.md"]).packages.is_empty());
        let read = reach(&["docs/reference/libraries.md"]).packages;
        assert!(read.contains("tec-examples") && !read.contains("tec-core"), "{read:?}");
        assert!(reach(&["docs/runbooks/new.md"]).packages.contains(TESTS));
    }

    #[test]
    fn a_selection_is_a_tier_of_areas_that_the_change_reaches() {
        let root = workspace_root().unwrap();
        let all = Selection::new(&root, None, &[], None).unwrap();
        assert!(all.step("vm") && all.step("build") && all.step("outside"));
        assert!(!all.step("interfaces"), "the step outside contains it");
        let quick = Selection::new(&root, Some(Tier::Quick), &[], None).unwrap();
        assert!(quick.step("check") && quick.step("interfaces"));
        assert!(!quick.step("build") && !quick.step("demo"));
        let services = Selection::new(&root, None, &[Services], None).unwrap();
        assert!(services.step("services-demo") && services.step("check"));
        assert!(!services.step("boots"));
        let page =
            Selection { reach: Some(reach(&["docs/adr/README.md"])), ..Selection::default() };
        assert!(page.step("check") && page.step("site"));
        assert!(!page.step("build") && !page.step("tests") && !page.step("vm"));
    }
}
