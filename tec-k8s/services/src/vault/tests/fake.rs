//! A vault in memory: the part of the API that the plans use, with its quirks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::{Method, Request, Response};

/// Length of a token in the fake, and of the one-time pad that hides it.
const TOKEN_LEN: usize = 20;

#[derive(Clone, Debug, Default)]
pub(super) struct FakeVault {
    pub(super) key: Option<String>,
    pub(super) sealed: bool,
    /// Number of initializations, including after resets.
    pub(super) inits: u32,
    pub(super) roots: BTreeSet<String>,
    pub(super) controllers: BTreeSet<String>,
    /// Objects that were written, by path.
    pub(super) objects: BTreeMap<String, Value>,
    /// Number of logins to refuse, as if the API server were away.
    pub(super) outage: u32,
    /// Number of certificate roles that someone else writes right after they were written.
    pub(super) contests: u32,
    attempt: Option<String>,
    rekey: Option<Attempt>,
    keys: u32,
    tokens: u32,
}

/// An attempt to replace the key; the new one is verified last.
#[derive(Clone, Debug)]
struct Attempt {
    nonce: String,
    new: Option<String>,
}

fn ok(data: &Value) -> Response {
    Response::new(200, json!({"data": data}).to_string().into_bytes())
}

fn plain(value: &Value) -> Response {
    Response::new(200, value.to_string().into_bytes())
}

fn refuse(status: u16, error: &str) -> Response {
    Response::new(status, json!({"errors": [error]}).to_string().into_bytes())
}

impl FakeVault {
    fn token(&mut self) -> String {
        self.tokens += 1;
        format!("s.{:0>width$}", self.tokens, width = TOKEN_LEN - 2)
    }

    pub(super) fn wipe(&mut self) {
        let (inits, tokens) = (self.inits, self.tokens);
        *self = Self { inits, tokens, ..Self::default() };
    }

    /// Takes a snapshot of this vault, and closes: its key is another one now.
    pub(super) fn take(&mut self, request: &Request, snapshot: Self) -> Response {
        let token = request.token.as_ref().unwrap();
        let token = String::from_utf8(token.expose("fake").to_vec()).unwrap();
        if self.sealed || !self.roots.contains(&token) {
            return refuse(403, "permission denied");
        }
        let (inits, tokens) = (self.inits, self.tokens);
        *self = Self { inits, tokens, sealed: true, ..snapshot };
        Response::new(204, Vec::new())
    }

    pub(super) fn answer(&mut self, request: &Request) -> Response {
        let body = request
            .body
            .as_ref()
            .map_or(Value::Null, |body| serde_json::from_slice(body.expose("fake")).unwrap());
        let token = request.token.as_ref().map_or_else(String::new, |token| {
            String::from_utf8(token.expose("fake").to_vec()).unwrap()
        });
        let path = request.path.as_str();
        match path {
            "sys/seal-status" => self.status(),
            "sys/init" => self.init(),
            _ if self.key.is_none() => refuse(400, "Vault is not initialized"),
            "sys/unseal" => self.unseal(&body),
            _ if self.sealed => refuse(503, "Vault is sealed"),
            "sys/health" => plain(&self.flags()),
            "sys/generate-root/attempt" => self.attempt(request.method),
            "sys/generate-root/update" => self.update(&body),
            "sys/rotate/root/init" if self.controllers.contains(&token) => {
                self.begin_rekey(request.method)
            }
            "sys/rotate/root/update" if self.controllers.contains(&token) => self.rekey(&body),
            "sys/rotate/root/verify" if self.controllers.contains(&token) => {
                self.verify(request.method, &body)
            }
            "auth/kubernetes/login" => self.login(&body),
            _ if self.roots.contains(&token) => self.root(request.method, path, &body, &token),
            _ if self.controllers.contains(&token) => {
                if request.method != Method::Get && is_guarded(path) {
                    return refuse(403, "permission denied");
                }
                self.object(request.method, path, &body)
            }
            _ => refuse(403, "permission denied"),
        }
    }

    fn flags(&self) -> Value {
        let sealed = self.key.is_none() || self.sealed;
        json!({"initialized": self.key.is_some(), "sealed": sealed, "type": "shamir"})
    }

    fn status(&self) -> Response {
        plain(&self.flags())
    }

    fn init(&mut self) -> Response {
        if self.key.is_some() {
            return refuse(400, "Vault is already initialized");
        }
        self.inits += 1;
        let key = format!("unseal-key-{}", self.inits);
        let root = self.token();
        self.roots.insert(root.clone());
        self.key = Some(key.clone());
        self.sealed = true;
        plain(&json!({"keys_base64": [key], "root_token": root}))
    }

