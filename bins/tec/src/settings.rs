//! `tec.toml` in the state directory: the flags of `tec serve` that were passed to `tec bootstrap init`.
//!
//! Keys are the long names of the flags. `tec serve` and a second `tec bootstrap init` read the file; a flag
//! that contradicts the file is an error, since nodes keep the addresses and settings that they got.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command};
use tec_core::code::Code;
use tec_support::exit::CodedError;
use tec_support::files::write_private;
use toml::{Table, Value};

use crate::serve::args::ServeArgs;

const FILE: &str = "tec.toml";
const HEAD: &str = "# Flags of `tec serve`, written by `tec bootstrap init`. A restart of the server applies changes.\n";

/// Flags that take a path, which must not depend on the working directory of the server.
const PATHS: [&str; 5] = ["tls-cert", "tls-key", "tls-ca", "ek-roots", "registration-token-file"];

/// The arguments that the settings of the state directory add to a command line, if its command accepts them.
/// Errors: the settings are malformed, or the command line contradicts them.
pub(crate) fn further_words(matches: &ArgMatches) -> anyhow::Result<Vec<OsString>> {
    match taking_settings(matches) {
        Some(command) => {
            Settings::read(state_dir(command))?.words_beside(&Settings::given(command))
        }
        None => Ok(Vec::new()),
    }
}

/// The matches of `tec serve` or `tec bootstrap init` on a state directory.
fn taking_settings(matches: &ArgMatches) -> Option<&ArgMatches> {
    match matches.subcommand()? {
        ("serve", serve) => Some(serve),
        ("bootstrap", bootstrap) => bootstrap.subcommand_matches("init"),
        _ => None,
    }
}

fn state_dir(matches: &ArgMatches) -> &Path {
    matches.get_one::<PathBuf>("state_dir").map_or_else(|| Path::new("."), PathBuf::as_path)
}

/// Flags of `tec serve` with their values, by long name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    file: PathBuf,
    flags: BTreeMap<String, Vec<String>>,
}

