//! The problem that stops a node, as a code with its next step.

use std::error::Error;
use std::io;

use tec_core::code::Code;
use tec_core::port::{PortError, chain};
use tec_node::rpc::Reason;
use tec_support::exit::CodedError;
use tonic::Status;

/// The code of an error, or of the first of its causes that has one.
fn code_of(error: &(dyn Error + 'static)) -> Option<Code> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(code) = own_code(cause) {
            return Some(code);
        }
        next = cause.source();
    }
    None
}

fn own_code(error: &(dyn Error + 'static)) -> Option<Code> {
    if let Some(error) = error.downcast_ref::<PortError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<CodedError>() {
        return Some(error.code);
    }
    if let Some(status) = error.downcast_ref::<Status>() {
        return match Reason::of(status)? {
            Reason::NameTaken => Some(Code::BootstrapNameTaken),
            Reason::MembersFull => Some(Code::BootstrapMembersFull),
            _ => None,
        };
    }
    match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Code::BootstrapStateFull),
        io::ErrorKind::ReadOnlyFilesystem => Some(Code::BootstrapReadOnly),
        _ => None,
    }
}

/// An error and its causes in one line, with code and next step if there are any.
pub(super) fn describe(error: &(dyn Error + 'static)) -> String {
    let text = chain(error);
    match code_of(error) {
        Some(code) => format!("{code} {}: {text}; {}", code.title(), code.fix()),
        None => text,
    }
}

/// Gives a program's error the code of its cause.
pub fn coded(error: anyhow::Error) -> anyhow::Error {
    if error.chain().any(<dyn Error>::is::<CodedError>) {
        return error;
    }
    match code_of(error.as_ref()) {
        Some(code) => CodedError::caused(code, code.title(), error).into(),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use tec_core::port::PortErrorKind;

    use super::*;

    #[test]
    fn the_first_cause_with_a_code_gives_the_error_its_code_and_next_step() {
        let write = || PortError::new(PortErrorKind::Unavailable, "write journal.json");
        let full = write().because(io::Error::from(io::ErrorKind::StorageFull));
        let text = describe(&full);
        let fix = Code::BootstrapStateFull.fix();
        assert!(text.starts_with("TEC-B507 ") && text.ends_with(fix), "{text}");
        let error = Err::<(), _>(full).context("bootstrap the node").unwrap_err();
        let found = coded(error);
        let code = found.downcast_ref::<CodedError>().map(|error| error.code);
        assert_eq!(code, Some(Code::BootstrapStateFull));
        // The wrapped error keeps its causes, and an existing code stays.
        let found = coded(found.context("again"));
        assert!(format!("{found:#}").contains("journal.json"));
        assert_eq!(describe(&write()), "write journal.json");
    }

    #[test]
    fn a_full_or_read_only_state_directory_and_a_taken_name_have_codes_of_their_own() {
        let of = |kind| own_code(&io::Error::from(kind));
        assert_eq!(of(io::ErrorKind::QuotaExceeded), Some(Code::BootstrapStateFull));
        assert_eq!(of(io::ErrorKind::ReadOnlyFilesystem), Some(Code::BootstrapReadOnly));
        assert_eq!(of(io::ErrorKind::PermissionDenied), None);
        assert_eq!(own_code(&Status::permission_denied("no")), None);
    }
}
