//! The command `test` (GRUB manual, "test").

use super::{Found, Host, Interpreter, Stop};

const UNKNOWN: Stop = Stop::Unknown("the condition is not supported");

impl<H: Host> Interpreter<'_, H> {
    /// Decides a condition. Conditions with `-a` or `-o` must not read files: whether GRUB skips a part was
    /// not observed.
    pub(super) fn decide(&mut self, words: &[&str]) -> Result<bool, Stop> {
        let joins = |by: &str| words.len() > 3 && words.contains(&by);
        let (all, any) = (joins("-a"), joins("-o"));
        if words.len() > 1 && words.iter().any(|word| ["(", ")"].contains(word)) || all && any {
            return Err(UNKNOWN);
        }
        if !all && !any {
            return self.decide_one(words);
        }
        if words.contains(&"-s") {
            return Err(UNKNOWN);
        }
        let mut outcome = all;
        for part in words.split(|word| *word == if all { "-a" } else { "-o" }) {
            let one = self.decide_one(part)?;
            outcome = if all { outcome && one } else { outcome || one };
        }
        Ok(outcome)
    }

    fn decide_one(&mut self, words: &[&str]) -> Result<bool, Stop> {
        match words {
            [] => Ok(false),
            [word] => Ok(!word.is_empty()),
            [left, operator, right] if *left != "!" || operator.contains('=') => {
                compare(left, operator, right)
            }
            ["!", rest @ ..] => Ok(!self.decide_one(rest)?),
            [operator, word] => self.decide_unary(operator, word),
            _ => Err(UNKNOWN),
        }
    }

    fn decide_unary(&mut self, operator: &str, word: &str) -> Result<bool, Stop> {
        match operator {
            "-z" => Ok(word.is_empty()),
            "-n" => Ok(!word.is_empty()),
            "-e" => Ok(self.find(word)? != Found::Nothing),
            "-d" => Ok(self.find(word)? == Found::Folder),
            "-f" => Ok(self.file(word)?.is_some()),
            // Observed: it reads the file, unlike -e and -f.
            "-s" => match self.open(word)? {
                Some(file) => Ok(!self.host.content(&file)?.is_empty()),
                None => Ok(false),
            },
            _ => Err(UNKNOWN),
        }
    }
}

fn compare(left: &str, operator: &str, right: &str) -> Result<bool, Stop> {
    let numbers = || match (left.parse::<i64>(), right.parse::<i64>()) {
        (Ok(left), Ok(right)) => Ok((left, right)),
        _ => Err(UNKNOWN),
    };
    match operator {
        "=" | "==" => Ok(left == right),
        "!=" => Ok(left != right),
        "<" => Ok(left < right),
        "<=" => Ok(left <= right),
        ">" => Ok(left > right),
        ">=" => Ok(left >= right),
        "-eq" => numbers().map(|(left, right)| left == right),
        "-ne" => numbers().map(|(left, right)| left != right),
        "-lt" => numbers().map(|(left, right)| left < right),
        "-le" => numbers().map(|(left, right)| left <= right),
        "-gt" => numbers().map(|(left, right)| left > right),
        "-ge" => numbers().map(|(left, right)| left >= right),
        _ => Err(UNKNOWN),
    }
}
