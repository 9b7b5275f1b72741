//! The distribution's part of a virtual node, in one program: in the initial file system what
//! opens the root, in the root what says that it runs. See the module `node` of the library.

use std::process::ExitCode;

use tec_guest::node;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        node::root::run();
        return ExitCode::SUCCESS;
    }
    node::initial::run();
    ExitCode::SUCCESS
}
