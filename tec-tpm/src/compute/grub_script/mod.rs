//! GRUB's script language, followed up to the boot as GRUB follows it (GRUB manual, "Shell-like
//! scripting", "Commands"), for what it measures: commands as they are executed, and the files that
//! they open.
//!
//! *What it is*: pure; files, devices and measurements are a [`Host`]'s. *What it is not*: a guess. What
//! does not follow from rules that were observed, or depends on what files do not show, stops the run with
//! file, line and reason.
//!
//! Only the next boot is followed: `save_env` measures nothing, but changes a file that later boots
//! read, so that PCR 9 differs there.
//!
//! ```text
//! text ─ lexer ─► tokens ─ parse ─► statements ─ run ─► Host::command (PCR 8), Host::open (PCR 9)
//!                                        ▲    │ expand, condition, command, menu
//!                     block of an entry ─┘    └► Host::linux, Host::initrd
//! ```

mod command;
mod condition;
mod entry;
mod expand;
mod lexer;
mod menu;
mod parse;
mod run;
mod variable;

use super::predict_error::PredictError;
use super::unpredictable::Unpredictable;

pub(super) use run::Interpreter;

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Folder,
    /// A file, by its path in the image.
    File(String),
}

/// What a script is run on.
pub(super) trait Host {
    /// What lies at an absolute path of a device.
    fn find(&mut self, device: &str, path: &str) -> Result<Found, Stop>;
    /// Measures a command into PCR 8.
    fn command(&mut self, text: &str) -> Result<(), Stop>;
    /// Measures a file into PCR 9.
    fn open(&mut self, file: &str) -> Result<(), Stop>;
    /// Content of a small file.
    fn content(&mut self, file: &str) -> Result<Vec<u8>, Stop>;
    /// Whether GRUB has a module built in.
    fn has_module(&mut self, name: &str) -> Result<bool, Stop>;
    /// Names of the boot entries in a folder of a device, which are read next; none without such a folder.
    fn entries(&mut self, device: &str, folder: &str) -> Result<Option<Vec<String>>, Stop>;
    /// Whether GRUB is built as Red Hat builds it.
    fn is_red_hat(&self) -> bool;
    /// Name of the device that a search finds; `hint` is what the script expects it to be.
    fn search(&mut self, wanted: &str, hint: Option<&str>) -> Result<String, Stop>;
    /// Loads the kernel, whose command line begins with its path as the script names it.
    fn linux(&mut self, file: String, command_line: &str) -> Result<(), Stop>;
    /// Loads the initial file system.
    fn initrd(&mut self, file: String) -> Result<(), Stop>;
    /// Whether the firmware has a setup screen to enter at the next boot.
    fn has_setup_screen(&self) -> bool;
}

/// Why a script is not followed to its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// Something about the current command is not known.
    Unknown(&'static str),
    /// The boot cannot be predicted.
    Unpredictable(Unpredictable),
    /// A file cannot be read.
    Failed(PredictError),
}

impl From<PredictError> for Stop {
    fn from(error: PredictError) -> Self {
        Self::Failed(error)
    }
}

impl Stop {
    /// The same with the place where it happened.
    fn at(self, file: &str, line: usize) -> Self {
        match self {
            Self::Unknown(reason) => {
                Self::Unpredictable(Unpredictable::Script { file: file.to_owned(), line, reason })
            }
            other => other,
        }
    }
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
    Return,
    /// The kernel starts.
    Boot,
}

#[cfg(test)]
mod tests;
