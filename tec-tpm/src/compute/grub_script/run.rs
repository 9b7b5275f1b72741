//! Runs statements: what is executed, in which order, and what it may cost.

use std::collections::{BTreeMap, BTreeSet};

use super::menu::Entry;
use super::parse::{Action, Block, Statement, parse};
use super::{Flow, Found, Host, Stop};

/// What is known while a script runs.
pub(in crate::compute) struct Interpreter<'h, H> {
    pub(super) host: &'h mut H,
    pub(super) variables: BTreeMap<String, String>,
    /// Variables that scripts and menus of their own see as well.
    pub(super) exported: BTreeSet<String>,
    /// Variables that were set where it is not known whether they are seen.
    pub(super) hidden: BTreeSet<String>,
    pub(super) functions: BTreeMap<String, Block>,
    pub(super) parameters: Vec<String>,
    pub(super) menu: Vec<Entry>,
    /// Modules that were read from files.
    pub(super) modules: BTreeSet<String>,
    /// Whether the last command succeeded, if that is known.
    pub(super) succeeded: Option<bool>,
    pub(super) has_kernel: bool,
    /// Path of the script in the image, for messages.
    pub(super) script: String,
    depth: usize,
    cost: usize,
}

/// Maximum depth of blocks, functions and scripts in each other.
const MAX_DEPTH: usize = 64;
/// Maximum size of a script; generated ones have some 10 KiB.
const MAX_SCRIPT: usize = 256 << 10;
/// Maximum cost of a run, so that it ends: 16,384 statements or 256 files.
const MAX_COST: usize = 4 << 20;
/// Cost of a statement, in addition to the bytes that it measures.
const STATEMENT: usize = 256;
/// Cost of a file that is opened: its size is not known here.
const FILE: usize = 16 << 10;

impl<'h, H: Host> Interpreter<'h, H> {
    /// A GRUB on `device` with its files in the folder `prefix`; it was started from the folder `program`, if
    /// that is known.
    pub(in crate::compute) fn new(
        host: &'h mut H,
        device: &str,
        prefix: &str,
        program: Option<&str>,
    ) -> Self {
        let mut interpreter = Self {
            host,
            variables: BTreeMap::new(),
            exported: BTreeSet::new(),
            hidden: BTreeSet::new(),
            functions: BTreeMap::new(),
            parameters: Vec::new(),
            menu: Vec::new(),
            modules: BTreeSet::new(),
            succeeded: Some(true),
            has_kernel: false,
            script: String::new(),
            depth: 0,
            cost: 0,
        };
        interpreter.set_first(device, prefix, program);
        interpreter
    }

    /// Follows the first script up to the boot.
    pub(in crate::compute) fn boot(&mut self, script: &str) -> Result<(), Stop> {
        let flow = match self.run_file(script)? {
            Flow::Boot => Flow::Boot,
            _ => self.start_default(script)?,
        };
        if flow == Flow::Boot && self.has_kernel {
            return Ok(());
        }
        Err(Stop::Unknown("it starts no kernel").at(script, 1))
    }

    /// Runs a file that was opened before.
    pub(super) fn run_file(&mut self, file: &str) -> Result<Flow, Stop> {
        let content = self.host.content(file)?;
        if content.len() > MAX_SCRIPT {
            return Err(Stop::Unknown("it is too large").at(file, 1));
        }
        let text = String::from_utf8(content);
        let Ok(text) = text else {
            return Err(Stop::Unknown("it is not text").at(file, 1));
        };
        self.charge(text.len())?;
        let outside = std::mem::replace(&mut self.script, file.to_owned());
        // GRUB ignores each carriage return.
        let flow = self.run_text(&text.replace('\r', ""), 1)?;
        self.script = outside;
        Ok(flow)
    }

    /// Runs a text that begins at a line of the current script.
    pub(super) fn run_text(&mut self, text: &str, first: usize) -> Result<Flow, Stop> {
        let before = first.saturating_sub(1);
        let parsed = parse(text);
        let block = parsed
            .map_err(|(line, reason)| reason.at(&self.script, before.saturating_add(line)))?;
        self.run(&block, before)
    }

