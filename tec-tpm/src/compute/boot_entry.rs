//! What systemd-boot can start, and what it starts without a choice of someone (UAPI group, "Boot Loader
//! Specification"; systemd-boot(7)).

use std::cmp::Ordering;

use super::boot::Boot;
use super::boot_addon::{MAX_FILES, base_name, uncounted};
use super::find;
use super::pe::PeRequest;
use super::predict_error::PredictError;

/// Location of unified kernel images.
const IMAGES: &str = "efi/linux/";
/// Location of entries of type #1.
const TEXTS: &str = "loader/entries/";
/// Largest file of text that is read.
pub(super) const MAX_TEXT: u64 = 64 << 10;

/// One entry of the menu.
#[derive(Debug)]
pub(super) struct Entry {
    /// Unified kernel image, or file of text.
    pub(super) path: String,
    pub(super) starts: Starts,
    pub(super) id: String,
    order: Order,
}

/// What it starts.
#[derive(Debug)]
pub(super) enum Starts {
    /// The unified kernel image.
    Image,
    /// A kernel (type #1), and the options with which it is started.
    Kernel { path: String, initrds: Vec<String>, options: String },
    /// Something else: the key in the file of text.
    Other(&'static str),
}

/// What an entry is sorted by.
#[derive(Debug, Default)]
struct Order {
    sort_key: Option<String>,
    machine: String,
    version: String,
    /// Tries left and done, if they are counted.
    tries: Option<(u32, u32)>,
}

impl Entry {
    fn new(path: String, starts: Starts, mut order: Order) -> Self {
        let (id, tries) = uncounted(base_name(&path));
        order.tries = tries;
        Self { id: id.to_ascii_lowercase(), path, starts, order }
    }

    /// Whether someone means it by the path of its file or of its kernel.
    pub(super) fn is_at(&self, chosen: &str) -> bool {
        self.path == chosen || matches!(&self.starts, Starts::Kernel { path, .. } if path == chosen)
    }

    /// The order of the menu: those without tries left last, the newest first.
    fn compare(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.order, &other.order);
        let failed = |order: &Order| order.tries.is_some_and(|(left, _)| left == 0);
        let keys = match (&a.sort_key, &b.sort_key) {
            (Some(one), Some(two)) => one
                .cmp(two)
                .then_with(|| a.machine.cmp(&b.machine))
                .then_with(|| compare_versions(&b.version, &a.version)),
            (one, two) => one.is_none().cmp(&two.is_none()),
        };
        let tries = || match (a.tries, b.tries) {
            (Some((left, done)), Some((others, dones))) => {
                others.cmp(&left).then_with(|| done.cmp(&dones))
            }
            _ => Ordering::Equal,
        };
        failed(a)
            .cmp(&failed(b))
            .then(keys)
            .then_with(|| compare_versions(&other.id, &self.id))
            .then_with(tries)
    }
}

