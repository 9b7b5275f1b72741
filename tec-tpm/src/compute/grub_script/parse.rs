//! Statements of a script (GRUB manual, "Shell-like scripting").

use std::rc::Rc;

use super::Stop;
use super::lexer::{Kind, Piece, Token, tokens};

pub(super) type Word = Vec<Piece>;
pub(super) type Block = Rc<[Statement]>;

/// A statement, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A simple command, with the text of its block: that of a menu entry, with braces.
    Command {
        words: Vec<Word>,
        block: Option<String>,
    },
    /// Conditions with their blocks, and the block without a condition.
    If {
        arms: Vec<(Block, Block)>,
        otherwise: Block,
    },
    /// Repeats while the condition has this outcome.
    Loop {
        while_it_is: bool,
        condition: Block,
        body: Block,
    },
    For {
        variable: String,
        words: Vec<Word>,
        body: Block,
    },
    Function {
        name: String,
        body: Block,
    },
}

/// Maximum depth of statements within statements.
const MAX_DEPTH: usize = 32;
/// What no block needs to end with.
const NOTHING: [&str; 0] = [];

/// Reads a script; the error has the line.
pub(super) fn parse(text: &str) -> Result<Block, (usize, Stop)> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0 };
    let parsed = parser.block(&NOTHING).and_then(|block| match parser.peek() {
        None => Ok(block),
        Some(_) => Err("a brace closes nothing"),
    });
    parsed.map_err(|reason| (parser.line(), Stop::Unknown(reason)))
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, &'static str>;

impl Parser<'_> {
    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn line(&self) -> usize {
        let token = self.tokens.get(self.at).or_else(|| self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    /// The next word, if it can be a reserved one.
    fn keyword(&self) -> Option<&str> {
        match self.peek()? {
            Kind::Word(pieces) => plain(pieces),
            _ => None,
        }
    }

    /// Statements up to one of these words, a closing brace or the end.
    fn block(&mut self, ends: &[&str]) -> Parsed<Block> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("it is nested too deeply");
        }
        let mut block = Vec::new();
        loop {
            while self.peek() == Some(&Kind::End) {
                self.at += 1;
            }
            let ended = matches!(self.peek(), None | Some(Kind::Close));
            if ended || self.keyword().is_some_and(|word| ends.contains(&word)) {
                self.depth -= 1;
                return Ok(block.into());
            }
            let line = self.line();
            block.push(Statement { line, action: self.action()? });
        }
    }

    fn action(&mut self) -> Parsed<Action> {
        let keyword = self.keyword().map(str::to_owned);
        self.at += 1;
        match keyword.as_deref() {
            Some("if") => self.conditional(),
            Some("while") => self.repeated(true),
            Some("until") => self.repeated(false),
            Some("for") => self.counted(),
            Some("function") => self.function(),
            _ => {
                self.at -= 1;
                self.command()
            }
        }
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        if self.keyword() != Some(word) {
            return Err("a statement is not complete");
        }
        self.at += 1;
        Ok(())
    }

    fn conditional(&mut self) -> Parsed<Action> {
        let mut arms = Vec::new();
        loop {
            let condition = self.block(&["then"])?;
            self.expect("then")?;
            arms.push((condition, self.block(&["elif", "else", "fi"])?));
            if self.keyword() != Some("elif") {
                break;
            }
            self.at += 1;
        }
        let mut otherwise = Block::from([]);
        if self.keyword() == Some("else") {
            self.at += 1;
            otherwise = self.block(&["fi"])?;
        }
        self.expect("fi")?;
        Ok(Action::If { arms, otherwise })
    }

    fn body(&mut self) -> Parsed<Block> {
        self.expect("do")?;
        let body = self.block(&["done"])?;
        self.expect("done")?;
        Ok(body)
    }

    fn repeated(&mut self, while_it_is: bool) -> Parsed<Action> {
        let condition = self.block(&["do"])?;
        Ok(Action::Loop { while_it_is, condition, body: self.body()? })
    }

    fn counted(&mut self) -> Parsed<Action> {
        let variable = self.name()?;
        self.expect("in")?;
        let words = self.words();
        while self.peek() == Some(&Kind::End) {
            self.at += 1;
        }
        Ok(Action::For { variable, words, body: self.body()? })
    }

    fn function(&mut self) -> Parsed<Action> {
        let name = self.name()?;
        while self.peek() == Some(&Kind::End) {
            self.at += 1;
        }
        if self.peek() != Some(&Kind::Open) {
            return Err("a statement is not complete");
        }
        self.at += 1;
        let body = self.block(&NOTHING)?;
        if self.peek() != Some(&Kind::Close) {
            return Err("a block is not closed");
        }
        self.at += 1;
        Ok(Action::Function { name, body })
    }

    fn name(&mut self) -> Parsed<String> {
        let name = self.keyword().ok_or("a name is missing")?.to_owned();
        self.at += 1;
        Ok(name)
    }

    fn words(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        while let Some(Kind::Word(pieces)) = self.peek() {
            words.push(pieces.clone());
            self.at += 1;
        }
        words
    }

    fn command(&mut self) -> Parsed<Action> {
        let words = self.words();
        if self.peek() != Some(&Kind::Open) {
            return Ok(Action::Command { words, block: None });
        }
        if words.is_empty() {
            return Err("a block has no command");
        }
        Ok(Action::Command { words, block: Some(self.text_of_block()?) })
    }

    fn text_of_block(&mut self) -> Parsed<String> {
        let start = self.tokens.get(self.at).map_or(0, |token| token.start);
        let mut open = 0_usize;
        while let Some(token) = self.tokens.get(self.at) {
            self.at += 1;
            match token.kind {
                Kind::Open => open += 1,
                Kind::Close => open -= 1,
                _ => {}
            }
            if open == 0 {
                let text = self.text.get(start..token.end).unwrap_or_default();
                // GRUB leaves such lines out before it records the block; indented ones it keeps.
                if text.contains("\n#") {
                    return Err("a block has a line that is a comment");
                }
                return Ok(text.to_owned());
            }
        }
        Err("a block is not closed")
    }
}

fn plain(pieces: &[Piece]) -> Option<&str> {
    match pieces {
        [Piece::Text { text, quoted: false }] => Some(text),
        _ => None,
    }
}
