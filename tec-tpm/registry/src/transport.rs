//! Single calls: authentication, redirects, and what answers mean.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, redirect};
use rustls::crypto::CryptoProvider;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::challenge::Challenge;
use crate::credentials::{Credentials, Login};
use crate::error::RegistryError;
use crate::options::RegistryOptions;
use crate::reference::Place;
use crate::tls;

/// Time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time limit for the next bytes.
const READ: Duration = Duration::from_secs(30);
/// Maximum number of redirects: blobs are often redirected to an object store, once.
const MAX_REDIRECTS: usize = 5;
/// Maximum size of an answer with a token; tokens have a few KiB.
const MAX_TOKEN: u64 = 64 << 10;
/// Docker's registry, and the host of its API.
const HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// Media types of manifests and indexes.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// What is requested.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Manifest(String),
    Blob(String, Range<u64>),
}

/// Values of the header `Authorization`, by place.
type Tokens = BTreeMap<(String, String), Zeroizing<String>>;

/// Makes calls.
#[derive(Debug)]
pub(crate) struct Transport {
    client: Client,
    credentials: Credentials,
    plain: BTreeSet<String>,
    tokens: Mutex<TokenTable>,
}

#[derive(Default)]
struct TokenTable(Tokens);

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenTable({})", self.0.len())
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<Zeroizing<String>>,
    access_token: Option<Zeroizing<String>>,
}

impl Transport {
    pub(crate) fn new(
        options: &mut RegistryOptions,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, RegistryError> {
        for host in &options.dangerous_plain_http {
            tracing::warn!(host, "images of this registry come over plain HTTP");
        }
        let client = Client::builder()
            .tls_backend_preconfigured(tls::config(&options.roots, provider)?)
            .connect_timeout(CONNECT)
            .read_timeout(READ)
            .redirect(redirect::Policy::custom(follow))
            .build()
            .map_err(|error| RegistryError::Setup(Box::new(error)))?;
        Ok(Self {
            client,
            credentials: std::mem::take(&mut options.credentials),
            plain: options.dangerous_plain_http.clone(),
            tokens: Mutex::default(),
        })
    }

    /// The answer to one call, with status 200 or 206.
    pub(crate) async fn get(&self, place: &Place, ask: &Ask) -> Result<Response, RegistryError> {
        let url = self.url(place, ask);
        let known = self.token(place);
        let response = self.call(&url, ask, known.as_ref().map(|text| text.as_str())).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return accepted(&url, response);
        }
        let authorization = self.authorize(place, &url, &response).await?;
        let response = self.call(&url, ask, Some(&authorization)).await?;
        let response = accepted(&url, response)?;
        self.keep_token(place, authorization);
        Ok(response)
    }

    fn url(&self, place: &Place, ask: &Ask) -> String {
        let Place { host, repository } = place;
        let scheme = if self.plain.contains(host) { "http" } else { "https" };
        let host = if host == HUB.0 { HUB.1 } else { host };
        let path = match ask {
            Ask::Manifest(digest) => format!("manifests/{digest}"),
            Ask::Blob(digest, _) => format!("blobs/{digest}"),
        };
        format!("{scheme}://{host}/v2/{repository}/{path}")
    }

