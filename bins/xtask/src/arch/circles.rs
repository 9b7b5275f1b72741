//! No module imports a module that imports it, directly or indirectly: checked among sibling modules, at
//! every depth.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::Source;

const RULE: &str = "no-import-circle";
const TODO: &str = "move what both need into a module below them";

/// Path of a module within its crate; empty for the root.
type Module = Vec<String>;
/// An import of one name under a common parent by another, with its first location.
type Edges<'a> = BTreeMap<(String, String), Import<'a>>;

struct Import<'a> {
    count: usize,
    source: &'a Source,
    offset: usize,
}

pub(super) fn check(sources: &[Source]) -> Vec<Violation> {
    let mut crates: BTreeMap<&str, Vec<(Module, &Source)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        if let Some((name, module)) = place(&source.file) {
            crates.entry(name).or_default().push((module, source));
        }
    }
    crates.values().flat_map(|files| circles(files)).collect()
}

/// Crate and module of a file; `None` outside a crate's sources.
fn place(file: &str) -> Option<(&str, Module)> {
    let (package, below) = file.split_once("/src/")?;
    let below = match below.strip_prefix("bin/") {
        // A directory is a separate program, a file is a whole one.
        Some(program) => program.split_once('/')?.1,
        None => below,
    };
    let name = file.strip_suffix(below)?;
    debug_assert!(name.starts_with(package));
    let mut module: Module = below.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(module.last()?.as_str(), "mod" | "lib" | "main") {
        module.pop();
    }
    Some((name, module))
}

fn circles(files: &[(Module, &Source)]) -> Vec<Violation> {
    let tests: BTreeSet<Module> = files.iter().flat_map(test_modules).collect();
    let is_test = |module: &Module| tests.iter().any(|test| module.starts_with(test));
    let files: Vec<_> = files.iter().filter(|(module, _)| !is_test(module)).collect();
    let mut modules: BTreeSet<&[String]> = BTreeSet::new();
    for (module, _) in &files {
        modules.extend((0..=module.len()).filter_map(|length| module.get(..length)));
    }
    let mut parents: BTreeMap<&[String], Edges<'_>> = BTreeMap::new();
    for (module, source) in &files {
        for (offset, path) in paths(source) {
            let Some(other) = resolve(module, &path, &modules) else {
                continue;
            };
            let same = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(same), other.get(same)) else {
                continue;
            };
            let edges = parents.entry(module.get(..same).unwrap_or_default()).or_default();
            let import = edges.entry((from.clone(), to.clone())).or_insert(Import {
                count: 0,
                source,
                offset,
            });
            import.count += 1;
        }
    }
    parents.values().flat_map(violations).collect()
}

/// Modules that are compiled only for tests.
fn test_modules((module, source): &(Module, &Source)) -> Vec<Module> {
    let lines: Vec<&str> = source.code.lines().map(str::trim).collect();
    let pairs = lines.windows(2).filter_map(|pair| match pair {
        ["#[cfg(test)]", item] => item.strip_suffix(';')?.split_once("mod "),
        _ => None,
    });
    pairs.map(|(_, name)| module.iter().cloned().chain([name.to_owned()]).collect()).collect()
}

/// One violation per cycle, at the edge with the fewest imports.
fn violations(edges: &Edges<'_>) -> Vec<Violation> {
    let names: BTreeSet<&str> = edges.keys().map(|(from, _)| from.as_str()).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for name in names {
        let after = reached(name, edges);
        if !after.contains(name) || seen.contains(name) {
            continue;
        }
        let is_in = |one: &str| after.contains(one) && reached(one, edges).contains(name);
        let circle: BTreeSet<&str> = after.iter().copied().filter(|one| is_in(one)).collect();
        let inner = edges.iter().filter(|((from, to), _)| {
            circle.contains(from.as_str()) && circle.contains(to.as_str())
        });
        if let Some(((from, to), import)) = inner.min_by_key(|(_, import)| import.count) {
            let all = circle.iter().copied().collect::<Vec<_>>().join(", ");
            let what = format!("{all} import one another; the weakest is {from} -> {to}");
            let line = import.source.line_at(import.offset);
            found.push(Violation::new(RULE, &import.source.file, line, what, TODO));
        }
        seen.extend(circle);
    }
    found
}

