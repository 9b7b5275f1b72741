//! What the EFI stub of a Linux kernel measures into PCR 9: the command line as it finds it, and
//! the initial file system that it loads.

use super::unpredictable::Unpredictable;

/// First version whose stub has been observed to measure both.
const MEASURING: (u32, u32) = (6, 1);

/// Checks that a kernel with this beginning measures its command line and initial file system.
pub(super) fn check_version(start: &[u8]) -> Result<(), Unpredictable> {
    let Some(version) = version(start) else {
        return Err(Unpredictable::KernelVersion("unknown".to_owned()));
    };
    let mut numbers = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or(0);
    if (number(), number()) < MEASURING {
        return Err(Unpredictable::KernelVersion(version));
    }
    Ok(())
}

/// The version in the header of a bzImage (Linux, Documentation/arch/x86/boot.rst: "HdrS" at
/// 0x202, offset of the text less 0x200 at 0x20e).
fn version(start: &[u8]) -> Option<String> {
    if start.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = u16::from_le_bytes(*start.get(0x20e..)?.first_chunk()?);
    let text = start.get(usize::from(offset) + 0x200..)?;
    let text = text.split(|byte| [0, b' '].contains(byte)).next()?;
    let text = std::str::from_utf8(text.get(..text.len().min(64))?).ok()?;
    text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.to_owned())
}

/// Checks that the stub loads the initial file system that it is offered, and no other.
pub(super) fn check_options(command_line: &str) -> Result<(), Unpredictable> {
    // Linux, drivers/firmware/efi/libstub: options that change what is loaded.
    let changes = |word: &&str| *word == "noinitrd" || word.starts_with("initrd=");
    match command_line.split_whitespace().find(changes) {
        Some(option) => Err(Unpredictable::KernelOption(option.chars().take(64).collect())),
        None => Ok(()),
    }
}

/// A string as UTF-16 with a terminator; the stub's string has one unless the boot loader cuts it
/// off.
pub(super) fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: &str) -> Vec<u8> {
        let mut start = vec![0; 0x400];
        start[0x202..0x206].copy_from_slice(b"HdrS");
        start[0x20e] = 0x80;
        start[0x280..0x280 + version.len()].copy_from_slice(version.as_bytes());
        start
    }

    #[test]
    fn kernels_that_have_been_observed_are_known() {
        for version in ["6.1.0-56-amd64 (x)", "6.12.117+deb13", "7.2.13"] {
            assert_eq!(check_version(&header(version)), Ok(()), "{version}");
        }
        for version in ["5.19.0", "6.0", "", "x"] {
            assert!(matches!(
                check_version(&header(version)),
                Err(Unpredictable::KernelVersion(_))
            ));
        }
        let full = header("6.1");
        for end in 0..0x281 {
            assert!(check_version(&full[..end]).is_err());
        }
    }

    #[test]
    fn options_that_load_other_files_are_noticed() {
        assert_eq!(check_options("root=/dev/sda quiet"), Ok(()));
        assert!(check_options("quiet initrd=\\x").is_err());
        assert!(check_options("noinitrd").is_err());
    }
}
