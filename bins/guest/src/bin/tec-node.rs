//! The distribution's part of a virtual node, in one program: in the initial file system what
//! opens the root, in the root what says that it runs. See the module `node` of the library.

use std::path::Path;
use std::process::ExitCode;

use tec_guest::node;

fn main() -> ExitCode {
    if Path::new(node::content::INITIAL).exists() {
        node::initial::run();
    } else {
        node::root::run();
    }
    ExitCode::SUCCESS
}
