//! Shows which file is being read, on a terminal only.

use std::io;
use std::io::{IsTerminal as _, Write as _};

use tec_core::reference::{BootImage, ImageFile};

/// Back to the start of the line, and clear it (ECMA-48, CR and EL).
const CLEAR: &str = "\r\u{1b}[2K";

/// An image that reports on stderr which of its files is being read.
#[derive(Debug)]
pub(super) struct Shown<'i> {
    image: &'i dyn BootImage,
    on_terminal: bool,
}

impl<'i> Shown<'i> {
    pub(super) fn new(image: &'i dyn BootImage) -> Self {
        Self { image, on_terminal: io::stderr().is_terminal() }
    }

    /// Nothing can be done about a terminal that is gone.
    fn say(&self, text: std::fmt::Arguments<'_>) {
        if self.on_terminal {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "{CLEAR}{text}");
            let _ = stderr.flush();
        }
    }
}

impl BootImage for Shown<'_> {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let prefix_shown = prefix.escape_debug();
        self.say(format_args!("searching {prefix_shown} …"));
        self.image.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let path_shown = path.escape_debug();
        self.say(format_args!("reading {path_shown} …"));
        self.image.open(path)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.say(format_args!(""));
    }
}