/// UAPI group, "Version Format Specification".
pub(super) fn compare_versions(a: &str, b: &str) -> Ordering {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "~-^.".contains(c);
    let (mut a, mut b) = (a, b);
    loop {
        a = a.trim_start_matches(|c| !is_part(c));
        b = b.trim_start_matches(|c| !is_part(c));
        for mark in ['~', '\0', '-', '^', '.'] {
            if mark == '\0' {
                if a.is_empty() || b.is_empty() {
                    return a.len().cmp(&b.len());
                }
                continue;
            }
            match (a.strip_prefix(mark), b.strip_prefix(mark)) {
                (Some(one), Some(two)) => (a, b) = (one, two),
                (None, None) => {}
                (one, two) => return one.is_none().cmp(&two.is_none()),
            }
        }
        let digits = a.starts_with(|c: char| c.is_ascii_digit())
            || b.starts_with(|c: char| c.is_ascii_digit());
        let run = |text: &str| {
            let fits = |c: char| {
                if digits { c.is_ascii_digit() } else { c.is_ascii_alphabetic() }
            };
            text.find(|c| !fits(c)).unwrap_or(text.len())
        };
        let ((one, rest), (two, others)) = (a.split_at(run(a)), b.split_at(run(b)));
        let number = |text: &str| text.trim_start_matches('0').len();
        let order = if digits {
            let numbers = (one.trim_start_matches('0'), two.trim_start_matches('0'));
            (!one.is_empty())
                .cmp(&!two.is_empty())
                .then(number(one).cmp(&number(two)))
                .then(numbers.0.cmp(numbers.1))
        } else {
            one.cmp(two)
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (rest, others);
    }
}

/// Whether a pattern with `*` and `?` matches; `None` if it has more.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    fn go(mut pattern: &[u8], mut text: &[u8]) -> bool {
        let mut longer = None;
        loop {
            match (pattern.split_first(), text.split_first()) {
                (Some((b'*', rest)), _) => {
                    longer = Some((rest, text));
                    pattern = rest;
                }
                (Some((one, rest)), Some((two, others))) if [*two, b'?'].contains(one) => {
                    (pattern, text) = (rest, others);
                }
                (None, None) => return true,
                // The last `*` takes one byte more.
                _ => match longer {
                    Some((rest, [_, others @ ..])) => {
                        longer = Some((rest, others));
                        (pattern, text) = (rest, others);
                    }
                    _ => return false,
                },
            }
        }
    }
    let plain = !pattern.contains(['[', '\\']);
    plain.then(|| go(pattern.to_ascii_lowercase().as_bytes(), text.as_bytes()))
}

/// Keys and values of a file of text; a value may be in double quotes.
pub(super) fn values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.split(['\n', '\r']).map(|line| line.trim_matches([' ', '\t']));
    lines.filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (key, value) = line.split_once([' ', '\t'])?;
        let value = value.trim_start_matches([' ', '\t']);
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Some((key, unquoted.unwrap_or(value)))
    })
}

