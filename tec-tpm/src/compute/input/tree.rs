//! The files of an image by path: what remains once all layers are applied.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;

use crate::compute::resolve::{MAX_DEPTH, MAX_PATH, resolve};

/// Maximum number of files and links; a large operating system has some 300 000.
const MAX_ENTRIES: usize = 1_000_000;

/// Files and symbolic links by path; folders are not stored, since they follow from the paths. `C`
/// says where the content of a file lies.
#[derive(Debug)]
pub(super) struct Tree<C> {
    entries: BTreeMap<String, Entry<C>>,
}

#[derive(Clone, Debug)]
struct Entry<C> {
    /// Number of the layer that it comes from.
    layer: usize,
    node: Node<C>,
}

/// What lies at a path.
#[derive(Clone, Debug)]
pub(super) enum Node<C> {
    /// A file, and where its content is.
    File(C),
    /// A symbolic link, and its target.
    Link(String),
}

/// An entry cannot be put into the tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The path is not within the image.
    #[error("{0:?} is not a path within an image")]
    Path(String),
    /// A path continues below something that is not a folder. Programs disagree on whether such a
    /// file goes to the link's target or replaces the link.
    #[error("{path} goes through {parent}, which is not a folder")]
    NotAFolder {
        /// The path.
        path: String,
        /// The part that is not a folder.
        parent: String,
    },
    /// A hard link has no target.
    #[error("{path} is a hard link to {target}, which does not exist")]
    HardLink {
        /// The path.
        path: String,
        /// Path of the missing target.
        target: String,
    },
    /// There are too many files.
    #[error("the image has more than {0} files")]
    TooMany(usize),
}

impl<C: Clone> Tree<C> {
    pub(super) fn new() -> Self {
        Self { entries: BTreeMap::new() }
    }

    /// Puts a file or a link at `path`, replacing whatever is there.
    pub(super) fn insert(
        &mut self,
        layer: usize,
        path: &str,
        node: Node<C>,
    ) -> Result<(), TreeError> {
        self.check_parents(path)?;
        self.remove(path);
        if self.entries.len() >= MAX_ENTRIES {
            return Err(TreeError::TooMany(MAX_ENTRIES));
        }
        self.entries.insert(path.to_owned(), Entry { layer, node });
        Ok(())
    }

    /// Adds a hard link to what lies at `target`.
    pub(super) fn insert_hard_link(
        &mut self,
        layer: usize,
        path: &str,
        target: &str,
    ) -> Result<(), TreeError> {
        let Some(entry) = self.entries.get(target) else {
            return Err(TreeError::HardLink { path: path.to_owned(), target: target.to_owned() });
        };
        let node = entry.node.clone();
        self.insert(layer, path, node)
    }

    /// Puts a folder at `path`: a file or link there is removed; an existing folder keeps its
    /// content.
    pub(super) fn insert_folder(&mut self, path: &str) -> Result<(), TreeError> {
        self.check_parents(path)?;
        self.entries.remove(path);
        Ok(())
    }

    /// Removes what lies at `path` and below.
    pub(super) fn remove(&mut self, path: &str) {
        self.entries.remove(path);
        for below in self.below(path) {
            self.entries.remove(&below);
        }
    }

    /// Removes what layers before `layer` put at `path` and below.
    pub(super) fn remove_before(&mut self, layer: usize, path: &str) {
        if self.entries.get(path).is_some_and(|e| e.layer < layer) {
            self.entries.remove(path);
        }
        self.empty_before(layer, path);
    }

    /// Removes what layers before `layer` put below `path`.
    pub(super) fn empty_before(&mut self, layer: usize, path: &str) {
        for below in self.below(path) {
            if self.entries.get(&below).is_some_and(|e| e.layer < layer) {
                self.entries.remove(&below);
            }
        }
    }

    /// Where the content of the file at `path` lies; symbolic links are followed.
    pub(super) fn find(&self, path: &str) -> io::Result<&C> {
        let path = self.resolve(path)?;
        match self.entries.get(&path).map(|entry| &entry.node) {
            Some(Node::File(content)) => Ok(content),
            Some(Node::Link(_)) => Err(io::ErrorKind::InvalidInput.into()),
            None if self.is_folder(&path) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file"))
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// All files below `prefix`, and links unless they lead to folders.
    pub(super) fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let prefix = prefix.trim_end_matches('/');
        let resolved = self.resolve(prefix)?;
        let mut found = Vec::new();
        for (path, entry) in self.range(&resolved) {
            let leads_to_folder = matches!(entry.node, Node::Link(_))
                && self.resolve(path).is_ok_and(|to| self.is_folder(&to));
            if !leads_to_folder {
                found.push(rename(path, &resolved, prefix));
            }
        }
        Ok(found)
    }

    /// Names of the folders in `path`.
    pub(super) fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        let resolved = self.resolve(path)?;
        let mut found: Vec<String> = Vec::new();
        for (below, _) in self.range(&resolved) {
            let rest = below.get(resolved.len()..).unwrap_or_default();
            let mut parts = rest.trim_start_matches('/').split('/');
            let (first, second) = (parts.next(), parts.next());
            if let (Some(first), Some(_)) = (first, second)
                && found.last().is_none_or(|last| last != first)
            {
                found.push(first.to_owned());
            }
        }
        Ok(found)
    }

    /// What lies below `path`, as a tree of its own.
    pub(super) fn within(mut self, path: &str) -> Self {
        let below = self.below(path);
        let entries = below.into_iter().filter_map(|below| {
            let entry = self.entries.remove(&below)?;
            Some((rename(&below, path, ""), entry))
        });
        Self { entries: entries.collect() }
    }

