//! Words after expansion of variables (GRUB manual, "Shell-like scripting": "Quoting", "Variable
//! expansion").

use super::lexer::Piece;
use super::parse::Word;
use super::{Host, Interpreter, Stop};

/// Maximum length of a command after expansion; real command lines have at most some 2 KiB.
pub(super) const MAX_COMMAND: usize = 64 << 10;

/// Words while they are expanded.
#[derive(Default)]
struct Expanded {
    words: Vec<String>,
    current: Option<String>,
    length: usize,
}

impl Expanded {
    fn push(&mut self, text: &str) -> Result<(), Stop> {
        self.charge(text)?;
        self.current.get_or_insert_default().push_str(text);
        Ok(())
    }

    /// An empty text costs something too: there may be many.
    fn charge(&mut self, text: &str) -> Result<(), Stop> {
        self.length = self.length.saturating_add(1 + text.len());
        if self.length > MAX_COMMAND {
            return Err(Stop::Unknown("a command is too long"));
        }
        Ok(())
    }

    /// Ends the current word, if there is one.
    fn end(&mut self) {
        self.words.extend(self.current.take());
    }
}

impl<H: Host> Interpreter<'_, H> {
    pub(super) fn expand(&self, words: &[Word]) -> Result<Vec<String>, Stop> {
        let mut expanded = Expanded::default();
        for word in words {
            for piece in word {
                self.expand_piece(piece, &mut expanded)?;
            }
            expanded.end();
        }
        Ok(expanded.words)
    }

    fn expand_piece(&self, piece: &Piece, expanded: &mut Expanded) -> Result<(), Stop> {
        match piece {
            Piece::Text { text, quoted } => {
                refuse_pattern(text, *quoted)?;
                expanded.push(text)
            }
            Piece::Variable { name, quoted: true } if name == "@" => {
                for (number, parameter) in self.parameters.iter().enumerate() {
                    if number > 0 {
                        expanded.end();
                    }
                    expanded.push(parameter)?;
                }
                Ok(())
            }
            Piece::Variable { name, quoted: true } => expanded.push(&self.parameter(name)?),
            Piece::Variable { name, quoted: false } => split(&self.parameter(name)?, expanded),
        }
    }

    fn parameter(&self, name: &str) -> Result<String, Stop> {
        match name {
            "?" => Ok(u8::from(!self.outcome()?).to_string()),
            "#" => Ok(self.parameters.len().to_string()),
            "@" => Ok(self.parameters.join(" ")),
            _ if name.starts_with(|c: char| c.is_ascii_digit()) => {
                let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                let number = number.ok_or(Stop::Unknown("a parameter has no number from 1"))?;
                Ok(self.parameters.get(number).cloned().unwrap_or_default())
            }
            _ => self.used(name),
        }
    }
}

/// A variable without quotes is split at blanks, and nothing remains of an empty one.
fn split(value: &str, expanded: &mut Expanded) -> Result<(), Stop> {
    expanded.charge(value)?;
    refuse_pattern(value, false)?;
    for (number, part) in value.split([' ', '\t', '\n']).enumerate() {
        if number > 0 {
            expanded.end();
        }
        if !part.is_empty() {
            expanded.push(part)?;
        }
    }
    Ok(())
}

/// Whether GRUB replaces a pattern by names of files was not observed.
fn refuse_pattern(text: &str, quoted: bool) -> Result<(), Stop> {
    if !quoted && text.contains(['*', '?', '\\']) {
        return Err(Stop::Unknown("it has a pattern"));
    }
    Ok(())
}