impl Boot<'_> {
    /// The entries of the partition whose paths begin with `root`, in the order of the menu.
    pub(super) fn entries(&self, root: &str, files: &[String]) -> Result<Vec<Entry>, PredictError> {
        let inside = |folder: &'static str, ending: &'static str| {
            files.iter().filter(move |path| {
                let within = path.get(root.len()..).unwrap_or_default().to_ascii_lowercase();
                let name = within.strip_prefix(folder).and_then(|name| name.strip_suffix(ending));
                let taken = |name: &str| !name.contains('/') && !name.starts_with(['.']);
                name.is_some_and(|name| taken(name) && !name.starts_with("auto-"))
            })
        };
        let images: Vec<_> = inside(IMAGES, ".efi").take(MAX_FILES).collect();
        let texts: Vec<_> = inside(TEXTS, ".conf").take(MAX_FILES).collect();
        let mut entries = Vec::new();
        let single = images.len() + texts.len() == 1;
        for path in images {
            let order = if single { Some(Order::default()) } else { self.order_of_image(path)? };
            entries.extend(order.map(|order| Entry::new(path.clone(), Starts::Image, order)));
        }
        for path in texts {
            entries.extend(self.read_text(root, path)?);
        }
        entries.sort_by(Entry::compare);
        Ok(entries)
    }

    /// By its section `.osrel`; without one, it is no entry.
    fn order_of_image(&self, path: &str) -> Result<Option<Order>, PredictError> {
        let request = PeRequest::new(self.options.banks).keep([".osrel"]);
        let image = match self.read(path.to_owned(), &request) {
            Err(PredictError::Pe { .. }) => return Ok(None),
            image => image?,
        };
        let Some(section) = image.file.section(".osrel") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(section);
        let value = |wanted: &[&str]| {
            let of = |key: &&str| {
                let lines = text.lines().map(str::trim);
                let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
                values.next_back().map(|value| value.trim_matches(['"', '\'']).to_owned())
            };
            wanted.iter().find_map(of)
        };
        let version = value(&["IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID"]);
        Ok(Some(Order {
            sort_key: value(&["IMAGE_ID", "ID"]),
            version: version.unwrap_or_default(),
            ..Order::default()
        }))
    }

    /// An entry of type #1; none if it is for another architecture, or its kernel does not exist.
    fn read_text(&self, root: &str, path: &str) -> Result<Option<Entry>, PredictError> {
        let content = self.read_small(path, MAX_TEXT)?;
        let text = String::from_utf8_lossy(&content);
        let (mut order, mut kernel) = (Order::default(), None);
        let (mut initrds, mut options, mut other) = (Vec::new(), Vec::new(), None);
        for (key, value) in values(&text) {
            match key {
                "sort-key" => order.sort_key = Some(value.to_owned()),
                "machine-id" => value.clone_into(&mut order.machine),
                "version" => value.clone_into(&mut order.version),
                "architecture" if !value.eq_ignore_ascii_case("x64") => return Ok(None),
                "linux" => kernel = Some(value.to_owned()),
                "initrd" => initrds.push(value.to_owned()),
                "options" => options.push(value.to_owned()),
                "efi" | "uki" | "uki-url" | "devicetree" | "devicetree-overlay" => {
                    other = Some("something other than a kernel and its initramfs");
                }
                _ => {}
            }
        }
        let starts = match (kernel, other) {
            (_, Some(other)) => Starts::Other(other),
            (None, None) => return Ok(None),
            (Some(kernel), None) => {
                let file = format!("{root}{}", kernel.trim_start_matches('/'));
                match find::spelled(self.image, &file).map_err(PredictError::Find)? {
                    Some(path) => Starts::Kernel { path, initrds, options: options.join(" ") },
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Entry::new(path.to_owned(), starts, order)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_specified() {
        // Examples of the specification, each older than the next.
        let ascending =
            ["~1", "", "~", "ab", "abb", "abc", "0001", "002", "12", "122", "122.9", "123~rc1"];
        for pair in ascending[3..].windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_versions(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        for (older, newer) in [
            ("123~rc1-1", "123"),
            ("123", "123-a"),
            ("123-a", "123-1"),
            ("123-1", "123-1.1"),
            ("123-3", "123^post1"),
            ("123^post1", "123.a-1"),
            ("123.1-1", "123a-1"),
            ("123a-1", "124-1"),
            ("6.9.2", "6.12.1"),
        ] {
            assert_eq!(compare_versions(older, newer), Ordering::Less, "{older} {newer}");
        }
        assert_eq!(compare_versions("B_", "B"), Ordering::Equal);
        assert_eq!(compare_versions("01-..+", "1-.."), Ordering::Equal);
    }

    #[test]
    fn counts_of_tries_are_no_part_of_a_name() {
        let name = |text: &str| text.to_owned();
        assert_eq!(uncounted("a+3.efi"), (name("a.efi"), Some((3, 0))));
        assert_eq!(uncounted("a+2-1.efi"), (name("a.efi"), Some((2, 1))));
        for plain in ["a.efi", "a+.efi", "a+x.efi", "a+1-.efi", "a+1"] {
            assert_eq!(uncounted(plain), (name(plain), None));
        }
    }

    #[test]
    fn patterns_match_or_are_not_understood() {
        assert_eq!(matches("Debian-*.e?i", "debian-6.12.efi"), Some(true));
        assert_eq!(matches("debian", "debian.efi"), Some(false));
        assert_eq!(matches("[d]*", "debian.efi"), None);
        assert_eq!(matches("*a*a*n.??i*", "ba-aan.efi"), Some(true));
        assert_eq!(matches("*a*b", &"a".repeat(10_000)), Some(false));
    }

    #[test]
    fn a_file_of_text_has_keys_and_values() {
        let text = "# no\n  options\t a=1 \"b\"\r\ntitle \"Debian 13\"\nempty\n";
        let found: Vec<_> = values(text).collect();
        assert_eq!(found, [("options", "a=1 \"b\""), ("title", "Debian 13")]);
    }
}
