//! Entries of the Boot Loader Specification, as the command `blscfg` of Red Hat's GRUB makes a menu of them
//! (rhboot/grub2, commands/blscfg.c).

use std::cmp::Ordering;

use super::expand::MAX_COMMAND;
use super::menu::Entry;
use super::{Host, Interpreter, Stop};

/// Folder of the entries, and the one that is used if it does not exist.
const FOLDER: &str = "/loader/entries";
const BELOW_BOOT: &str = "/boot/loader/entries";

impl<H: Host> Interpreter<'_, H> {
    /// Adds the boot entries to the menu, the newest first.
    pub(super) fn add_entries(&mut self) -> Result<(), Stop> {
        let root = self.value("root").to_owned();
        let mut folder = self.known("blsdir")?.unwrap_or_else(|| FOLDER.to_owned());
        let mut names = self.host.entries(&root, &folder)?;
        if names.is_none() {
            BELOW_BOOT.clone_into(&mut folder);
            names = self.host.entries(&root, &folder)?;
        }
        let mut entries = Vec::new();
        for name in names.unwrap_or_default() {
            let Some(file) = self.open(&format!("{folder}/{name}"))? else {
                return Err(Stop::Unknown("a boot entry is not a file"));
            };
            let content = self.host.content(&file)?;
            let text = String::from_utf8(content).map_err(|_| NOT_TEXT.at(&file, 1))?;
            let id = name.trim_end_matches(".conf");
            let entry = self.entry(&file, id, &text).map_err(|stop| stop.at(&file, 1))?;
            entries.extend(entry.map(|entry| (id.to_owned(), entry)));
        }
        entries.sort_by(|one, other| by_release(&other.0, &one.0));
        if entries.windows(2).any(|two| matches!(two, [a, b] if by_release(&a.0, &b.0).is_eq())) {
            return Err(Stop::Unknown("two boot entries have the same version"));
        }
        self.menu.extend(entries.into_iter().map(|(_, entry)| entry));
        Ok(())
    }

    /// The entry that a file describes; none if it starts no kernel.
    fn entry(&self, file: &str, id: &str, text: &str) -> Result<Option<Entry>, Stop> {
        let fields = fields(text)?;
        let all =
            |name| fields.iter().filter(move |(key, _)| *key == name).map(|(_, value)| *value);
        let first = |name| all(name).next();
        let set = |name| Ok::<_, Stop>(self.known(name)?.is_some_and(|value| !value.is_empty()));
        if set("early_initrd")?
            || set("devicetree")?
            || ["devicetree", "efi"].into_iter().any(|key| first(key).is_some())
        {
            return Err(Stop::Unknown(
                "the boot entry loads more than kernel and initial file system",
            ));
        }
        let Some(linux) = first("linux") else {
            return Ok(None);
        };
        let mut options = first("options").map(|value| self.filled(value)).transpose()?.flatten();
        if options.is_none()
            && let Some(default) = self.known("default_kernelopts")?
        {
            options = self.filled(&default)?;
        }
        let saves = self.known("save_default")?.as_deref() == Some("true");
        let mut body = if saves { "savedefault\n" } else { "" }.to_owned();
        body.push_str("load_video\nset gfxpayload=keep\ninsmod gzio\n");
        body.extend(["linux ($root)", linux, " ", options.as_deref().unwrap_or_default(), "\n"]);
        let files: String = all("initrd").flat_map(|path| [" ($root)", path]).collect();
        if !files.is_empty() {
            body.extend(["initrd", &files, "\n"]);
        }
        Ok(Some(Entry::of_file(file, id, first("title").unwrap_or(linux), body)))
    }

    /// The value of a variable, if it is set.
    fn known(&self, name: &str) -> Result<Option<String>, Stop> {
        let value = self.used(name)?;
        Ok(Some(value).filter(|_| self.variables.contains_key(name)))
    }

    /// A value with variables filled in: a blank follows each that is set, and the one that followed its name
    /// is left out. None if nothing remains.
    fn filled(&self, value: &str) -> Result<Option<String>, Stop> {
        let mut filled = None::<String>;
        let mut parts = value.split('$');
        let start = parts.next().unwrap_or_default();
        if start.ends_with('\\') {
            return Err(Stop::Unknown("a variable in a boot entry is quoted"));
        }
        if !start.is_empty() {
            filled = Some(plain(start)?.to_owned());
        }
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, rest) = part.split_at(end.unwrap_or(part.len()));
            if name.len() < 2 || rest.ends_with('\\') {
                return Err(Stop::Unknown("a variable in a boot entry has no plain name"));
            }
            if let Some(value) = self.known(name)? {
                filled.get_or_insert_default().extend([value.as_str(), " "]);
            }
            if !rest.is_empty() {
                let rest = plain(rest.strip_prefix(' ').unwrap_or(rest))?;
                filled.get_or_insert_default().push_str(rest);
            }
            if filled.as_ref().is_some_and(|filled| filled.len() > MAX_COMMAND) {
                return Err(Stop::Unknown("a command is too long"));
            }
        }
        Ok(filled)
    }
}