    async fn call(
        &self,
        url: &str,
        ask: &Ask,
        authorization: Option<&str>,
    ) -> Result<Response, RegistryError> {
        let mut request = self.client.get(url);
        request = match ask {
            Ask::Manifest(_) => request.header(ACCEPT, MANIFESTS),
            Ask::Blob(_, range) if range.end > range.start => {
                let range = format!("bytes={}-{}", range.start, range.end - 1);
                request.header(RANGE, range)
            }
            Ask::Blob(..) => request,
        };
        if let Some(value) = authorization.and_then(secret_header) {
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(|error| unreachable(url, error))
    }

    /// The authorization that the registry requires.
    async fn authorize(
        &self,
        place: &Place,
        url: &str,
        response: &Response,
    ) -> Result<Zeroizing<String>, RegistryError> {
        let status = response.status().as_u16();
        let denied = || RegistryError::Denied { url: url.to_owned(), status };
        let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = headers.filter_map(|value| Challenge::parse(value.to_str().ok()?));
        let login = self.credentials.of(place);
        match challenges.next().ok_or_else(denied)? {
            Challenge::Basic => Ok(login.ok_or_else(denied)?.basic()),
            Challenge::Bearer { realm, service, scope } => {
                let pull = || format!("repository:{}:pull", place.repository);
                let mut query = vec![("scope", scope.unwrap_or_else(pull))];
                query.extend(service.map(|service| ("service", service)));
                let basic = login.map(Login::basic);
                self.fetch_token(&realm, &query, basic.as_deref(), place).await
            }
        }
    }

    async fn fetch_token(
        &self,
        realm: &str,
        query: &[(&str, String)],
        basic: Option<&String>,
        place: &Place,
    ) -> Result<Zeroizing<String>, RegistryError> {
        let wrong = |what| RegistryError::Answer { url: realm.to_owned(), what };
        let mut url: reqwest::Url =
            realm.parse().map_err(|_| wrong("the realm is not an address"))?;
        // Only who may be asked in plain text for images may be told passwords so.
        if url.scheme() != "https" && !self.plain.contains(&place.host) {
            return Err(wrong("the realm is not https"));
        }
        url.query_pairs_mut().extend_pairs(query);
        let mut request = self.client.get(url);
        if let Some(value) = basic.and_then(|value| secret_header(value)) {
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(|error| unreachable(realm, error))?;
        let response = accepted(realm, response)?;
        let body = Zeroizing::new(read(response, realm, MAX_TOKEN).await?);
        let answer: TokenAnswer =
            serde_json::from_slice(&body).map_err(|_| wrong("it gives no token"))?;
        let token = answer.token.or(answer.access_token);
        let token = token.ok_or_else(|| wrong("it gives no token"))?;
        Ok(Zeroizing::new(format!("Bearer {}", *token)))
    }

    fn token(&self, place: &Place) -> Option<Zeroizing<String>> {
        let tokens = self.tokens.lock();
        let key = (place.host.clone(), place.repository.clone());
        tokens.0.get(&key).cloned()
    }

    fn keep_token(&self, place: &Place, token: Zeroizing<String>) {
        let mut tokens = self.tokens.lock();
        let key = (place.host.clone(), place.repository.clone());
        tokens.0.insert(key, token);
    }
}

/// Redirects are followed, but never from TLS to plain text. The HTTP client sends no credentials
/// to another host.
fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let from_tls = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("too many redirects");
    }
    if from_tls && attempt.url().scheme() != "https" {
        return attempt.error("a redirect away from TLS");
    }
    attempt.follow()
}

fn secret_header(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

pub(crate) fn unreachable(url: &str, error: reqwest::Error) -> RegistryError {
    RegistryError::Unreachable {
        url: url.to_owned(),
        // Addresses after redirects may carry signatures.
        source: Box::new(error.without_url()),
    }
}

fn accepted(url: &str, response: Response) -> Result<Response, RegistryError> {
    let (url, status) = (url.to_owned(), response.status());
    Err(match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => return Ok(response),
        StatusCode::NOT_FOUND => RegistryError::Absent(url),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            RegistryError::Denied { url, status: status.as_u16() }
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            RegistryError::Unavailable { url, status: status.as_u16() }
        }
        status if status.is_server_error() => {
            RegistryError::Unavailable { url, status: status.as_u16() }
        }
        _ => RegistryError::Answer { url, what: "its status means nothing here" },
    })
}

/// Reads a small answer.
pub(crate) async fn read(
    mut response: Response,
    url: &str,
    limit: u64,
) -> Result<Vec<u8>, RegistryError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| unreachable(url, e))? {
        body.extend_from_slice(&chunk);
        if body.len() as u64 > limit {
            return Err(RegistryError::TooLarge { what: url.to_owned(), limit });
        }
    }
    Ok(body)
}
