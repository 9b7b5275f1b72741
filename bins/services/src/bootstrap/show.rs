//! Shows an admin the password of an OpenSearch user.

use anyhow::Context as _;
use tec_core::secret::SecretBytes;
use tec_services::caller::Role;
use tec_services::shell::{Http, Target, Vault};
use tec_services::vault::password::Stored;
use tec_services::vault::{call, password};

use crate::bootstrap::cli::Password;
use crate::bootstrap::compose::VAULT_DEADLINE;

/// Writes the password to `out`, and nothing else. The vault's audit log records the read.
/// Errors: the vault is sealed or not set up yet, or refuses the controller's own token.
pub async fn run(args: &Password, out: &mut (dyn std::io::Write + Send)) -> anyhow::Result<()> {
    let stored = read(args).await?;
    out.write_all(stored.password.expose("an admin asked for it"))?;
    Ok(writeln!(out)?)
}

async fn read(args: &Password) -> anyhow::Result<Stored> {
    let vault = Vault::new(Http::new(Target::Unix(args.vault_socket.clone()), VAULT_DEADLINE));
    let file = &args.token;
    let token = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let token = SecretBytes::new(token.trim_ascii().to_vec());
    let answer = vault.call(&call::log_in(Role::Controller, &token)).await?;
    let login = call::logged_in(&answer);
    let login =
        login.with_context(|| format!("the vault refused the login (status {})", answer.status))?;
    let answer = vault.call(&password::read(&args.user).by(&login.token)).await?;
    anyhow::ensure!(answer.status == 200, "the vault answered with status {}", answer.status);
    Ok(Stored::from_answer(&answer)?)
}
