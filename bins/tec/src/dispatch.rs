//! Decides where each command runs.

use std::path::Path;

use tec_support::exit::OK;
use tec_support::reference::Page;

use crate::args::Access;
use crate::cli::{Cli, Command, PLUGIN};
use crate::kube::access::Cluster;
use crate::output::Output;
use crate::{command, kube, output, serve};

/// The page of all commands.
const REFERENCE: Page<'_> = Page {
    source: "bins/tec/src",
    intro: "What they are for, and examples, are in [cli.md](../cli.md).",
};

/// Runs a command on its anchor.
pub(crate) async fn run(
    cli: Cli,
    (is_plugin, on_cluster): (bool, bool),
    output: &Output,
) -> anyhow::Result<u8> {
    match cli.command {
        Command::Completion { shell } => {
            let (mut command, name) =
                (crate::cli::command(is_plugin), if is_plugin { PLUGIN } else { "tec" });
            clap_complete::generate(shell, &mut command, name, &mut std::io::stdout());
            return Ok(OK);
        }
        Command::Reference { man } => {
            let command = crate::cli::command(is_plugin);
            match man {
                Some(directory) => clap_mangen::generate_to(command, directory)?,
                None => output::raw(&REFERENCE.markdown(command))?,
            }
            return Ok(OK);
        }
        _ => {}
    }
    if let Command::Explain(args) = &cli.command
        && let Some(explained) = command::explain_code(args, output)
    {
        return explained;
    }
    let (state_dir, access) = (&cli.anchor.state_dir, &cli.anchor.access);
    let access = on_cluster.then_some(access);
    match cli.command {
        Command::Serve { args, dangerous_lower_demands } => {
            serve::run(state_dir, *args, dangerous_lower_demands).await
        }
        Command::Bootstrap(command) => command::bootstrap(state_dir, access, command, output).await,
        Command::Pcr(command) => command::pcr(state_dir, command, output).await,
        Command::Eventlog(command) => command::eventlog(command, output),
        Command::Node(command) => command::node(state_dir, command, output).await,
        Command::Trustee(command) => command::trustee(command, output),
        Command::Attest(args) => command::attest(*args, output).await,
        Command::Ticket(command) => command::ticket(command, output),
        Command::Backup(command) => command::backup(state_dir, command, output).await,
        Command::Migrate(command) => command::migrate(state_dir, command, output).await,
        command => match access {
            Some(access) => at_cluster(access, command, output).await,
            None => at_directory(state_dir, command, output).await,
        },
    }
}

/// Runs commands that need a state directory, or that work on both, on a state directory.
async fn at_directory(state_dir: &Path, command: Command, output: &Output) -> anyhow::Result<u8> {
    match command {
        Command::Status(args) => command::status(state_dir, args.html.as_deref(), output).await,
        Command::Explain(args) => command::explain(state_dir, args, output).await,
        Command::Machine(command) => command::machine(state_dir, command, output).await,
        Command::Key(command) => command::key(state_dir, command, output).await,
        Command::Ak(command) => command::ak(state_dir, command, output).await,
        Command::Platform(command) => command::platform(state_dir, command, output).await,
        Command::Audit(command) => command::audit(state_dir, command, output).await,
        Command::Image(command) => command::image(state_dir, command, output).await,
        Command::Ignition(command) => command::ignition(state_dir, command, output).await,
        // `place::misplaced` refuses commands that need a cluster; `run` handles the rest.
        _ => anyhow::bail!("this command needs a Kubernetes cluster"),
    }
}

/// Runs commands that need a cluster, or that work on both, on a cluster.
async fn at_cluster(access: &Access, command: Command, output: &Output) -> anyhow::Result<u8> {
    let cluster = Cluster::connect(access).await?;
    match command {
        Command::Status(args) => kube::status::status(&cluster, args.html.as_deref(), output).await,
        Command::Check => kube::check::check(&cluster, output).await,
        Command::Machine(command) => kube::machine::machine(&cluster, command, output).await,
        Command::Member(command) => kube::member::member(&cluster, command, output).await,
        Command::Ak(command) => kube::ak::ak(&cluster, command, output).await,
        Command::Platform(command) => kube::platform::platform(&cluster, command, output).await,
        Command::Image(command) => kube::image::image(&cluster, command, output).await,
        Command::Explain(args) => {
            kube::explain::explain(&cluster, args.subject.as_deref(), output).await
        }
        Command::Audit(command) => kube::audit::audit(&cluster, command, output).await,
        Command::Ignition(command) => kube::ignition::ignition(&cluster, command, output).await,
        Command::SupportBundle { file, dry_run } => {
            kube::bundle::bundle(&cluster, &file, dry_run, output).await
        }
        // `run` handles commands without an anchor, and `place::misplaced` refuses the rest.
        _ => anyhow::bail!("this command needs a state directory"),
    }
}
