//! Process 1 of a measured virtual machine; see the library of this package.

use std::io::Write as _;
use std::path::Path;

use tec_guest::{frame, report, system};

/// The second serial port; the first is the console.
const LINE: &str = "/dev/ttyS1";

fn main() {
    let mut line = None;
    let told = system::mount().and_then(|()| {
        let line = line.insert(system::open_line(Path::new(LINE))?);
        if let Err(error) = report::send(line) {
            frame::write(line, "error", format!("{error:#}").as_bytes())?;
        }
        Ok(frame::write_end(line)?)
    });
    if let Err(error) = told {
        say(&error);
    }
    if let Err(error) = system::power_off(line.as_ref()) {
        say(&error);
    }
}

/// Only the console is left; the kernel panics when process 1 exits.
fn say(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr(), "guest: {error:#}");
}
