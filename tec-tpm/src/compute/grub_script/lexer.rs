//! Words and punctuation of a script (GRUB manual, "Shell-like scripting": "Quoting").

use super::Stop;

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text { text: String, quoted: bool },
    Variable { name: String, quoted: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A line end or `;`.
    End,
    /// `{`
    Open,
    /// `}`
    Close,
    Word(Vec<Piece>),
}

/// A word or punctuation mark, and where it lies in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Characters that end a word and are not supported as such.
const UNSUPPORTED: &str = "|&<>`";
/// Parameters with names of one character (GRUB manual, "Shell-like scripting").
const PARAMETERS: &str = "?@#";

/// Splits a text; the error has the line.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, (usize, Stop)> {
    let mut lexer = Lexer { text, at: 0, line: 1 };
    let mut tokens = Vec::new();
    loop {
        match lexer.token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return Ok(tokens),
            Err(reason) => return Err((lexer.line, Stop::Unknown(reason))),
        }
    }
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let rest = self.rest();
        let taken = rest.split(|c| !belongs(c)).next().unwrap_or_default().to_owned();
        self.at += taken.len();
        taken
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|c| c == ' ' || c == '\t');
            if self.rest().starts_with('#') {
                self.take_while(|c| c != '\n');
            } else if self.rest().starts_with("\\\n") {
                self.next();
                self.next();
            } else {
                return;
            }
        }
    }

    fn token(&mut self) -> Result<Option<Token>, &'static str> {
        self.skip_blanks();
        let (start, line) = (self.at, self.line);
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        let mark = match first {
            '\n' | ';' => Some(Kind::End),
            '{' => Some(Kind::Open),
            '}' => Some(Kind::Close),
            _ => None,
        };
        let kind = match mark {
            Some(mark) => {
                self.next();
                mark
            }
            None => Kind::Word(self.word()?),
        };
        Ok(Some(Token { kind, line, start, end: self.at }))
    }

    fn word(&mut self) -> Result<Vec<Piece>, &'static str> {
        let mut pieces = Vec::new();
        while let Some(next) = self.peek() {
            match next {
                ' ' | '\t' | '\n' | ';' | '{' | '}' => break,
                '\'' => pieces.push(self.single()?),
                '"' => self.double(&mut pieces)?,
                '$' => pieces.push(self.variable(false)?),
                '\\' => pieces.extend(self.escaped()?),
                _ if UNSUPPORTED.contains(next) || next.is_control() => {
                    return Err("it has characters with a meaning of their own");
                }
                _ => {
                    let plain = |c: char| {
                        !" \t\n;{}'\"$\\".contains(c) && !UNSUPPORTED.contains(c) && !c.is_control()
                    };
                    pieces.push(Piece::Text { text: self.take_while(plain), quoted: false });
                }
            }
        }
        Ok(pieces)
    }

    /// A character after a backslash; a line end is no character.
    fn escaped(&mut self) -> Result<Option<Piece>, &'static str> {
        self.next();
        match self.next() {
            Some('\n') => Ok(None),
            Some(next) => Ok(Some(Piece::Text { text: next.to_string(), quoted: true })),
            None => Err("it ends with a backslash"),
        }
    }

    fn single(&mut self) -> Result<Piece, &'static str> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('\'') => return Ok(Piece::Text { text, quoted: true }),
                Some(next) => text.push(next),
                None => return Err("a quote is not closed"),
            }
        }
    }

    /// Within double quotes, `$` keeps its meaning, and a backslash before `$`, `"`, `\` and a line end.
    fn double(&mut self, pieces: &mut Vec<Piece>) -> Result<(), &'static str> {
        self.next();
        let mut text = String::new();
        loop {
            if self.peek() == Some('$') {
                let before = std::mem::take(&mut text);
                pieces.push(Piece::Text { text: before, quoted: true });
                pieces.push(self.variable(true)?);
                continue;
            }
            match self.next() {
                Some('"') => {
                    pieces.push(Piece::Text { text, quoted: true });
                    return Ok(());
                }
                Some('\\') => match self.peek() {
                    Some('\n') => drop(self.next()),
                    Some('$' | '"' | '\\') => text.extend(self.next()),
                    _ => text.push('\\'),
                },
                Some(next) => text.push(next),
                None => return Err("a quote is not closed"),
            }
        }
    }

    fn variable(&mut self, quoted: bool) -> Result<Piece, &'static str> {
        self.next();
        let braced = self.peek() == Some('{');
        if braced {
            self.next();
        }
        let name = match self.peek() {
            Some(c) if PARAMETERS.contains(c) => self.next().map(String::from).unwrap_or_default(),
            Some(c) if c.is_ascii_digit() => self.take_while(|c| c.is_ascii_digit()),
            _ => self.take_while(|c| c.is_ascii_alphanumeric() || c == '_'),
        };
        if name.is_empty() || braced && self.next() != Some('}') {
            return Err("a variable has no plain name");
        }
        Ok(Piece::Variable { name, quoted })
    }
}
