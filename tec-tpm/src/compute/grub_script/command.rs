//! Commands (GRUB manual, "Commands"), as far as it was observed what they measure.

use super::menu::Entry;
use super::parse::Block;
use super::variable::PLATFORM;
use super::{Flow, Host, Interpreter, Stop};

/// Commands that measure nothing but themselves, and succeed.
const PLAIN: [&str; 2] = ["echo", "true"];
/// Commands that measure nothing but themselves. Whether they succeed depends on the machine.
const SILENT: [&str; 5] = [
    "clear",
    "password_pbkdf2",
    // Observed: it opens grubenv without measuring it.
    "save_env",
    "serial",
    "sleep",
];
/// Options of `search` whose value may be the next word.
const TAKES_VALUE: [&str; 4] = ["--hint", "--hint-efi", "--set", "-s"];
/// Variables with the path of the script that runs, and its folder.
const CONFIGURATION: [&str; 2] = ["config_file", "config_directory"];
/// Terminals that need no module from a file.
const TERMINALS: [&str; 3] = ["console", "gfxterm", "serial"];
/// The font that signed GRUBs have built in. Observed: 2.06, 2.12.
const BUILT_IN_FONT: &str = "unicode";
/// Beginning of grubenv (GRUB manual, "The GRUB environment block").
const ENVIRONMENT: &str = "# GRUB Environment Block\n";

