//! Any order of requests, of replicas, and of their deaths.

use proptest::prelude::*;

use super::*;

/// Machines 1 and 2, and a stranger whose key is bound to none.
const KEYS: [u64; 3] = [1, 2, 99];
const REPLICAS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A client opens a session.
    Auth(usize),
    /// A client sends its evidence, possibly not for the first time.
    Attest(usize),
    /// Someone presents the cookie and the token of two clients and requests the key of a machine.
    Fetch { cookie: Option<usize>, token: Option<usize>, machine: u64 },
    /// The evidence of one client arrives with the cookie of another.
    Swap { evidence: usize, cookie: usize },
    /// The replica dies.
    Lose,
    /// Time passes.
    Wait(i64),
    /// Machine 2 is revoked.
    Revoke,
}

fn action() -> impl Strategy<Value = Action> {
    let client = 0..KEYS.len();
    let maybe = || proptest::option::of(0..KEYS.len());
    prop_oneof![
        4 => client.clone().prop_map(Action::Auth),
        6 => client.clone().prop_map(Action::Attest),
        8 => (maybe(), maybe(), 1..=2_u64)
            .prop_map(|(cookie, token, machine)| Action::Fetch { cookie, token, machine }),
        2 => (client.clone(), client).prop_map(|(evidence, cookie)| Action::Swap { evidence, cookie }),
        3 => Just(Action::Lose),
        1 => (0..200_i64).prop_map(Action::Wait),
        1 => Just(Action::Revoke),
    ]
}

/// A client, and everything that it, or someone looking over its shoulder, has.
struct Client {
    attester: FakeAttester,
    key: EcPrivateKey,
    cookie: String,
    body: String,
    token: String,
}

impl Client {
    fn new(number: u64) -> Self {
        Self {
            attester: FakeAttester::new(number, 1),
            key: EcPrivateKey::generate(Curve::P256, &mut rng(number)),
            cookie: String::new(),
            body: String::new(),
            token: String::new(),
        }
    }

    async fn auth(&mut self, kbs: &Kbs) {
        use tec_core::port::Attester as _;
        let (cookie, nonce) = super::auth(kbs).await;
        let key = serde_json::to_value(self.key.public()).unwrap();
        let data = report_data::primary(&nonce, &key, "", HashAlgorithm::Sha384).unwrap();
        let evidence = self.attester.attest(&data).await.unwrap().evidence;
        let body = json!({
            "init-data": null,
            "runtime-data": {"nonce": nonce, "tee-pubkey": key},
            "tee-evidence": {"primary_evidence": evidence, "additional_evidence": ""},
        });
        (self.cookie, self.body) = (cookie, body.to_string());
    }

    /// Like a client with a cookie jar: new cookies replace old ones.
    async fn attest(&mut self, kbs: &Kbs) {
        let answer = post("attest", &self.body).cookie(&self.cookie).of(kbs).await;
        if answer.status == StatusCode::OK {
            (self.cookie, self.token) = (renewed(&answer), super::token(&answer));
        }
    }

    async fn fetch(&self, machine: u64, kbs: &Kbs) -> Answer {
        get(&path_of(machine)).cookie(&self.cookie).of(kbs).await
    }

    fn opens(&self, answer: &Answer, machine: u64) -> bool {
        let jwe: Jwe = serde_json::from_slice(&answer.body).unwrap();
        let opened = self.key.decrypt(&jwe);
        opened.is_ok_and(|secret| secret.ct_eq(&sample::secret(machine)))
    }
}

fn path_of(machine: u64) -> String {
    format!("resource/{}", sample::secret_path(machine))
}

struct Run {
    fleet: Fleet,
    clients: Vec<Client>,
    revoked: bool,
}

impl Run {
    async fn act(&mut self, at: usize, action: Action) {
        let kbs = self.fleet.replicas[at].clone();
        match action {
            Action::Auth(client) => self.clients[client].auth(&kbs).await,
            Action::Attest(client) => self.clients[client].attest(&kbs).await,
            Action::Swap { evidence, cookie } => {
                let body = &self.clients[evidence].body;
                post("attest", body).cookie(&self.clients[cookie].cookie).of(&kbs).await;
            }
            Action::Fetch { cookie, token, machine } => {
                let mut ask = get(&path_of(machine));
                ask.cookie = cookie.map(|client| self.clients[client].cookie.clone());
                ask.bearer = token.map(|client| self.clients[client].token.clone());
                let answer = ask.of(&kbs).await;
                if answer.status == StatusCode::OK {
                    self.belongs(&answer, machine);
                }
            }
            Action::Lose => self.fleet.lose(at),
            Action::Wait(seconds) => self.fleet.world.clock.advance_seconds(seconds),
            Action::Revoke if self.revoked => {}
            Action::Revoke => {
                self.fleet.world.revoke(2).await;
                self.revoked = true;
            }
        }
    }

    /// A released key must be the machine's, for the client with the machine's own key, and the machine must
    /// be entitled to it.
    fn belongs(&self, answer: &Answer, machine: u64) {
        assert!(machine == 1 || !self.revoked);
        for (client, key) in self.clients.iter().zip(KEYS) {
            assert_eq!(client.opens(answer, machine), key == machine);
        }
    }

    /// Whatever happened before, a machine that is entitled to its key gets it, wherever its requests go.
    async fn unlock(&mut self, places: [usize; REPLICAS]) {
        for (number, key) in KEYS.into_iter().enumerate() {
            let client = &mut self.clients[number];
            let [auth, attest, resource] = places.map(|at| self.fleet.replicas[at].clone());
            client.auth(&auth).await;
            client.attest(&attest).await;
            let answer = client.fetch(key.min(2), &resource).await;
            let may = key == 1 || key == 2 && !self.revoked;
            assert_eq!(answer.status == StatusCode::OK, may, "{key}");
            if may {
                self.belongs(&answer, key);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn the_right_machine_gets_its_key_and_nobody_else_ever_does(
        actions in proptest::collection::vec((0..REPLICAS, action()), 0..40),
        places in proptest::array::uniform3(0..REPLICAS),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut run = Run {
                fleet: Fleet::new().await,
                clients: KEYS.into_iter().map(Client::new).collect(),
                revoked: false,
            };
            for (at, action) in actions {
                run.act(at, action).await;
            }
            run.unlock(places).await;
        });
    }
}
