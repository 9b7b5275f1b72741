//! Passwords and roles of OpenSearch's users: keeps a running cluster in line with the vault and this
//! release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use tec_core::port::{Clock, Entropy, EntropyRng};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_services::opensearch;
use tec_services::shell::{Http, Standing, Target, Vault};
use tec_services::tls::Material;
use tec_services::vault::call::Subject;
use tec_services::vault::password::Stored;
use tec_services::vault::{OPENSEARCH_USERS, Request, Response, call, password};
use tec_support::certificate::Certificate;

/// Deadline for a request, which even a busy node meets.
const DEADLINE: Duration = Duration::from_secs(10);

/// Keeps the passwords of a running OpenSearch.
#[derive(Debug)]
pub struct Passwords {
    /// The vault that stores them.
    pub vault: Vault,
    /// The controller's own token of the vault.
    pub standing: Arc<Standing>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for salts.
    pub entropy: Arc<dyn Entropy>,
    /// Host and port of OpenSearch, if passwords are pushed.
    pub opensearch: Option<String>,
    /// Lifetime of a password.
    pub life: Duration,
    /// Whether the roles of this release were written, which is done once for each start of the controller.
    pub roles_told: AtomicBool,
}

impl Passwords {
    /// Replaces roles that an older release wrote, and passwords that are due, and makes OpenSearch accept
    /// those that it does not know. Returns the number of users whose new password OpenSearch learned.
    ///
    /// The vault comes first: if this stops between the two, the next call finds a password that OpenSearch
    /// does not accept.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next call continues.
    pub async fn ensure(&self, authorities: &str) -> anyhow::Result<usize> {
        let Some(address) = &self.opensearch else {
            return Ok(0);
        };
        if !self.roles_told.load(Ordering::Relaxed) {
            self.tell_roles(&api(address, authorities, &self.admin().await?)?).await?;
            self.roles_told.store(true, Ordering::Relaxed);
        }
        let anybody = api(address, authorities, &Arc::default())?;
        let mut changed = 0;
        for user in OPENSEARCH_USERS {
            let (mut password, mut version) = self.newest(user).await?;
            let mut is_new = false;
            while !knows(&anybody, user, &password).await? {
                let admin = api(address, authorities, &self.admin().await?)?;
                let told = self.tell(&admin, user, &password).await;
                told.with_context(|| format!("cannot change the password of {user}"))?;
                tracing::info!(user, version, "OpenSearch takes a new password");
                is_new = true;
                // The controller of another pod may have replaced it in the meantime: then ours was the old
                // one, and OpenSearch must not keep it.
                let stored = self.stored(user).await?;
                if stored.version == version {
                    break;
                }
                (password, version) = (stored.password, stored.version);
            }
            changed += usize::from(is_new);
        }
        Ok(changed)
    }

    async fn stored(&self, user: &str) -> anyhow::Result<Stored> {
        Ok(Stored::from_answer(&self.call(password::read(user)).await?)?)
    }

    /// The current password and its version; a new one if the previous one is due.
    async fn newest(&self, user: &str) -> anyhow::Result<(SecretBytes, u64)> {
        let stored = self.stored(user).await?;
        if !stored.is_due(self.life, self.clock.now()) {
            return Ok((stored.password, stored.version));
        }
        let new = password::drawn(&self.call(password::draw()).await?)?;
        let replaced = self.call(password::replace(user, &stored, &new)).await?;
        replaced.json::<serde_json::Value>()?;
        let version = stored.version.saturating_add(1);
        tracing::info!(user, version, "the vault has a new password");
        Ok((new, version))
    }

    /// A certificate that authorizes changing passwords.
    async fn admin(&self) -> anyhow::Result<Arc<Certificate>> {
        let request = call::issue("opensearch-admin", &Subject::named("opensearch-admin"));
        let tls = Material::from_issued(&self.call(request).await?)?;
        let certificate = Arc::new(Certificate::default());
        certificate.replace(tls.chain.as_bytes(), &tls.key)?;
        Ok(certificate)
    }

    async fn tell_roles(&self, admin: &Http) -> anyhow::Result<()> {
        for (path, body) in opensearch::roles() {
            let body = SecretBytes::new(body.to_string().into_bytes());
            let reply = admin.call(Method::PUT, &path, &[], Some(&body)).await?;
            let status = reply.status;
            anyhow::ensure!(
                matches!(status, 200 | 201),
                "cannot set up OpenSearch: PUT {path} returned HTTP status {status}"
            );
        }
        tracing::info!("OpenSearch has the roles of this release");
        Ok(())
    }

