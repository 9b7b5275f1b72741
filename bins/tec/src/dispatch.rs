//! Decides where each command runs.

use tec_support::exit::OK;
use tec_support::reference::Page;

use crate::anchor::Anchor;
use crate::cli::{Cli, Command, PLUGIN};
use crate::kube::access::Cluster;
use crate::output::Output;
use crate::{command, kube, output, platform, serve};

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
        Command::Image(command) => command::image(state_dir, access, command, output).await,
        Command::Ignition(command) => command::ignition(state_dir, access, command, output).await,
        Command::Key(command) => command::key(state_dir, command, output).await,
        command => match access {
            Some(access) => at_cluster(Cluster::connect(access).await?, command, output).await,
            None => at_anchor(&Anchor::open(state_dir, None).await?, command, output).await,
        },
    }
}

/// Runs what only clusters have.
async fn at_cluster(cluster: Cluster, command: Command, output: &Output) -> anyhow::Result<u8> {
    match command {
        Command::Check => kube::check::check(&cluster, output).await,
        Command::Member(command) => kube::member::member(&cluster, command, output).await,
        Command::SupportBundle { file, dry_run } => {
            kube::bundle::bundle(&cluster, &file, dry_run, output).await
        }
        command => at_anchor(&Anchor::namespace(cluster), command, output).await,
    }
}

/// Runs what works on a state directory and on a namespace.
async fn at_anchor(anchor: &Anchor, command: Command, output: &Output) -> anyhow::Result<u8> {
    match command {
        Command::Status(args) => command::status(anchor, args.html.as_deref(), output).await,
        Command::Explain(args) => command::explain(anchor, args, output).await,
        Command::Machine(command) => command::machine(anchor, command, output).await,
        Command::Ak(command) => command::ak(anchor, command, output).await,
        Command::Platform(command) => platform::platform(anchor, command, output).await,
        Command::Audit(command) => command::audit(anchor, command, output).await,
        // `place::misplaced` refuses commands that need a cluster; `run` handles the rest.
        _ => anyhow::bail!("this command needs a Kubernetes cluster"),
    }
}
