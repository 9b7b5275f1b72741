//! The part of GRUB's script language whose measurements are known: plain commands, one per line.
//! Anything else is reported as unknown, never guessed.

use super::unpredictable::Unpredictable;

/// A command as GRUB measures it: words with a single space between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Maximum number of commands of a script.
const MAX_COMMANDS: usize = 10_000;
/// Commands that measure nothing but themselves, or whose files are followed.
const KNOWN: [&str; 5] = ["set", "echo", "linux", "initrd", "boot"];
/// Variables that change where GRUB looks for files.
const PLACES: [&str; 3] = ["root=", "prefix=", "cmdpath="];
/// Characters with a meaning of their own (GRUB manual, "Shell-like scripting", "Quoting").
const SPECIAL: &str = "\\'\"$`|&;<>{}*?[]()#";

/// Reads a script that ends with `boot`.
pub(super) fn parse(file: &str, script: &[u8]) -> Result<Vec<Command>, Unpredictable> {
    let refuse = |line, reason| Err(Unpredictable::Script { file: file.to_owned(), line, reason });
    let Ok(script) = std::str::from_utf8(script) else {
        return refuse(1, "it is not text");
    };
    let mut commands: Vec<Command> = Vec::new();
    let mut last = 1;
    for (number, text) in script.lines().enumerate() {
        last = number + 1;
        let text = text.trim_matches([' ', '\t']);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Err(reason) = check(text) {
            return refuse(last, reason);
        }
        if commands.len() >= MAX_COMMANDS {
            return refuse(last, "there are too many commands");
        }
        let words: Vec<&str> = text.split([' ', '\t']).filter(|w| !w.is_empty()).collect();
        commands.push(Command { line: last, text: words.join(" ") });
        if text == "boot" {
            return Ok(commands);
        }
    }
    refuse(last, "it does not end with the command boot")
}

fn check(text: &str) -> Result<(), &'static str> {
    if text.contains(|c: char| SPECIAL.contains(c) || c.is_control() && c != '\t') {
        return Err("it has characters with a meaning of their own");
    }
    let mut words = text.split([' ', '\t']).filter(|word| !word.is_empty());
    let name = words.next().unwrap_or_default();
    if !KNOWN.contains(&name) {
        return Err("the command is not known here");
    }
    if name == "set" && words.any(|word| PLACES.iter().any(|place| word.starts_with(place))) {
        return Err("it changes where files are looked for");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(script: &str) -> Result<Vec<String>, (usize, &'static str)> {
        match parse("grub.cfg", script.as_bytes()) {
            Ok(commands) => Ok(commands.into_iter().map(|c| c.text).collect()),
            Err(Unpredictable::Script { line, reason, .. }) => Err((line, reason)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn plain_commands_are_read_up_to_the_boot() {
        let script = "# comment\nset timeout=0\n\n linux  /vmlinuz\tquiet \nboot\nexit\n";
        let expected = ["set timeout=0", "linux /vmlinuz quiet", "boot"];
        assert_eq!(texts(script).unwrap(), expected);
    }

    #[test]
    fn what_is_not_followed_is_named_by_its_line() {
        for (script, line) in [
            ("", 1),
            ("set a=b\n", 1),
            ("echo a\nif true; then\n", 2),
            ("echo $a\nboot\n", 1),
            ("insmod x\nboot\n", 1),
            ("set root=hd1\nboot\n", 1),
            ("echo 'a'\nboot\n", 1),
            ("\u{a0}boot\n", 1),
            ("boot\u{3000}\n", 1),
        ] {
            assert_eq!(texts(script).unwrap_err().0, line, "{script}");
        }
        assert!(parse("grub.cfg", b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn no_script_makes_the_reader_panic(script in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse("grub.cfg", &script);
        }
    }
}