    fn resolve(&self, path: &str) -> io::Result<String> {
        resolve(path, |at| match self.entries.get(at) {
            Some(Entry { node: Node::Link(target), .. }) => Ok(Some(target.clone())),
            _ => Ok(None),
        })
    }

    fn check_parents(&self, path: &str) -> Result<(), TreeError> {
        let mut parts = path.split('/');
        let is_plain = |part: &str| !matches!(part, "" | "." | "..");
        if path.len() > MAX_PATH || path.split('/').count() > MAX_DEPTH || !parts.all(is_plain) {
            return Err(TreeError::Path(path.chars().take(256).collect()));
        }
        let mut parents = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
        match parents.find(|parent| self.entries.contains_key(*parent)) {
            Some(parent) => {
                Err(TreeError::NotAFolder { path: path.to_owned(), parent: parent.to_owned() })
            }
            None => Ok(()),
        }
    }

    fn is_folder(&self, path: &str) -> bool {
        self.range(path).next().is_some()
    }

    fn below(&self, path: &str) -> Vec<String> {
        self.range(path).map(|(path, _)| path.clone()).collect()
    }

    fn range(&self, folder: &str) -> impl Iterator<Item = (&String, &Entry<C>)> {
        // The character after `/` is `0`, so these are all paths that begin with the folder.
        let (from, to) = (format!("{folder}/"), format!("{folder}0"));
        let bounds = if folder.is_empty() {
            (Bound::Unbounded, Bound::Unbounded)
        } else {
            (Bound::Excluded(from), Bound::Excluded(to))
        };
        self.entries.range::<String, _>(bounds)
    }
}

/// `path` with `from` at its beginning replaced by `to`.
fn rename(path: &str, from: &str, to: &str) -> String {
    let rest = path.strip_prefix(from).unwrap_or(path);
    match (rest.trim_start_matches('/'), to) {
        (rest, "") => rest.to_owned(),
        (rest, to) => format!("{to}/{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str], links: &[(&str, &str)]) -> Tree<usize> {
        let mut tree = Tree::new();
        for (number, path) in files.iter().enumerate() {
            tree.insert(0, path, Node::File(number)).unwrap();
        }
        for (path, target) in links {
            let link = Node::Link((*target).to_owned());
            tree.insert(0, path, link).unwrap();
        }
        tree
    }

    #[test]
    fn files_are_found_through_links_and_listed_below_a_prefix() {
        let tree = tree(
            &["usr/lib/a", "usr/lib/b/c", "usr/lib0", "usr/libx"],
            &[("lib", "usr/lib"), ("usr/lib/l", "/usr/lib0"), ("x", "y")],
        );
        assert_eq!(tree.files("usr/lib").unwrap().len(), 3);
        assert_eq!(tree.files("lib/").unwrap(), ["lib/a", "lib/b/c", "lib/l"]);
        let all = tree.files("").unwrap();
        assert_eq!(all.len(), 6);
        assert!(all.is_sorted() && !all.contains(&"lib".to_owned()));
        assert_eq!(*tree.find("lib/b/c").unwrap(), 1);
        assert_eq!(*tree.find("lib/l").unwrap(), 2);
        let kind = |path: &str| tree.find(path).unwrap_err().kind();
        assert_eq!(kind("x"), io::ErrorKind::NotFound);
        assert_eq!(kind("lib"), io::ErrorKind::InvalidInput);
        assert_eq!(kind("../x"), io::ErrorKind::InvalidInput);
        assert_eq!(tree.folders("usr").unwrap(), ["lib"]);
        assert_eq!(tree.within("usr/lib").files("").unwrap(), ["a", "b/c", "l"]);
    }

    #[test]
    fn what_comes_later_replaces_what_is_there() {
        let mut tree = tree(&["a/b/c", "d"], &[("l", "a")]);
        tree.insert(1, "a", Node::File(7)).unwrap();
        assert_eq!(tree.files("").unwrap(), ["a", "d", "l"]);
        assert!(matches!(
            tree.insert(1, "l/x", Node::File(8)),
            Err(TreeError::NotAFolder { parent, .. }) if parent == "l"
        ));
        tree.insert_folder("l").unwrap();
        tree.insert(1, "l/x", Node::File(8)).unwrap();
        tree.insert_hard_link(1, "l/y", "l/x").unwrap();
        assert_eq!(*tree.find("l/y").unwrap(), 8);
        assert!(matches!(tree.insert_hard_link(1, "z", "none"), Err(TreeError::HardLink { .. })));
        for path in ["", "/a", "a//b", "a/../b", ".", &"x/".repeat(80)] {
            assert!(matches!(tree.insert(1, path, Node::File(9)), Err(TreeError::Path(_))));
        }
    }

    #[test]
    fn whiteouts_remove_what_earlier_layers_put_there() {
        let mut tree = tree(&["d/old", "d/e/old", "f"], &[]);
        tree.insert(1, "d/new", Node::File(9)).unwrap();
        tree.empty_before(1, "d");
        tree.remove_before(1, "f");
        assert_eq!(tree.files("").unwrap(), ["d/new"]);
        tree.remove_before(1, "d");
        assert_eq!(tree.files("").unwrap(), ["d/new"]);
        tree.remove_before(2, "d");
        assert_eq!(tree.files("").unwrap(), Vec::<String>::new());
    }
}
