//! The node's program: parses the command line, composes, and reports.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use node_agent::cli::{AkCommand, Cli, Command, Output};
use node_agent::failure::Failure;
use node_agent::recovery::RecoveryCommand;
use node_agent::report::Report;
use node_agent::rotate::KeyCommand;
use node_agent::settings::Flags;
use node_agent::tpm::NodeTpm;
use node_agent::{
    attest, cli, key, links, machine, next_boot, pin, rebind, recovery, refresh, rotate, stream,
    succeed,
};
use tec_core::code::Code;
use tec_core::id::ResourcePath;
use tec_core::pcr::PcrIndex;
use tec_core::port::Entropy;
use tec_support::log::LogForm;
use tec_support::{SystemEntropy, exit};
use tec_tpm::output::pcrread;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let usage = error.use_stderr();
            // A closed stream must not cause a second failure.
            let _ = error.print();
            return ExitCode::from(if usage { exit::USAGE } else { exit::OK });
        }
    };
    if let Err(error) = tec_support::log::start(&cli.flags.log, LogForm::Text) {
        let _ = writeln!(std::io::stderr(), "TEC_LOG or --log: {error:#}");
        return ExitCode::from(exit::USAGE);
    }
    // Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let flags = cli.flags.clone();
    ExitCode::from(block_on(run(cli)).unwrap_or_else(|report| {
        report.print(&flags);
        exit::FAILED
    }))
}

fn block_on(future: impl Future<Output = Result<u8, Report>>) -> Result<u8, Report> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Report::new(Code::NodeTpm, format!("start: {error}")))?
        .block_on(future)
}

async fn run(cli: Cli) -> Result<u8, Report> {
    let unnamed = |failure: Failure| failure.report(None);
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let done = match cli.command {
        Command::Encrypt(cli::EncryptArgs { summary: true, .. })
        | Command::Decrypt(cli::DecryptArgs { summary: true, .. }) => {
            stream::write_line(cli::SUMMARY).map_err(unnamed)
        }
        Command::Encrypt(arguments) => {
            let config = arguments.config.unwrap_or_default();
            let plaintext = stream::read_plaintext().map_err(unnamed)?;
            let sealed = pin::encrypt(&cli.flags, &config, &plaintext, &entropy).await?;
            stream::write(sealed.as_bytes()).map_err(unnamed)
        }
        Command::Decrypt(_) => {
            let sealed = stream::read_sealed().map_err(unnamed)?;
            let plaintext = pin::decrypt(&cli.flags, &sealed, &entropy).await?;
            stream::write(plaintext.expose("the caller asked for it")).map_err(unnamed)
        }
        Command::InstallLinks { directory } => {
            let program = std::env::current_exe().map_err(Failure::io("find this program"));
            let program = program.map_err(unnamed)?;
            let made = links::install(&directory, &program).map_err(unnamed)?;
            made.iter()
                .try_for_each(|link| stream::write_line(&link.display().to_string()))
                .map_err(unnamed)
        }
        Command::Attest(arguments) => {
            let machine = arguments.path.as_ref().and_then(ResourcePath::machine);
            let attested = attest::attest(&cli.flags, &arguments, &entropy).await;
            let code = attested.and_then(|attested| attested.print(&cli.flags));
            return code.map_err(|failure| failure.report(machine));
        }
        Command::Rebind(arguments) => {
            let rebound = rebind::rebind(&cli.flags, &arguments, &entropy).await;
            rebound
                .and_then(|rebound| stream::write_line(&rebound.render(arguments.output)))
                .map_err(unnamed)
        }
        Command::RefreshCa(arguments) => {
            let refreshed = refresh::refresh(&cli.flags, &arguments, &entropy).await;
            refreshed
                .and_then(|refreshed| stream::write_line(&refreshed.render(arguments.output)))
                .map_err(unnamed)
        }
        Command::Recovery(command) => {
            let (RecoveryCommand::Enroll(arguments) | RecoveryCommand::Renew(arguments)) = &command;
            let output = arguments.output;
            let enrolled = recovery::recovery(&cli.flags, &command, &entropy).await;
            enrolled
                .and_then(|enrolled| stream::write_line(&enrolled.render(output)))
                .map_err(unnamed)
        }
        Command::Key(KeyCommand::Rotate(arguments)) => {
            rotate::run(&cli.flags, &arguments, &entropy).await.map_err(unnamed)
        }
        Command::NextBoot(arguments) => {
            let next = next_boot::run(&cli.flags, &arguments, &entropy).await.map_err(unnamed)?;
            let (text, code) = next_boot::answer(&next, arguments.output);
            return stream::write_line(&text).map_err(unnamed).map(|()| code);
        }
        Command::Machine(arguments) => machine::machine(&arguments)
            .map_err(Failure::Disk)
            .and_then(|id| stream::write_line(&id.to_string()))
            .map_err(unnamed),
        Command::Pcrs => pcrs(&cli.flags).map_err(unnamed),
        Command::Ak { command, output } => ak(&cli.flags, command, output).await,
    };
    done.map(|()| exit::OK)
}

fn pcrs(flags: &Flags) -> Result<(), Failure> {
    let values = NodeTpm::open(flags)?.pcrs()?;
    let values = PcrIndex::all().map(|index| (index, *values.value(index)));
    stream::write(pcrread(&values.collect()).as_bytes())
}

async fn ak(flags: &Flags, command: AkCommand, output: Output) -> Result<(), Report> {
    let (shown, machine) = match command {
        AkCommand::Create => (key::create(flags), None),
        AkCommand::Show => (key::show(flags), None),
        AkCommand::Rotate { devices } => {
            (succeed::rotate(flags, &devices, &(Arc::new(SystemEntropy) as _)).await, None)
        }
        AkCommand::Register { url, uuid, ca } => {
            let shown = key::register(flags, &url, uuid, ca.as_deref(), &SystemEntropy).await;
            (shown, Some(uuid))
        }
    };
    shown
        .and_then(|shown| stream::write_line(&shown.render(output)))
        .map_err(|failure| failure.report(machine))
}