const NOT_TEXT: Stop = Stop::Unknown("it is not text");

/// GRUB drops a part of a single character.
fn plain(part: &str) -> Result<&str, Stop> {
    if part.len() == 1 {
        return Err(Stop::Unknown("a part of an option is one character"));
    }
    Ok(part)
}

/// Keys and values, up to a line without a value.
fn fields(text: &str) -> Result<Vec<(&str, &str)>, Stop> {
    let blanks = [' ', '\t'];
    let mut fields = Vec::new();
    for line in text.split('\n') {
        let line = line.trim_end_matches('\r').trim_start_matches(blanks);
        if line.starts_with('#') {
            continue;
        }
        match line.split_once(' ') {
            Some((key, _)) if key.contains('\t') => return Err(TAB),
            Some((key, value)) if !value.is_empty() => {
                fields.push((key, value.trim_start_matches(blanks)));
            }
            None if line.contains('\t') => return Err(TAB),
            _ => break,
        }
    }
    Ok(fields)
}

const TAB: Stop = Stop::Unknown("a key of a boot entry ends with a tab");

/// Compares names of entries as names, versions and releases of packages.
fn by_release(one: &str, other: &str) -> Ordering {
    let parts = |id: &str| {
        let mut parts = id.rsplitn(3, '-').map(str::to_owned).collect::<Vec<_>>();
        parts.reverse();
        parts.resize(3, String::new());
        parts
    };
    let pairs = parts(one).into_iter().zip(parts(other));
    pairs
        .map(|(one, other)| by_version(&one, &other))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Compares versions as RPM does: `~` is older than the end, `+` newer, digits newer than letters.
fn by_version(mut one: &str, mut other: &str) -> Ordering {
    let belongs = |c: char| c.is_ascii_alphanumeric() || c == '~' || c == '+';
    loop {
        one = one.trim_start_matches(|c| !belongs(c));
        other = other.trim_start_matches(|c| !belongs(c));
        match (one.chars().next(), other.chars().next()) {
            (Some('~'), Some('~')) | (Some('+'), Some('+')) => {
                (one, other) =
                    (one.get(1..).unwrap_or_default(), other.get(1..).unwrap_or_default());
            }
            (None, None) => return Ordering::Equal,
            (Some('~'), _) => return Ordering::Less,
            (_, Some('~')) | (Some(_), None) => return Ordering::Greater,
            (None | Some('+'), _) => return Ordering::Less,
            (_, Some('+')) => return Ordering::Greater,
            (Some(first), _) => {
                let same = |c: &char| {
                    c.is_ascii_digit() == first.is_ascii_digit() && c.is_ascii_alphanumeric()
                };
                let segment = |text: &str| text.chars().take_while(same).collect::<String>();
                let (left, right) = (segment(one), segment(other));
                if right.is_empty() {
                    return if first.is_ascii_digit() { Ordering::Greater } else { Ordering::Less };
                }
                let order = by_segment(&left, &right);
                if order.is_ne() {
                    return order;
                }
                one = one.get(left.len()..).unwrap_or_default();
                other = other.get(right.len()..).unwrap_or_default();
            }
        }
    }
}

/// Compares two runs of digits, or of letters.
fn by_segment(one: &str, other: &str) -> Ordering {
    if !one.starts_with(|c: char| c.is_ascii_digit()) {
        return one.cmp(other);
    }
    let [one, other] = [one, other].map(|digits| digits.trim_start_matches('0'));
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}