    async fn tell(&self, admin: &Http, user: &str, password: &SecretBytes) -> anyhow::Result<()> {
        let salt = SecretArray::random(&mut EntropyRng::new(&*self.entropy));
        let password = password.duplicate("it is hashed on another thread");
        let work = move || opensearch::hash(&password, &salt, opensearch::BCRYPT_COST);
        let hash = tokio::task::spawn_blocking(work).await??;
        let (path, body) = opensearch::new_hash(user, &hash);
        let body = SecretBytes::new(body.to_string().into_bytes());
        let reply = admin.call(Method::PATCH, &path, &[], Some(&body)).await?;
        anyhow::ensure!(reply.status == 200, "OpenSearch answered {}", reply.status);
        Ok(())
    }

    async fn call(&self, request: Request) -> anyhow::Result<Response> {
        let token = self.standing.token()?;
        Ok(self.vault.call(&request.by(&token)).await?)
    }
}

/// Whether OpenSearch accepts the password.
async fn knows(api: &Http, user: &str, password: &SecretBytes) -> anyhow::Result<bool> {
    let login = opensearch::login(user, password);
    let headers = [("authorization", &login)];
    let reply = api.call(Method::GET, opensearch::LOGIN, &headers, None);
    match reply.await?.status {
        200 => Ok(true),
        401 => Ok(false),
        status => anyhow::bail!("OpenSearch answered {status} to a login"),
    }
}

fn api(address: &str, authorities: &str, own: &Arc<Certificate>) -> anyhow::Result<Http> {
    let config = own.client_config(authorities.as_bytes())?;
    let target = Target::tls(address, Arc::new(config));
    let target = target.with_context(|| format!("invalid address of OpenSearch {address:?}"))?;
    Ok(Http::new(target, DEADLINE))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::State;
    use axum::http::StatusCode;
    use axum::routing::get;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tec_services::shell::HttpError;
    use tec_support::serve;
    use tec_support::serve::{Shutdown, Transport};

    use super::*;

    /// How a controller interprets a cluster's answer to a login.
    async fn answered(status: StatusCode) -> anyhow::Result<bool> {
        let listener = serve::bind(([127, 0, 0, 1], 0).into())?;
        let address = listener.local_addr()?.to_string();
        let router = Router::new()
            .route(opensearch::LOGIN, get(async |State(status): State<StatusCode>| status))
            .with_state(status);
        let (shutdown, _signals) = Shutdown::on_signals()?;
        let http = Http::new(Target::DangerousPlain { address }, DEADLINE);
        let password = SecretBytes::new(b"password".to_vec());
        tokio::select! {
            served = serve::serve(listener, Transport::DangerousPlain, router, shutdown) => {
                anyhow::bail!("{served:?}")
            }
            known = knows(&http, "viewer", &password) => known,
        }
    }

    #[tokio::test]
    async fn a_cluster_that_is_red_or_not_set_up_yet_is_no_reason_to_change_a_password() {
        assert!(answered(StatusCode::OK).await.unwrap());
        assert!(!answered(StatusCode::UNAUTHORIZED).await.unwrap());
        for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS] {
            answered(status).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn only_a_server_with_the_name_of_the_cluster_is_asked() -> anyhow::Result<()> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.map_err(anyhow::Error::msg)?)?;
        let listener = serve::bind(([127, 0, 0, 1], 0).into())?;
        let port = listener.local_addr()?.port();
        let router = Router::new().route(opensearch::LOGIN, get(StatusCode::OK));
        let (shutdown, _signals) = Shutdown::on_signals()?;
        let password = SecretBytes::new(b"password".to_vec());
        let ask = async |host: &str| {
            let api = api(&format!("{host}:{port}"), &made.cert.pem(), &Arc::default())?;
            knows(&api, "viewer", &password).await
        };
        let asked = async { (ask("localhost").await, ask("127.0.0.1").await) };
        tokio::select! {
            served = serve::serve(listener, Transport::Tls(Arc::new(config)), router, shutdown) => {
                anyhow::bail!("{served:?}")
            }
            (named, other) = asked => {
                assert!(named?);
                let refused = other.unwrap_err();
                assert!(matches!(refused.downcast_ref(), Some(HttpError::Connect(..))), "{refused:?}");
                Ok(())
            }
        }
    }
}
