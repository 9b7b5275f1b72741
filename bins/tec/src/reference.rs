//! All commands and flags as Markdown, generated from clap; `cargo xtask codegen` writes it to
//! docs/reference.

use std::fmt::Write as _;

use clap::{Arg, Command};

pub(crate) fn markdown(mut tec: Command) -> String {
    tec.build();
    let mut page = String::from(
        "<!-- Written by `cargo xtask codegen` from bins/tec/src. -->\n\
         # All commands and flags of tec\n\n\
         What they are for, and examples, are in [cli.md](../cli.md). A flag with a variable can be \
         given in the environment instead.\n",
    );
    section(&mut page, "Flags of every command", &mut global(&tec));
    leaves(&tec, "tec", &mut page);
    page
}

fn global(tec: &Command) -> impl Iterator<Item = &Arg> {
    shown(tec).filter(|arg| arg.is_global_set())
}

/// The commands without subcommands.
fn leaves(command: &Command, path: &str, page: &mut String) {
    let next = command.get_subcommands();
    for next in next.filter(|next| next.get_name() != "help") {
        let path = format!("{path} {}", next.get_name());
        common(command, next, &path, page);
        leaves(next, &path, page);
    }
    if command.has_subcommands() {
        return;
    }
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## {path}\n\n{about}\n");
    let own = shown(command).filter(|arg| !arg.is_global_set());
    let (positional, flags): (Vec<_>, Vec<_>) = own.partition(|arg| arg.is_positional());
    let mut own = positional.into_iter().chain(flags);
    rows(page, &mut own);
}

/// Flags shared by all commands below `next` that the commands next to it do not have.
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
        page.push_str("\n| | variable | default | |\n|---|---|---|---|\n");
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

/// The argument as typed.
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
