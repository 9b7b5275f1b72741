//! `cargo xtask codegen`: files that are committed, and written by a program.
//!
//! * `docs/errors/`: one page per error code, from the table in tec-core;
//! * `docs/reference/commands/`: all commands and flags, as `tec reference` prints them;
//! * `tec-k8s/crds/`: the custom resources, from the types in tec-k8s. That crate's example `crds`
//!   writes them, so that xtask itself needs no Kubernetes crates;
//! * `tec-k8s/src/service/pb/`: Rust code of the protobuf file, by the program in bins/protobuf.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use anyhow::Result;
use anyhow::bail;
use tec_core::code::Code;

use crate::cargo::Metadata;
use crate::cargo::cargo;
use crate::process;
use crate::term;

const ERRORS: &str = "docs/errors";
const COMMANDS: &str = "docs/reference/commands";
const CRDS: &str = "tec-k8s/crds";
const PROTO: &str = "tec-k8s/proto/bootstrap.proto";
const PROTOBUF: &str = "tec-k8s/src/service/pb";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a committed file differs from what would be written
    #[arg(long)]
    check: bool,
}

/// Directory, and its files by name.
type Generated = BTreeMap<&'static str, BTreeMap<String, String>>;

/// `cargo xtask codegen`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    if args.check {
        return check(root);
    }
    term::step("codegen");
    for (dir, files) in generate(root)? {
        let dir = root.join(dir);
        for stale in stale(&dir, &files)? {
            term::note(&format!("remove {}", stale.display()));
            fs::remove_file(&stale)
                .with_context(|| format!("cannot remove {}", stale.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        for (name, text) in files {
            let path = dir.join(name);
            if read(&path)?.as_ref() != Some(&text) {
                term::note(&format!("write {}", path.display()));
                fs::write(&path, text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    term::success("generated files are up to date");
    Ok(())
}

/// Compares what is committed with what would be written.
pub(crate) fn check(root: &Path) -> Result<()> {
    term::step("check: generated files");
    let mut differing = Vec::new();
    for (dir, files) in generate(root)? {
        let dir = root.join(dir);
        differing.extend(stale(&dir, &files)?);
        for (name, text) in &files {
            let path = dir.join(name);
            if read(&path)?.as_ref() != Some(text) {
                differing.push(path);
            }
        }
    }
    if differing.is_empty() {
        return Ok(());
    }
    for path in &differing {
        term::note(&format!("differs: {}", path.display()));
    }
    bail!("generated files are not up to date: run `cargo xtask codegen` and commit the result")
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Files in a generated directory that nothing generates any more.
fn stale(dir: &Path, files: &BTreeMap<String, String>) -> Result<Vec<PathBuf>> {
    Ok(names(dir)?
        .into_iter()
        .filter(|name| !files.contains_key(name))
        .map(|name| dir.join(name))
        .collect())
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn generate(root: &Path) -> Result<Generated> {
    Ok(BTreeMap::from([
        (ERRORS, error_pages()),
        (COMMANDS, commands(root)?),
        (CRDS, custom_resources(root)?),
        (PROTOBUF, protobuf(root)?),
    ]))
}

/// Asks the program itself.
fn commands(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut tec = cargo(root);
    tec.args(["run", "--quiet", "--package", "tec", "--", "reference"]);
    let page = process::capture(&mut tec)?;
    Ok(BTreeMap::from([("tec.md".to_owned(), page)]))
}

/// Lets the example of tec-k8s write its files into the target directory.
fn custom_resources(root: &Path) -> Result<BTreeMap<String, String>> {
    let dir = scratch(root, "crds")?;
    let mut example = cargo(root);
    example.args([
        "run",
        "--quiet",
        "--package",
        "tec-k8s",
        "--example",
        "crds",
        "--",
    ]);
    process::run(example.arg(&dir))?;
    read_all(&dir)
}

/// Lets the program of the protobuf files write into the target directory.
fn protobuf(root: &Path) -> Result<BTreeMap<String, String>> {
    let dir = scratch(root, "protobuf")?;
    let mut program = cargo(root);
    program.args(["run", "--quiet", "--package", "tec-protobuf", "--"]);
    process::run(program.arg(root.join(PROTO)).arg(&dir))?;
    read_all(&dir)
}

/// An empty directory below the target directory.
fn scratch(root: &Path, name: &str) -> Result<PathBuf> {
    let dir = Metadata::workspace(root)?.target_dir()?.join("codegen");
    let dir = dir.join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

fn read_all(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for name in names(dir)? {
        let text = read(&dir.join(&name))?.unwrap_or_default();
        files.insert(name, text);
    }
    Ok(files)
}

fn error_pages() -> BTreeMap<String, String> {
    let mut pages: BTreeMap<String, String> = Code::ALL
        .iter()
        .map(|code| (format!("{code}.md"), error_page(*code)))
        .collect();
    pages.insert("README.md".to_owned(), error_index());
    pages
}

const GENERATED: &str = "<!-- Written by `cargo xtask codegen` from tec-core/src/code.rs. -->";

fn error_page(code: Code) -> String {
    let Family { title, look, .. } = family(code);
    format!(
        "{GENERATED}\n# {code}: {sentence}\n\nFamily: {title}. HTTP status: {status}.\n\n\
         ## Cause\n\n{cause}\n\n## What to do\n\n{fix}\n\n## How to look further\n\n{look}\n\n\
         [All codes](README.md)\n",
        sentence = code.title(),
        status = code.http_status(),
        cause = code.cause(),
        fix = code.fix(),
    )
}

fn error_index() -> String {
    let mut page = format!(
        "{GENERATED}\n# Error codes\n\nA refused caller is told the code and its title, never more. \
         The detail is in the server's log, and in `tec explain`.\n"
    );
    for family in FAMILIES {
        page.extend([
            "\n## ",
            family.title,
            "\n\n| code | HTTP | meaning |\n|---|---|---|\n",
        ]);
        let codes = Code::ALL.iter().filter(|c| letter(**c) == family.letter);
        page.extend(codes.map(|code| {
            let (status, title) = (code.http_status(), code.title());
            format!("| [{code}]({code}.md) | {status} | {title} |\n")
        }));
    }
    page
}

struct Family {
    letter: char,
    title: &'static str,
    look: &'static str,
}

/// The letter after `TEC-`.
fn letter(code: Code) -> char {
    code.as_str().chars().nth(4).unwrap_or('?')
}

fn family(code: Code) -> &'static Family {
    FAMILIES
        .iter()
        .find(|family| family.letter == letter(code))
        .unwrap_or(&OTHER)
}

const OTHER: Family = Family {
    letter: '?',
    title: "Other",
    look: "Read the log of the program that printed the code.",
};

const FAMILIES: [Family; 9] = [
    Family {
        letter: 'R',
        title: "Registration of machines and attestation keys",
        look: "On the server, read the log at that time; `tec machine list` and `tec ak list` show what is registered, `tec audit` shows who \
               changed it when.",
    },
    Family {
        letter: 'A',
        title: "Attestation: the ladder of gates",
        look: "On the server, `tec explain <machine>` climbs the gates of the machine's last \
               attempt one by one and names the first that failed; with `--output json` it carries \
               every event and digest. On the node, the journal of the boot has the id of the \
               attempt, which `tec explain` takes, too.",
    },
    Family {
        letter: 'K',
        title: "Stored keys",
        look: "On the server, the log at the time of the request names the record; `tec status` \
               says whether the seal key file fits the store.",
    },
    Family {
        letter: 'P',
        title: "Policies",
        look: "The answer and the log name line and column. docs/reference has what a policy is \
               given as input and data.",
    },
    Family {
        letter: 'T',
        title: "TLS",
        look: "The log names the file. A running server keeps the last good certificate until the \
               new one can be used.",
    },
    Family {
        letter: 'I',
        title: "Approved images",
        look: "`tec image list` shows what is approved, since when, and until when. The error \
               names the file and, within it, the offset.",
    },
    Family {
        letter: 'S',
        title: "The embedded store",
        look: "The log at the time of the request, or at start-up, has the cause that the database \
               or the operating system gave. `tec status` runs the same checks as start-up.",
    },
    Family {
        letter: 'N',
        title: "The node",
        look: "On the node, the journal of the boot has the whole chain of causes; no key material \
               is ever in it.",
    },
    Family {
        letter: 'V',
        title: "The vault and the services around it",
        look: "The log of services-bootstrap beside the vault, or of services-init in the pod that \
               waits. The exit code of the container is the last two digits of the code.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_family_and_a_page() {
        let pages = error_pages();
        for code in Code::ALL {
            assert_ne!(family(*code).letter, OTHER.letter, "{code}");
            let page = pages.get(&format!("{code}.md")).unwrap();
            for part in [code.title(), code.cause(), code.fix()] {
                assert!(page.contains(part), "{code}");
            }
        }
        assert_eq!(pages.len(), Code::ALL.len() + 1);
    }

    #[test]
    fn the_index_links_every_code() {
        let index = error_index();
        for code in Code::ALL {
            assert!(index.contains(&format!("[{code}]({code}.md)")), "{code}");
        }
    }

    #[test]
    fn a_page_of_a_code_that_is_gone_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("TEC-X000.md"), "").unwrap();
        let stale = stale(dir.path(), &error_pages()).unwrap();
        assert_eq!(stale, [dir.path().join("TEC-X000.md")]);
    }
}
