//! GRUB scripts: the commands that are followed are those in the script, word for word.

use tec_tpm::compute::Unpredictable;
use tec_tpm::compute::testing::parsers;

use crate::{Seed, outcome};

const FILE: &str = "grub.cfg";
/// Maximum number of commands, as in the reader.
const MAX_COMMANDS: usize = 10_000;

/// The commands are the lines up to `boot`, split at blanks and nothing else; what follows `boot` has no
/// effect; and a refusal names a line of the script.
pub(crate) fn grub_script(data: &[u8]) {
    let longer = [data, b"\nexit 'x\n\xff"].concat();
    match parsers::grub_script(FILE, data) {
        Ok(commands) => {
            let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
            check_commands(&lines, &commands);
            let text = longer.get(..data.len() + 6).unwrap_or_default();
            assert_eq!(parsers::grub_script(FILE, text), Ok(commands));
        }
        Err(Unpredictable::Script { file, line, .. }) => {
            assert_eq!(file, FILE);
            let lines = data.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
            assert!(parsers::grub_script(FILE, &longer).is_err());
        }
        Err(other) => panic!("{other:?} is not about the script"),
    }
}

fn check_commands(lines: &[&[u8]], commands: &[(usize, String)]) {
    assert!(commands.len() <= MAX_COMMANDS);
    let last = commands.last().expect("a script has commands");
    assert_eq!(last.1, "boot");
    let mut commands = commands.iter();
    for (number, line) in lines.iter().enumerate().take(last.0) {
        // Lines may have DOS line ends: GRUB ignores each carriage return.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let words: Vec<&[u8]> =
            line.split(|b| b" \t".contains(b)).filter(|word| !word.is_empty()).collect();
        if words.first().is_some_and(|word| !word.starts_with(b"#")) {
            let (at, text) = commands.next().expect("each line is a command");
            assert_eq!(*at, number + 1);
            assert_eq!(text.as_bytes(), words.join(&b' '));
        }
    }
    assert!(commands.next().is_none(), "each command is a line");
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(parsers::grub_script(FILE, data))
}

const DEBIAN: &str =
    "set timeout=0\nlinux /vmlinuz root=/dev/vda1 quiet\ninitrd /initrd.img\nboot\n";

pub(crate) fn seeds() -> Vec<Seed> {
    let seeds = vec![
        Seed::new("plain", DEBIAN),
        Seed::new("dos_lines", DEBIAN.replace('\n', "\r\n")),
        Seed::new("blanks", "\n# comment\n \techo  a\tb \nboot\nexit"),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let lying = |name, script: &[u8]| Seed::new(name, script).refused(read);
    vec![
        lying("no_text", b"set a=b\n\xff\nboot\n"),
        lying("nothing", b""),
        lying("no_boot", b"set a=b\necho a\n"),
        lying("unknown_command", b"set a=b\nchainloader /x\nboot\n"),
        lying("other_root", b"set a=b\n\nset root=hd1\nboot\n"),
        lying("variable", b"linux $kernel\nboot\n"),
        lying("null_byte", b"set a=b\0\nboot\n"),
        lying("blank_that_is_none", "\u{a0}boot\n".as_bytes()),
    ]
}