/// The modules that a module imports, directly or not.
fn reached<'e>(from: &str, edges: &'e Edges<'_>) -> BTreeSet<&'e str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(next) = open.pop() {
        for (_, to) in edges.keys().filter(|(from, _)| *from == next) {
            if found.insert(to.as_str()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// Every path in the code that starts at the crate or above the module, with nested imports expanded.
fn paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let end: usize =
        source.code.split_inclusive('\n').take(source.lines_before_tests()).map(str::len).sum();
    let starts = source.words("crate").chain(source.words("super"));
    let mut found = Vec::new();
    for start in starts.filter(|start| *start < end) {
        let before = source.code.get(..start).unwrap_or_default();
        // `super` within a path belongs to what precedes it.
        if before.ends_with("::") {
            continue;
        }
        let mut all = Vec::new();
        tree(source.code.get(start..).unwrap_or_default(), &[], &mut all);
        found.extend(all.into_iter().map(|path| (start, path)));
    }
    found
}

/// Expands `a::{b, c::{d}}`; returns the rest of the text.
fn tree<'t>(text: &'t str, prefix: &[String], found: &mut Vec<Vec<String>>) -> &'t str {
    let mut path = prefix.to_vec();
    let mut rest = text.trim_start();
    loop {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        if !name.is_empty() {
            path.push(name.to_owned());
        }
        match after.strip_prefix("::") {
            Some(next) if next.trim_start().starts_with('{') => {
                return group(next.trim_start(), &path, found);
            }
            Some(next) if !name.is_empty() => rest = next,
            _ => {
                found.push(path);
                return after;
            }
        }
    }
}

fn group<'t>(text: &'t str, prefix: &[String], found: &mut Vec<Vec<String>>) -> &'t str {
    let mut rest = text.strip_prefix('{').unwrap_or(text);
    loop {
        rest = rest.trim_start_matches([' ', '\n', ',']);
        if rest.is_empty() {
            return rest;
        }
        if let Some(after) = rest.strip_prefix('}') {
            return after;
        }
        let after = tree(rest, prefix, found);
        // A new name, or a star.
        let next = after.find([',', '}']).unwrap_or(after.len());
        rest = after.get(next..).unwrap_or_default();
    }
}

/// The innermost module that a path leads to.
fn resolve(own: &[String], path: &[String], modules: &BTreeSet<&[String]>) -> Option<Module> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (mut module, names) = if ups == 0 {
        (Module::new(), path.get(1..)?)
    } else {
        let kept = own.len().checked_sub(ups)?;
        (own.get(..kept)?.to_vec(), path.get(ups..)?)
    };
    for name in names {
        module.push(name.clone());
        if !modules.contains(module.as_slice()) {
            module.pop();
            break;
        }
    }
    Some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Violation> {
        let sources = files.iter();
        let sources =
            sources.map(|(file, text)| Source::new((*file).to_owned(), (*text).to_owned()));
        check(&sources.collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_of_two_and_one_of_three_are_found_with_their_weakest_import() {
        let two = found(&[
            ("bins/x/src/a.rs", "use crate::b::{C, d::E};\n"),
            ("bins/x/src/b.rs", "\nuse super::a::F;\n"),
        ]);
        assert_eq!(two.len(), 1);
        assert_eq!((two[0].file.as_str(), two[0].line), ("bins/x/src/b.rs", 2));
        let three = found(&[
            ("tec-core/src/a.rs", "fn f() { crate::b::g() }"),
            ("tec-core/src/b/mod.rs", "use crate::c::H;"),
            ("tec-core/src/c.rs", "use crate::{z::Y, a::{self, X}};"),
            ("tec-core/src/z.rs", ""),
        ]);
        assert_eq!(three.len(), 1);
        assert!(three[0].what.starts_with("a, b, c import"), "{}", three[0].what);
    }

    #[test]
    fn tests_comments_and_other_programs_do_not_count() {
        let clean = found(&[
            ("bins/x/src/a.rs", "//! crate::b\nuse crate::b::C;\n"),
            ("bins/x/src/b.rs", "// crate::a\n#[cfg(test)]\nmod tests {\nuse crate::a;\n}\n"),
            ("bins/x/src/lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod t;\n"),
            ("bins/x/src/t.rs", "use crate::a::Z;\n"),
            ("bins/x/src/bin/y/b.rs", "use crate::a::Z;\n"),
        ]);
        assert_eq!(clean, []);
    }

    #[test]
    fn modules_further_down_count_too() {
        let deep = |root: &str| {
            let (a, b) = (format!("{root}/src/m/a.rs"), format!("{root}/src/m/b.rs"));
            found(&[(&a, "use super::b::C;"), (&b, "use crate::m::a::D;")]).len()
        };
        assert_eq!((deep("bins/x"), deep("tec-tpm")), (1, 1));
    }
}