    fn unseal(&mut self, body: &Value) -> Response {
        if body["key"].as_str() != self.key.as_deref() {
            return refuse(400, "cipher: message authentication failed");
        }
        self.sealed = false;
        self.status()
    }

    fn attempt(&mut self, method: Method) -> Response {
        match (method, &self.attempt) {
            (Method::Delete, _) => {
                self.attempt = None;
                Response::new(204, Vec::new())
            }
            (_, Some(_)) => refuse(400, "root generation already in progress"),
            (_, None) => {
                let otp = "p".repeat(TOKEN_LEN);
                self.attempt = Some(otp.clone());
                plain(&json!({"nonce": "n", "otp": otp}))
            }
        }
    }

    fn update(&mut self, body: &Value) -> Response {
        use base64::Engine as _;
        let Some(otp) = self.attempt.take() else {
            return refuse(400, "no root generation in progress");
        };
        if body["key"].as_str() != self.key.as_deref() {
            return refuse(400, "root generation failed");
        }
        let root = self.token();
        self.roots.insert(root.clone());
        let hidden: Vec<u8> = root.bytes().zip(otp.bytes()).map(|(a, b)| a ^ b).collect();
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hidden);
        // Twice, like the real ones.
        plain(&json!({"encoded_token": encoded, "encoded_root_token": encoded}))
    }

    fn begin_rekey(&mut self, method: Method) -> Response {
        match (method, &self.rekey) {
            (Method::Delete, _) => {
                self.rekey = None;
                Response::new(204, Vec::new())
            }
            (_, Some(_)) => refuse(400, "rotation already in progress"),
            (_, None) => {
                self.keys += 1;
                let nonce = format!("attempt-{}", self.keys);
                self.rekey = Some(Attempt { nonce: nonce.clone(), new: None });
                ok(&json!({"started": true, "nonce": nonce}))
            }
        }
    }

    fn rekey(&mut self, body: &Value) -> Response {
        let is_right = body["key"].as_str() == self.key.as_deref();
        match &mut self.rekey {
            Some(Attempt { nonce, new }) if body["nonce"] == **nonce && is_right => {
                let key = format!("rotated-key-{}", self.keys);
                *new = Some(key.clone());
                ok(&json!({"complete": true, "keys_base64": [key], "verification_nonce": nonce}))
            }
            _ => refuse(400, "cipher: message authentication failed"),
        }
    }

    fn verify(&mut self, method: Method, body: &Value) -> Response {
        let pending = self.rekey.clone().and_then(|attempt| Some((attempt.nonce, attempt.new?)));
        match (method, pending) {
            (Method::Get, Some((nonce, _))) => ok(&json!({"started": true, "nonce": nonce})),
            (Method::Get, None) => refuse(400, "no rotation verification in progress"),
            (_, Some((nonce, new))) if body["nonce"] == nonce && body["key"] == new => {
                self.key = Some(new);
                self.rekey = None;
                ok(&json!({"complete": true}))
            }
            _ => refuse(400, "rotation verification failed"),
        }
    }

    /// A restart forgets attempts, and seals.
    pub(super) fn restart(&mut self) {
        self.sealed = true;
        self.rekey = None;
        self.attempt = None;
    }

    fn login(&mut self, body: &Value) -> Response {
        let role = body["role"].as_str().unwrap();
        if !self.objects.contains_key(&format!("auth/kubernetes/role/{role}")) {
            return refuse(400, "invalid role name");
        }
        if let Some(left) = self.outage.checked_sub(1) {
            self.outage = left;
            return refuse(403, "permission denied");
        }
        let names = &self.objects[&format!("auth/kubernetes/role/{role}")];
        if names["bound_service_account_names"] != json!([role]) {
            return refuse(403, "service account name not authorized");
        }
        let token = self.token();
        self.controllers.insert(token.clone());
        plain(&json!({"auth": {"client_token": token, "lease_duration": 3600}}))
    }

    fn root(&mut self, method: Method, path: &str, body: &Value, token: &str) -> Response {
        let named = body["accessor"].as_str().unwrap_or_default();
        match path {
            "auth/token/lookup-self" => ok(&json!({"accessor": accessor_of(token)})),
            "auth/token/accessors" => {
                let all: Vec<String> = self
                    .roots
                    .iter()
                    .chain(&self.controllers)
                    .map(|token| accessor_of(token))
                    .collect();
                ok(&json!({"keys": all}))
            }
            "auth/token/lookup-accessor" => {
                let is_root = self.roots.iter().any(|root| accessor_of(root) == named);
                let policies = if is_root { json!(["root"]) } else { json!(["controller"]) };
                ok(&json!({"accessor": named, "policies": policies}))
            }
            "auth/token/revoke-accessor" => {
                self.roots.retain(|root| accessor_of(root) != named);
                Response::new(204, Vec::new())
            }
            "auth/token/revoke-self" => {
                self.roots.remove(token);
                Response::new(204, Vec::new())
            }
            _ => self.object(method, path, body),
        }
    }

    fn object(&mut self, method: Method, path: &str, body: &Value) -> Response {
        if path == "sys/auth" {
            return match self.objects.get("sys/auth/kubernetes") {
                Some(_) => ok(&json!({"kubernetes/": {"accessor": "acc-1"}})),
                None => ok(&json!({})),
            };
        }
        if method == Method::Get {
            return match (self.objects.get(path), path.starts_with("sys/")) {
                (Some(object), _) => ok(object),
                (None, true) => refuse(400, "No secret engine mount at x, no auth engine at x"),
                (None, false) if path.contains("/issuer/") => {
                    refuse(500, "unable to find PKI issuer for reference: x")
                }
                (None, false) => refuse(404, ""),
            };
        }
        self.write(path, body)
    }

    fn write(&mut self, path: &str, body: &Value) -> Response {
        let role = path.strip_prefix("kubefox/pki-int/issue/");
        let signer = role.and_then(|role| self.issuers().remove(role)).unwrap_or_default();
        let good = ok(&json!({
            "random_bytes": "00ff", "csr": "CSR", "certificate": "PEM",
            "mapping": {"i-root": "", "i-1": "k-1"},
            "ca_chain": chain_of(&signer),
            "private_key": "KEY", "serial_number": "1", "expiration": 9,
        }));
        if let Some(mount) = path.strip_prefix("sys/mounts/") {
            let mut mounted = body.clone();
            let lease = body["config"]["max_lease_ttl"].as_str().unwrap_or("0s");
            let seconds: u64 = lease.trim_end_matches('s').parse().unwrap();
            mounted["config"] = json!({"max_lease_ttl": seconds});
            return self.insert(&format!("sys/mounts/{mount}"), mounted, "path is already in use");
        }
        if path == "sys/auth/kubernetes" {
            return self.insert(path, body.clone(), "path is already in use");
        }
        if path.ends_with("root/generate/internal") {
            let name = body["issuer_name"].as_str().unwrap();
            let issuer = format!("kubefox/pki-root/issuer/{name}");
            return self.insert(&issuer, body.clone(), "issuer name already in use");
        }
        if path.ends_with("issuer/i-1") {
            let name = body["issuer_name"].as_str().unwrap();
            let issuer = json!({"issuer_name": name, "ca_chain": chain_of(name)});
            self.objects.insert(format!("kubefox/pki-int/issuer/{name}"), issuer);
        } else if path.starts_with("kubefox/kv-systems/data/") {
            let version = self
                .objects
                .get(path)
                .map_or(0, |now| now["metadata"]["version"].as_u64().unwrap());
            if body["options"]["cas"] != version {
                return refuse(400, "check-and-set parameter did not match");
            }
            let written = json!({"data": body["data"], "metadata": {"version": version + 1}});
            self.objects.insert(path.to_owned(), written);
        } else if path.contains("/data/") {
            return self.insert(
                path,
                body["data"].clone(),
                "check-and-set parameter did not match",
            );
        } else if !["/generate/", "/issue/", "/sign-"].iter().any(|call| path.contains(call)) {
            self.objects.insert(path.to_owned(), body.clone());
        }
        if let Some(left) = self.contests.checked_sub(1)
            && let Some(role) = self.objects.get_mut(path)
            && path.starts_with("kubefox/pki-int/roles/")
        {
            self.contests = left;
            role["max_ttl"] = json!(1);
        }
        good
    }

    /// The issuer that each certificate role names.
    pub(super) fn issuers(&self) -> BTreeMap<String, String> {
        let role = |(path, role): (&String, &Value)| {
            let name = path.strip_prefix("kubefox/pki-int/roles/")?;
            Some((name.to_owned(), role["issuer_ref"].as_str()?.to_owned()))
        };
        self.objects.iter().filter_map(role).collect()
    }

    fn insert(&mut self, path: &str, value: Value, taken: &str) -> Response {
        if self.objects.contains_key(path) {
            return refuse(400, taken);
        }
        self.objects.insert(path.to_owned(), value);
        Response::new(204, Vec::new())
    }
}

/// The certificates of an issuer and of its root.
fn chain_of(issuer: &str) -> [String; 2] {
    [format!("<{issuer}>"), format!("<{}>", issuer.replace("intermediate", "root"))]
}

/// Paths that only root may write.
fn is_guarded(path: &str) -> bool {
    path.starts_with("sys/policies") || path.starts_with("auth/") || path.starts_with("sys/auth")
}

fn accessor_of(token: &str) -> String {
    format!("accessor-of-{token}")
}
