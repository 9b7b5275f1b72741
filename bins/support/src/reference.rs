//! All commands and flags of a program as Markdown, generated from clap's definitions; `cargo xtask
//! codegen` writes it to docs/reference.

use std::fmt::Write as _;

use clap::{Arg, Command};

/// A page: the source of its text, and links to more.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Folder of the command line's source.
    pub source: &'a str,
    /// Sentence above the tables.
    pub intro: &'a str,
}

impl Page<'_> {
    /// The page of a program.
    pub fn markdown(&self, mut program: Command) -> String {
        program.build();
        let name = program.get_name().to_owned();
        let Self { source, intro } = self;
        let mut page = format!(
            "<!-- Written by `cargo xtask codegen` from {source}. -->\n\
             # All commands and flags of {name}\n\n\
             {intro} A flag with a variable can be given in the environment instead.\n",
        );
        if program.has_subcommands() {
            section(&mut page, "Flags of every command", &mut global(&program));
            leaves(&program, &name, &mut page);
        } else {
            leaf(&program, &name, &mut shown(&program), &mut page);
        }
        page
    }
}

fn global(command: &Command) -> impl Iterator<Item = &Arg> {
    shown(command).filter(|arg| arg.is_global_set())
}

/// The commands without subcommands.
fn leaves(command: &Command, path: &str, page: &mut String) {
    let next = command.get_subcommands();
    for next in next.filter(|next| next.get_name() != "help") {
        let path = format!("{path} {}", next.get_name());
        common(command, next, &path, page);
        leaves(next, &path, page);
    }
    if !command.has_subcommands() {
        let mut own = shown(command).filter(|arg| !arg.is_global_set());
        leaf(command, path, &mut own, page);
    }
}

fn leaf(command: &Command, path: &str, args: &mut dyn Iterator<Item = &Arg>, page: &mut String) {
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## {path}\n\n{about}\n");
    let (positional, flags): (Vec<_>, Vec<_>) = args.partition(|arg| arg.is_positional());
    let mut args = positional.into_iter().chain(flags);
    rows(page, &mut args);
}

/// Flags that all commands below `next` share, and that its sibling commands do not have.
fn common(command: &Command, next: &Command, path: &str, page: &mut String) {
    let is_new = |arg: &&Arg| command.get_arguments().all(|old| old.get_id() != arg.get_id());
    let mut flags = global(next).filter(is_new).peekable();
    if next.has_subcommands() && flags.peek().is_some() {
        let title = format!("Flags of every command of {path}");
        section(page, &title, &mut flags);
    }
}

fn section(page: &mut String, title: &str, args: &mut dyn Iterator<Item = &Arg>) {
    let _ = writeln!(page, "\n## {title}");
    rows(page, args);
}

fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_own = |arg: &&Arg| !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(|arg| !arg.is_hide_set()).filter(is_own)
}

fn rows(page: &mut String, args: &mut dyn Iterator<Item = &Arg>) {
    let mut rows = args.map(row).peekable();
    if rows.peek().is_some() {
        page.push('\n');
        page.push_str(HEAD);
    }
    page.extend(rows);
}

fn row(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let help = help.replace('\n', " ").replace('|', "\\|");
    let takes_value = arg.get_action().takes_values();
    let choices: Vec<_> = arg.get_possible_values();
    let choices = choices.iter().filter(|choice| !choice.is_hide_set());
    let choices: Vec<_> = choices.map(|c| format!("`{}`", c.get_name())).collect();
    let choices = if takes_value && !choices.is_empty() {
        format!(": {}", choices.join(", "))
    } else {
        String::new()
    };
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
    let default = arg.get_default_values().iter().map(|d| d.to_string_lossy());
    let default = default.collect::<Vec<_>>().join(", ");
    let code = |text: &str| {
        if text.is_empty() { String::new() } else { format!("`{text}`") }
    };
    format!(
        "| {} | {} | {} | {help}{choices} |\n",
        code(&name(arg).replace('|', "\\|")),
        code(&variable.unwrap_or_default()),
        code(if takes_value { &default } else { "" }),
    )
}

const HEAD: &str = "| | variable | default | |\n|---|---|---|---|\n";

/// The flag or argument as it is typed.
fn name(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values: Vec<_> = values.iter().map(|name| format!("<{name}>")).collect();
    let values = values.join(" ");
    match (arg.get_long(), arg.get_action().takes_values()) {
        (Some(long), true) => format!("--{long} {values}"),
        (Some(long), false) => format!("--{long}"),
        (None, _) => values,
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[derive(Clone, Copy, ValueEnum)]
    enum Form {
        Text,
        Json,
    }

    fn program() -> Command {
        let form = Arg::new("form").long("form").value_name("FORM").default_value("text");
        let form = form.value_parser(clap::value_parser!(Form)).help("a | b").global(true);
        Command::new("p").about("Does").arg(form.env("P_FORM"))
    }

    #[test]
    fn a_program_without_commands_has_all_its_flags_in_one_table() {
        let page = Page { source: "here", intro: "Intro." }.markdown(program());
        let row = "| `--form <FORM>` | `P_FORM` | `text` | a \\| b: `text`, `json` |\n";
        assert!(page.starts_with("<!-- Written by `cargo xtask codegen` from here. -->\n# All"));
        assert!(page.ends_with(&format!("## p\n\nDoes\n\n{HEAD}{row}")), "{page}");
    }

    #[test]
    fn a_flag_of_every_command_is_not_repeated_at_each() {
        let command = Command::new("run")
            .about("Runs")
            .arg(Arg::new("file").value_name("FILE").required(true));
        let page = Page { source: "here", intro: "Intro." };
        let page = page.markdown(program().subcommand(command));
        assert_eq!(page.matches("--form").count(), 1, "{page}");
        let row = "| `<FILE>` |  |  |  |\n";
        assert!(page.ends_with(&format!("## p run\n\nRuns\n\n{HEAD}{row}")), "{page}");
    }
}
