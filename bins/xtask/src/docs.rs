//! `cargo xtask docs`: builds the pages of docs/ as a site with search, and checks its links.
//!
//! mdBook gets a copy of the pages. In it, links to files outside docs/ are plain text, because the site does not
//! contain these files, and the generated pages are listed in the table of contents below their index.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::walk::files_below;
use crate::{process, term, tools};

const SUMMARY: &str = "SUMMARY.md";
/// Folders of generated pages, listed below their `README.md`.
const GENERATED: [&str; 2] = ["errors", "runbooks"];
/// File types of docs/ that go into the site.
const KINDS: [&str; 3] = ["md", "svg", "toml"];

/// Builds the site in `target/docs`.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tools = tools::locate()?;
    tools::ensure_docs(&tools)?;
    term::step("documentation site");
    let (docs, copy) = (root.join("docs"), root.join("target/docs-pages"));
    let site = root.join("target/docs");
    if copy.exists() {
        fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    }
    let files = files(&docs)?;
    every_page_is_listed(&docs, &files)?;
    for file in &files {
        stage(&docs, &copy, file, &files)?;
    }
    let mut book = process::command(tools.cache.join("bin/mdbook"));
    process::capture(book.arg("build").arg(&copy).arg("--dest-dir").arg(&site))?;
    term::step("links of the site");
    let mut links = process::command(tools.cache.join("bin/lychee"));
    links.args(["--offline", "--include-fragments=full", "--no-progress"]).arg("--root-dir");
    links.arg(&site).arg(site.join("**/*.html")).current_dir(root);
    // The 404 page and the table of contents have no fragments of their own.
    links.args(["--exclude-path", "404.html", "--exclude-path", "toc.html"]);
    process::run(&mut links)?;
    term::success(&format!("{}", site.join("index.html").display()));
    Ok(())
}

/// Paths, below docs/, of all pages and the files they show.
fn files(docs: &Path) -> Result<Vec<PathBuf>> {
    let files = files_below(docs, |_| true)?.into_iter().map(PathBuf::from);
    let is_shown =
        |file: &PathBuf| file.extension().is_some_and(|end| KINDS.iter().any(|kind| end == *kind));
    Ok(files.filter(is_shown).collect())
}

/// Checks that the summary lists every page: mdBook leaves out all others.
fn every_page_is_listed(docs: &Path, files: &[PathBuf]) -> Result<()> {
    let summary = docs.join(SUMMARY);
    let text = fs::read_to_string(&summary)
        .with_context(|| format!("cannot read {}", summary.display()))?;
    let is_missing = |file: &&PathBuf| {
        let is_page = file.extension().is_some_and(|end| end == "md");
        let generated = GENERATED.iter().any(|folder| file.starts_with(folder));
        is_page
            && !generated
            && file.as_path() != Path::new(SUMMARY)
            && !text.contains(&format!("]({})", file.display()))
    };
    let missing: Vec<_> =
        files.iter().filter(is_missing).map(|file| file.display().to_string()).collect();
    if !missing.is_empty() {
        bail!("docs/{SUMMARY} does not list {}", missing.join(", "));
    }
    Ok(())
}

fn stage(docs: &Path, copy: &Path, file: &Path, files: &[PathBuf]) -> Result<()> {
    let (from, to) = (docs.join(file), copy.join(file));
    let text =
        fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let text = if file == Path::new(SUMMARY) {
        contents(&text, files)
    } else if file.extension().is_some_and(|end| end == "md") {
        inside(&text, file, files)
    } else {
        text
    };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))
}

/// The summary, with the generated pages below their index.
fn contents(summary: &str, files: &[PathBuf]) -> String {
    let mut text = String::new();
    for line in summary.lines() {
        text += line;
        text.push('\n');
        let folder = GENERATED.iter().find(|name| line.ends_with(&format!("({name}/README.md)")));
        let Some(folder) = folder else { continue };
        for page in files.iter().filter(|file| file.starts_with(folder)) {
            let name = page.file_stem().unwrap_or_default().to_string_lossy();
            if name != "README" {
                let _ = writeln!(text, "  - [{name}]({})", page.display());
            }
        }
    }
    text
}

/// Keeps only the text of links out of docs/, and of links to folders.
fn inside(text: &str, page: &Path, files: &[PathBuf]) -> String {
    let mut parts = text.split("](");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result += "](";
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let (path, _) = link.split_once('#').unwrap_or((link, ""));
        if path.is_empty() || path.contains("://") || path.contains(char::is_whitespace) {
            result += part;
            continue;
        }
        let place = normal(&Path::new("docs").join(page).with_file_name(path));
        let is_page = place
            .strip_prefix("docs")
            .is_ok_and(|file| file != Path::new(SUMMARY) && files.iter().any(|page| page == file));
        if is_page {
            // mdBook renames these pages.
            let _ = write!(result, "{}){rest}", link.replace("README.md", "index.md"));
        } else if let Some(start) = result.rfind('[') {
            result.remove(start);
            result.truncate(result.len() - "](".len());
            result += rest;
        }
    }
    result
}

/// Resolves `..` and `.`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_pages_become_text() {
        let files = ["how-to/a.md", "b.md", "README.md", SUMMARY].map(PathBuf::from);
        let page = Path::new("how-to/a.md");
        let text = "[b](../b.md#x) [web](https://x.y) [here](#z) [top](../README.md#t) \
            [all](../SUMMARY.md) [code](../../bins/tec/src/main.rs)";
        let expected = "[b](../b.md#x) [web](https://x.y) [here](#z) [top](../index.md#t) all code";
        assert_eq!(inside(text, page, &files), expected);
    }

    #[test]
    fn generated_pages_stand_below_their_index() {
        let files = [PathBuf::from("errors/README.md"), PathBuf::from("errors/TEC-A400.md")];
        let text = contents("- [Codes](errors/README.md)\n- [x](x.md)\n", &files);
        let expected =
            "- [Codes](errors/README.md)\n  - [TEC-A400](errors/TEC-A400.md)\n- [x](x.md)\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_page_that_the_summary_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(SUMMARY), "- [x](x.md)\n").unwrap();
        let listed = every_page_is_listed(dir.path(), &[PathBuf::from("x.md")]);
        assert!(listed.is_ok());
        let error = every_page_is_listed(dir.path(), &[PathBuf::from("y.md")]).unwrap_err();
        assert!(error.to_string().contains("y.md"), "{error}");
    }
}