impl Settings {
    /// The flags from the command line or the environment.
    pub(crate) fn given(matches: &ArgMatches) -> Self {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let is_given = |arg: &&Arg| {
            let source = matches.value_source(arg.get_id().as_str());
            source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let flag = |arg: &Arg| {
            let name = arg.get_long()?.to_owned();
            let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
            let values = raw.map(|value| absolute(&name, &value.to_string_lossy()));
            let values = values.filter(|_| !takes_no_value(&name)).collect();
            Some((name, values))
        };
        let flags = command.get_arguments().filter(is_given).filter_map(flag).collect();
        Self { file: PathBuf::new(), flags }
    }

    /// The settings of a state directory; none if there is no file.
    /// Errors: the file cannot be read, is not TOML, or has a key that is not a flag.
    pub(crate) fn read(state_dir: &Path) -> anyhow::Result<Self> {
        let file = state_dir.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let context = format!("cannot read {}", file.display());
                return Err(CodedError::caused(Code::StoreAccess, context, error).into());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        let malformed = |why: String| {
            CodedError::new(Code::SettingsMalformed, format!("{}: {why}", file.display()))
        };
        let table: Table = text.parse().map_err(|error| malformed(format!("{error}")))?;
        let command = ServeArgs::augment_args(Command::new("serve"));
        let flag = |(name, value): (String, Value)| {
            let mut known = command.get_arguments();
            if !known.any(|arg| arg.get_long() == Some(&name)) {
                return Err(malformed(format!("{name} is not a flag of tec serve")));
            }
            let values = values_of(&name, value)
                .ok_or_else(|| malformed(format!("{name} has no such form")))?;
            Ok((name, values))
        };
        let flags = table.into_iter().map(flag).collect::<Result<_, CodedError>>()?;
        Ok(Self { file, flags })
    }

    /// Saves these flags together with those saved before.
    pub(crate) fn keep(mut self, state_dir: &Path) -> anyhow::Result<()> {
        self.flags.extend(Self::read(state_dir)?.flags);
        let table: Table = self
            .flags
            .into_iter()
            .map(|(name, values)| {
                let value = setting(&name, values);
                (name, value)
            })
            .collect();
        let file = state_dir.join(FILE);
        write_private(&file, format!("{HEAD}{table}").as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// These settings as command-line arguments, except for those in `given`.
    fn words_beside(self, given: &Self) -> anyhow::Result<Vec<OsString>> {
        let mut words = Vec::new();
        for (name, values) in self.flags {
            match given.flags.get(&name) {
                None if takes_no_value(&name) => words.push(format!("--{name}").into()),
                None => words.extend(values.iter().map(|value| format!("--{name}={value}").into())),
                Some(same) if *same == values => {}
                Some(other) => {
                    let context = format!(
                        "--{name} {} differs from {name} = {:?} in {} (leave the flag out, or edit the file)",
                        other.join(","),
                        values.join(","),
                        self.file.display()
                    );
                    return Err(CodedError::new(Code::SettingsConflict, context).into());
                }
            }
        }
        Ok(words)
    }
}

fn takes_no_value(name: &str) -> bool {
    let command = ServeArgs::augment_args(Command::new("serve"));
    let mut flags = command.get_arguments();
    flags.any(|arg| arg.get_long() == Some(name) && matches!(arg.get_action(), ArgAction::SetTrue))
}

fn absolute(name: &str, value: &str) -> String {
    let whole = |path: &str| {
        std::path::absolute(path)
            .map_or_else(|_| path.to_owned(), |path| path.display().to_string())
    };
    match value.split_once('=') {
        Some((url, ca)) if name == "also-kbs" => format!("{url}={}", whole(ca)),
        _ if PATHS.contains(&name) => whole(value),
        _ => value.to_owned(),
    }
}

fn setting(name: &str, mut values: Vec<String>) -> Value {
    match values.pop() {
        _ if takes_no_value(name) => Value::Boolean(true),
        Some(only) if values.is_empty() => Value::String(only),
        last => values.into_iter().chain(last).map(Value::String).collect::<Vec<_>>().into(),
    }
}

/// The values of a flag. Only `true` turns on a flag without a value: anything else might mean "off".
fn values_of(name: &str, value: Value) -> Option<Vec<String>> {
    match value {
        Value::Boolean(true) => takes_no_value(name).then(Vec::new),
        value => values(value).filter(|_| !takes_no_value(name)),
    }
}

fn values(value: Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Array(list) => {
            let each = list.into_iter().map(values).collect::<Option<Vec<_>>>()?;
            Some(each.concat())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use tempfile::TempDir;

    use super::*;
    use crate::cli::Cli;

    /// The arguments that the settings in `directory` add to `tec serve` followed by these words.
    fn serve(directory: &Path, words: &[&str]) -> anyhow::Result<Vec<OsString>> {
        let start = ["tec", "--state-dir", directory.to_str().unwrap(), "serve"];
        further_words(&Cli::command().get_matches_from(start.iter().chain(words)))
    }

    fn kept(words: &[&str]) -> TempDir {
        let directory = TempDir::new().unwrap();
        let start = ["tec", "bootstrap", "init"];
        let matches = Cli::command().get_matches_from(start.iter().chain(words));
        let init = taking_settings(&matches).unwrap();
        Settings::given(init).keep(directory.path()).unwrap();
        directory
    }

    #[test]
    fn the_server_starts_with_the_flags_that_init_was_given() {
        let directory = kept(&[
            "--public-host",
            "h",
            "--pcrs",
            "4,7",
            "--dangerous-plain-http",
            "--ek-roots",
            "ek.pem",
        ]);
        let words = serve(directory.path(), &["--pcrs", "4,7"]).unwrap();
        let roots = std::path::absolute("ek.pem").unwrap();
        let roots = format!("--ek-roots={}", roots.display());
        assert_eq!(words, ["--dangerous-plain-http", &roots, "--public-host=h"]);
        assert!(serve(&directory.path().join("none"), &[]).unwrap().is_empty());
    }

    #[test]
    fn a_flag_that_says_something_else_is_an_error() {
        let directory = kept(&["--public-host", "h"]);
        let error = serve(directory.path(), &["--public-host", "other"]).unwrap_err();
        let code = error.downcast_ref::<CodedError>().unwrap().code;
        assert_eq!(code, Code::SettingsConflict);
        let text = error.to_string();
        assert!(text.contains("--public-host other differs from public-host = \"h\""), "{text}");
    }

    const OFF: &str = "dangerous-plain-http = \"false\"";

    #[test]
    fn people_may_write_numbers_and_lists_and_no_other_names() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join(FILE);
        std::fs::write(&file, "pcrs = [4, \"7\"]\nkbs-rate = 9\n").unwrap();
        let words = serve(directory.path(), &[]).unwrap();
        assert_eq!(words, ["--kbs-rate=9", "--pcrs=4", "--pcrs=7"]);
        for wrong in [
            "public-hots = \"h\"",
            "kbs-rate = 1.5",
            "kbs-rate",
            "kbs-rate = false",
            OFF,
            "dangerous-plain-http = 0",
            "dangerous-plain-http = []",
        ] {
            std::fs::write(&file, wrong).unwrap();
            let error = serve(directory.path(), &[]).unwrap_err();
            let code = error.downcast_ref::<CodedError>().map(|error| error.code);
            assert_eq!(code, Some(Code::SettingsMalformed), "{wrong}: {error}");
        }
    }
}
