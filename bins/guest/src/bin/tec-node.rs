//! The distribution's part of a virtual node, in one program: in the initial file system, it opens the root;
//! in the root, it reports that the root is running. See the module `node` of the library.

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
