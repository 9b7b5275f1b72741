//! The node's program: parses the command line, composes, and reports.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use node_agent::args::{KeyCommand, RecoveryCommand};
use node_agent::cli::{AkCommand, Cli, Command};
use node_agent::output::Output;
use node_agent::render::print;
use node_agent::{attest, cli, links, next_boot, stream};
use tec_agent::Settings;
use tec_agent::failure::Failure;
use tec_agent::recovery::Change;
use tec_agent::report::Report;
use tec_agent::tpm::NodeTpm;
use tec_agent::{kept, key, machine, pin, rebind, recovery, refresh, rotate};
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
    let flags = cli.flags.clone();
    ExitCode::from(block_on(run(cli)).unwrap_or_else(|report| {
        flags.show(&report);
        // Units must not try again: only the next boot gets the key.
        if report.code == Code::InitramfsEnded { exit::NOT_READY } else { exit::FAILED }
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
    let settings = &cli.flags.settings();
    let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
    let done = match cli.command {
        Command::Encrypt(cli::EncryptArgs { summary: true, .. })
        | Command::Decrypt(cli::DecryptArgs { summary: true, .. }) => {
            stream::write_line(cli::SUMMARY).map_err(unnamed)
        }
        Command::Encrypt(arguments) => {
            let config = arguments.config.unwrap_or_default();
            let plaintext = stream::read_plaintext().map_err(unnamed)?;
            let sealed = pin::encrypt(settings, &config, &plaintext, &entropy).await?;
            stream::write(sealed.as_bytes()).map_err(unnamed)
        }
        Command::Decrypt(_) => {
            let sealed = stream::read_sealed().map_err(unnamed)?;
            let plaintext = pin::decrypt(settings, &sealed, &entropy).await?;
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
            let attested = attest::attest(settings, &arguments, &entropy).await;
            let code = attested.and_then(|attested| attested.print(&cli.flags));
            return code.map_err(|failure| failure.report(machine));
        }
        Command::Rebind(arguments) => {
            let (device, servers) = (&arguments.device, &arguments.servers);
            let rebound = rebind::rebind(settings, device, servers, &entropy).await;
            print(rebound, arguments.output).map_err(unnamed)
        }
        Command::RefreshCa(arguments) => {
            let refreshed = refresh::refresh(settings, &arguments.devices, &entropy).await;
            print(refreshed, arguments.output).map_err(unnamed)
        }
        Command::Recovery(command) => {
            let (change, arguments) = match &command {
                RecoveryCommand::Enroll(arguments) => (Change::Enroll, arguments),
                RecoveryCommand::Renew(arguments) => (Change::Renew, arguments),
            };
            let files = (&*arguments.device, &*arguments.admin_key);
            let enrolled = recovery::recovery(settings, change, files, &entropy).await;
            print(enrolled, arguments.output).map_err(unnamed)
        }
        Command::Key(KeyCommand::Rotate(arguments)) => {
            let rotated = rotate::rotate(settings, &arguments.devices, &entropy).await;
            print(rotated, arguments.output).map_err(unnamed)
        }
        Command::NextBoot(arguments) => {
            let next = next_boot::run(settings, &arguments, &entropy).await.map_err(unnamed)?;
            let (text, code) = next_boot::answer(&next, arguments.output);
            return stream::write_line(&text).map_err(unnamed).map(|()| code);
        }
        Command::Machine { devices } => machine::machine(&devices)
            .map_err(Failure::Disk)
            .and_then(|id| stream::write_line(&id.to_string()))
            .map_err(unnamed),
        Command::EnterInitramfs => kept::enter_initramfs(settings).map_err(unnamed),
        Command::LeaveInitramfs { root, by_systemd } => {
            kept::leave_initramfs(settings, &root, by_systemd).map_err(unnamed)
        }
        Command::Pcrs => pcrs(settings).map_err(unnamed),
        Command::Ak { command, output } => ak(settings, command, output).await,
    };
    done.map(|()| exit::OK)
}

fn pcrs(settings: &Settings) -> Result<(), Failure> {
    let values = NodeTpm::open(settings)?.pcrs()?;
    let values = PcrIndex::all().map(|index| (index, *values.value(index)));
    stream::write(pcrread(&values.collect()).as_bytes())
}

async fn ak(settings: &Settings, command: AkCommand, output: Output) -> Result<(), Report> {
    let (shown, machine) = match command {
        AkCommand::Create => (key::create(settings), None),
        AkCommand::Show => (key::show(settings), None),
        AkCommand::Register { url, uuid, ca } => {
            let shown = key::register(settings, &url, uuid, ca.as_deref(), &SystemEntropy).await;
            (shown, Some(uuid))
        }
    };
    print(shown, output).map_err(|failure| failure.report(machine))
}