    fn charge(&mut self, cost: usize) -> Result<(), Stop> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > MAX_COST {
            return Err(Stop::Unknown("it does too much"));
        }
        Ok(())
    }

    pub(super) fn run(&mut self, block: &[Statement], before: usize) -> Result<Flow, Stop> {
        self.nested(|script| {
            for statement in block {
                let line = before.saturating_add(statement.line);
                let ended = script.statement(statement, before);
                let flow = ended.map_err(|stop| stop.at(&script.script, line))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    /// Does something one level deeper.
    pub(super) fn nested<T>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Stop::Unknown("it is nested too deeply"));
        }
        let done = inside(self)?;
        self.depth -= 1;
        Ok(done)
    }

    fn statement(&mut self, statement: &Statement, before: usize) -> Result<Flow, Stop> {
        self.charge(STATEMENT)?;
        match &statement.action {
            Action::Command { words, block } => {
                let words = self.expand(words)?;
                let line = before.saturating_add(statement.line);
                self.command(&words, block.as_deref(), line)
            }
            Action::If { arms, otherwise } => {
                for (condition, body) in arms {
                    if self.holds(condition, before)? {
                        return self.run(body, before);
                    }
                }
                self.succeeded = Some(true);
                self.run(otherwise, before)
            }
            Action::Loop { while_it_is, condition, body } => {
                while self.holds(condition, before)? == *while_it_is {
                    match self.run(body, before)? {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => break,
                        flow => return Ok(flow),
                    }
                    self.charge(STATEMENT)?;
                }
                self.succeeded = None;
                Ok(Flow::Next)
            }
            Action::For { variable, words, body } => {
                for word in self.expand(words)? {
                    self.charge(STATEMENT + word.len())?;
                    self.set(variable, &word)?;
                    match self.run(body, before)? {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => break,
                        flow => return Ok(flow),
                    }
                }
                self.succeeded = None;
                Ok(Flow::Next)
            }
            Action::Function { name, body } => {
                self.functions.insert(name.clone(), body.clone());
                self.succeeded = Some(true);
                Ok(Flow::Next)
            }
        }
    }

    fn holds(&mut self, condition: &[Statement], before: usize) -> Result<bool, Stop> {
        match self.run(condition, before)? {
            Flow::Next => self.outcome(),
            _ => Err(Stop::Unknown("a condition does not end")),
        }
    }

    /// Whether the last command succeeded.
    pub(super) fn outcome(&self) -> Result<bool, Stop> {
        self.succeeded.ok_or(Stop::Unknown("it is not known whether the command before succeeds"))
    }

    /// Measures a command.
    pub(super) fn measure(&mut self, text: &str) -> Result<(), Stop> {
        self.charge(text.len())?;
        self.host.command(text)
    }

    pub(super) fn find(&mut self, path: &str) -> Result<Found, Stop> {
        self.charge(STATEMENT)?;
        let (device, path) = match path.strip_prefix('(') {
            Some(rest) => rest.split_once(')').ok_or(Stop::Unknown("a device is not closed"))?,
            None => (self.value("root"), path),
        };
        if !path.starts_with('/') || path.split('/').any(|part| part == "." || part == "..") {
            return Err(Stop::Unknown("a path is not absolute and plain"));
        }
        let (device, path) = (device.to_owned(), path.to_owned());
        self.host.find(&device, &path)
    }

    /// Path in the image of a file, if it exists.
    pub(super) fn file(&mut self, path: &str) -> Result<Option<String>, Stop> {
        match self.find(path)? {
            Found::File(file) => Ok(Some(file)),
            Found::Folder | Found::Nothing => Ok(None),
        }
    }

    /// Opens a file, if it exists: that is measured.
    pub(super) fn open(&mut self, path: &str) -> Result<Option<String>, Stop> {
        let file = self.file(path)?;
        if let Some(file) = &file {
            self.charge(FILE)?;
            self.host.open(file)?;
        }
        Ok(file)
    }
}
