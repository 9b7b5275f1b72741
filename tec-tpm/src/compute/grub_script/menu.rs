//! The menu, and the entry that starts without a user (GRUB manual, "menuentry", "submenu", "default").

use super::{Flow, Host, Interpreter, Stop};

/// An entry of the menu, or a submenu.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    title: String,
    id: String,
    body: String,
    line: usize,
    script: String,
    is_submenu: bool,
    has_parameters: bool,
    /// Whether it was made from a file: then its title is not measured.
    is_of_file: bool,
}

/// Options with a value.
const VALUED: [&str; 5] = ["--class", "--hotkey", "--id", "--source", "--users"];

impl Entry {
    /// Reads the words after `menuentry` or `submenu`; `block` has its braces.
    pub(super) fn new(
        name: &str,
        arguments: &[&str],
        block: &str,
        line: usize,
        script: &str,
    ) -> Result<Self, Stop> {
        if name != "menuentry" && name != "submenu" {
            return Err(Stop::Unknown("the command is not known here"));
        }
        let (mut plain, mut id) = (Vec::new(), None);
        let mut left = arguments.iter();
        while let Some(word) = left.next() {
            let option = word.split_once('=').map_or(*word, |(option, _)| option);
            let value = match word.split_once('=') {
                Some((_, value)) => Some(value),
                None if VALUED.contains(&option) => left.next().copied(),
                None => None,
            };
            match option {
                "--id" => id = value,
                "--unrestricted" => {}
                _ if VALUED.contains(&option) => {}
                _ if option.starts_with("--") => {
                    return Err(Stop::Unknown("an option is not supported"));
                }
                _ => plain.push(*word),
            }
        }
        let title = plain.first().ok_or(Stop::Unknown("an entry has no title"))?;
        Ok(Self {
            title: (*title).to_owned(),
            id: id.unwrap_or(title).to_owned(),
            body: block.get(1..block.len().saturating_sub(1)).unwrap_or_default().to_owned(),
            line,
            script: script.to_owned(),
            is_submenu: name == "submenu",
            has_parameters: plain.len() > 1,
            is_of_file: false,
        })
    }

    /// The entry that a file describes.
    pub(super) fn of_file(file: &str, id: &str, title: &str, body: String) -> Self {
        Self {
            title: title.to_owned(),
            id: id.to_owned(),
            body,
            line: 1,
            script: file.to_owned(),
            is_submenu: false,
            has_parameters: false,
            is_of_file: true,
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.title == name || self.id == name
    }
}

/// The entry that Red Hat's GRUB takes for this default (rhboot/grub2, normal/menu.c,
/// `get_entry_number_helper`): first by id, which must be one word, then by title, then by number.
fn of_red_hat<'m>(menu: &'m [Entry], default: &str) -> Result<Option<&'m Entry>, Stop> {
    let word = default.split_ascii_whitespace().next().unwrap_or_default();
    if word != default && menu.iter().any(|entry| entry.id == word) {
        return Err(Stop::Unknown("the default entry begins with the name of another"));
    }
    let by_id = menu.iter().find(|entry| entry.id == default && word == default);
    let named = by_id.or_else(|| menu.iter().find(|entry| entry.title == default));
    match default.parse::<usize>() {
        _ if named.is_some() => Ok(named),
        Ok(number) if number.to_string() == default => Ok(menu.get(number)),
        Err(_) if !default.starts_with("0x") && !default.starts_with(['+', '-']) => Ok(None),
        _ => Err(NUMBER),
    }
}

const NUMBER: Stop = Stop::Unknown("the default entry begins with a number");

impl<H: Host> Interpreter<'_, H> {
    /// Starts the default entry of the menu that a script has built.
    pub(super) fn start_default(&mut self, script: &str) -> Result<Flow, Stop> {
        if self.menu.is_empty() {
            return Err(Stop::Unknown("it starts nothing and has no menu").at(script, 1));
        }
        if !self.used("theme").is_ok_and(|theme| theme.is_empty()) {
            return Err(Stop::Unknown("the menu has a theme").at(script, 1));
        }
        let default = self.used("default").map_err(|stop| stop.at(script, 1))?;
        self.start(&default, "").map_err(|stop| stop.at(script, 1))
    }

    /// Starts the entry at a path such as `1>2`; `above` is the path of the submenu that it is in.
    fn start(&mut self, path: &str, above: &str) -> Result<Flow, Stop> {
        let (first, rest) = split(path);
        let menu = std::mem::take(&mut self.menu);
        let chosen = match first.parse::<usize>() {
            _ if self.host.is_red_hat() => of_red_hat(&menu, &first)?,
            Ok(number) if number.to_string() == first => menu.get(number),
            // GRUB takes the number at the beginning, in any base.
            _ if first
                .trim_start()
                .starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c)) =>
            {
                return Err(NUMBER);
            }
            _ => menu.iter().find(|entry| entry.is_named(&first)),
        };
        // GRUB manual, "default": an entry that does not exist is the first one.
        let Some(entry) = chosen.or_else(|| menu.first()) else {
            return Err(Stop::Unknown("a submenu is empty"));
        };
        self.script.clone_from(&entry.script);
        let flow = self.start_entry(entry, rest, above);
        flow.map_err(|stop| stop.at(&entry.script, entry.line))
    }

    fn start_entry(&mut self, entry: &Entry, rest: &str, above: &str) -> Result<Flow, Stop> {
        if entry.has_parameters {
            return Err(Stop::Unknown("an entry has parameters"));
        }
        if entry.is_submenu {
            self.isolate();
        }
        // Observed: the id of an entry, where it has one.
        let chosen = format!("{above}{}", entry.id.replace('>', ">>"));
        self.set("chosen", &chosen)?;
        if !entry.is_of_file {
            self.measure(&format!("setparams {}", entry.title))?;
        }
        self.parameters = vec![entry.title.clone()];
        let flow = self.run_text(&entry.body, entry.line)?;
        match entry.is_submenu {
            _ if flow == Flow::Boot => Ok(Flow::Boot),
            true if rest.is_empty() => Err(Stop::Unknown("the default entry is a submenu")),
            true => self.nested(|script| script.start(rest, &format!("{chosen}>"))),
            // Entries boot at their end.
            false => Ok(Flow::Boot),
        }
    }
}

/// Splits a path at its first `>`; `>>` stands for the character itself.
fn split(path: &str) -> (String, &str) {
    let mut first = String::new();
    let mut rest = path;
    loop {
        let Some((part, after)) = rest.split_once('>') else {
            return (first + rest, "");
        };
        first.push_str(part);
        match after.strip_prefix('>') {
            Some(after) => {
                first.push('>');
                rest = after;
            }
            None => return (first, after),
        }
    }
}