impl<H: Host> Interpreter<'_, H> {
    /// Measures and carries out a command; `block` is the text that follows it in braces.
    pub(super) fn command(
        &mut self,
        words: &[String],
        block: Option<&str>,
        line: usize,
    ) -> Result<Flow, Stop> {
        let text = words.join(" ");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Some((name, arguments)) = words.split_first() else {
            return Ok(Flow::Next);
        };
        if let Some(block) = block {
            self.measure(&format!("{text} {block}"))?;
            self.menu.push(Entry::new(name, arguments, block, line, &self.script)?);
            self.succeeded = Some(true);
            return Ok(Flow::Next);
        }
        self.measure(&text)?;
        if let Some(body) = self.functions.get(*name).cloned() {
            return self.call(&body, arguments);
        }
        match (*name, arguments) {
            ("boot", []) => return Ok(Flow::Boot),
            ("break", []) => return Ok(Flow::Break),
            ("continue", []) => return Ok(Flow::Continue),
            ("return", []) => return Ok(Flow::Return),
            ("configfile", [path]) => return self.configure(path),
            ("source", [path]) => return self.source(path),
            _ => self.succeeded = self.carry_out(name, arguments)?,
        }
        Ok(Flow::Next)
    }

    fn call(&mut self, body: &Block, arguments: &[&str]) -> Result<Flow, Stop> {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let outside = std::mem::replace(&mut self.parameters, arguments);
        let flow = self.run(body, 0)?;
        self.parameters = outside;
        Ok(if flow == Flow::Return { Flow::Next } else { flow })
    }

    /// Whether the command succeeds, if that is known.
    fn carry_out(&mut self, name: &str, arguments: &[&str]) -> Result<Option<bool>, Stop> {
        if let (Some((variable, value)), []) = (assignment(name), arguments) {
            return self.set(variable, value).map(|()| Some(true));
        }
        match (name, arguments) {
            ("[", [condition @ .., "]"]) | ("test", condition) => {
                return self.decide(condition).map(Some);
            }
            // Entries have a command that a script may define; GRUB continues without it.
            ("false", _) | ("load_video", []) => return Ok(Some(false)),
            ("blscfg", []) if self.host.is_red_hat() => self.add_entries()?,
            ("set", [setting]) => {
                let setting = setting.split_once('=').ok_or(Stop::Unknown("it sets nothing"))?;
                self.set(setting.0, setting.1)?;
            }
            ("unset", [name]) => {
                self.variables.remove(*name);
                self.hidden.remove(*name);
            }
            ("export", names) => self.exported.extend(names.iter().map(ToString::to_string)),
            ("insmod", [module]) => return self.insert_module(module),
            ("loadfont", [BUILT_IN_FONT]) => {}
            ("load_env", _) => return self.load_environment(arguments),
            ("search.fs_uuid", [wanted, rest @ ..]) => {
                let (variable, hint) = (rest.first().unwrap_or(&"root"), rest.get(1).copied());
                let device = self.host.search(wanted, hint)?;
                self.set(variable, &device)?;
            }
            ("search", _) => self.search(arguments)?,
            ("fwsetup", ["--is-supported"]) => return Ok(Some(self.host.has_setup_screen())),
            ("linux", [path, ..]) => self.load_kernel(path, arguments)?,
            ("initrd", [path]) => self.load_initrd(path)?,
            ("initrd", _) => return Err(Stop::Unknown("there is not one file")),
            ("background_image", [.., path]) => {
                return Ok(self.open(path)?.map_or(Some(false), |_| None));
            }
            ("terminal_input" | "terminal_output", names) => {
                if names.iter().all(|name| TERMINALS.contains(name)) {
                    return Ok(None);
                }
                return Err(Stop::Unknown("the terminal is not known here"));
            }
            _ if PLAIN.contains(&name) => {}
            _ if SILENT.contains(&name) => return Ok(None),
            _ => return Err(Stop::Unknown("the command is not known here")),
        }
        Ok(Some(true))
    }

    /// A script with a menu of its own.
    fn configure(&mut self, path: &str) -> Result<Flow, Stop> {
        let Some(file) = self.open(path)? else {
            return Err(Stop::Unknown("there is no such file in the image"));
        };
        self.isolate();
        self.menu.clear();
        match self.run_configuration(&file, path)? {
            Flow::Boot => Ok(Flow::Boot),
            _ => self.start_default(&file),
        }
    }

    fn source(&mut self, path: &str) -> Result<Flow, Stop> {
        let Some(file) = self.open(path)? else {
            self.succeeded = Some(false);
            return Ok(Flow::Next);
        };
        let outside = CONFIGURATION.map(|name| self.variables.get(name).cloned());
        let flow = self.run_configuration(&file, path)?;
        for (name, value) in CONFIGURATION.into_iter().zip(outside) {
            match value {
                Some(value) => self.set(name, &value)?,
                None => drop(self.variables.remove(name)),
            }
        }
        Ok(flow)
    }

    /// Runs a script that knows its own path, with the device.
    fn run_configuration(&mut self, file: &str, path: &str) -> Result<Flow, Stop> {
        let device = if path.starts_with('(') { "" } else { &format!("({})", self.value("root")) };
        let path = format!("{device}{path}");
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let [name, directory] = CONFIGURATION;
        self.set(name, &path)?;
        self.set(directory, &folder)?;
        self.run_file(file)
    }

    /// A module in a file is read, and with Secure Boot refused. Those that it needs would be read next,
    /// and a second command may read it again or not.
    fn insert_module(&mut self, module: &str) -> Result<Option<bool>, Stop> {
        if self.host.has_module(module)? {
            return Ok(Some(true));
        }
        let path = format!("{}/{PLATFORM}/{module}.mod", self.value("prefix"));
        let Some(file) = self.open(&path)? else {
            return Ok(Some(false));
        };
        for needed in super::super::grub_module::needs(&self.host.content(&file)?) {
            if !self.host.has_module(&needed)? {
                return Err(Stop::Unknown("the module needs others"));
            }
        }
        if !self.modules.insert(module.to_owned()) {
            return Err(Stop::Unknown("the module was read before"));
        }
        Ok(None)
    }

    fn load_environment(&mut self, arguments: &[&str]) -> Result<Option<bool>, Stop> {
        let (path, wanted) = match arguments {
            ["--file" | "-f", path, wanted @ ..] => ((*path).to_owned(), wanted),
            _ => (format!("{}/grubenv", self.value("prefix")), arguments),
        };
        if wanted.iter().any(|name| name.starts_with('-')) {
            return Err(Stop::Unknown("an option is not supported"));
        }
        let Some(file) = self.open(&path)? else {
            return Ok(Some(false));
        };
        let content = String::from_utf8(self.host.content(&file)?).ok();
        let Some(settings) = content.filter(|c| c.starts_with(ENVIRONMENT) && !c.contains('\\'))
        else {
            return Err(Stop::Unknown("the environment block is not plain"));
        };
        let settings = settings.lines().filter(|line| !line.starts_with('#'));
        for (name, value) in settings.filter_map(|line| line.split_once('=')) {
            if wanted.is_empty() || wanted.contains(&name) {
                self.set(name, value)?;
            }
        }
        Ok(Some(true))
    }

    /// `--file` is not supported: whether it measures the file was not observed.
    fn search(&mut self, arguments: &[&str]) -> Result<(), Stop> {
        const UNKNOWN: Stop = Stop::Unknown("the search is not supported");
        let (mut kind, mut wanted, mut variable, mut hint) = (None, None, None, None);
        let mut left = arguments.iter().copied();
        while let Some(argument) = left.next() {
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None if TAKES_VALUE.contains(&argument) => (argument, left.next()),
                None => (argument, None),
            };
            match option {
                "--set" | "-s" => variable = value,
                "--hint" | "--hint-efi" => hint = hint.or(value),
                "--fs-uuid" | "-u" | "--label" | "-l" => kind = Some(option),
                "--no-floppy" | "--root-dev-only" | "--hint-bios" | "--hint-baremetal"
                | "--hint-ieee1275" => {}
                _ if option.starts_with('-') || wanted.is_some() => return Err(UNKNOWN),
                _ => wanted = Some(argument),
            }
        }
        let (Some(_), Some(wanted), Some(variable)) = (kind, wanted, variable) else {
            return Err(UNKNOWN);
        };
        let device = self.host.search(wanted, hint)?;
        self.set(variable, &device)
    }

    fn load_kernel(&mut self, path: &str, arguments: &[&str]) -> Result<(), Stop> {
        if self.has_kernel {
            return Err(Stop::Unknown("there is more than one kernel"));
        }
        // How GRUB quotes such words for the kernel was not observed.
        if arguments
            .iter()
            .any(|word| word.is_empty() || word.contains([' ', '\t', '\'', '"', '\\']))
        {
            return Err(Stop::Unknown("the command line has quotes"));
        }
        let Some(file) = self.file(path)? else {
            return Err(Stop::Unknown("there is no such file in the image"));
        };
        self.has_kernel = true;
        self.host.linux(file, &arguments.join(" "))
    }

    fn load_initrd(&mut self, path: &str) -> Result<(), Stop> {
        if !self.has_kernel {
            return Err(Stop::Unknown("there is not one file after one kernel"));
        }
        let Some(file) = self.file(path)? else {
            return Err(Stop::Unknown("there is no such file in the image"));
        };
        self.host.initrd(file)
    }
}

/// `NAME=VALUE`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (begins && plain).then_some((name, value))
}
