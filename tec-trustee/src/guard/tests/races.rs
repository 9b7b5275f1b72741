//! Races: the broker holds its answer back while something else is done.

use http_body_util::BodyExt as _;
use tec_core::machine::MachineChange;

use super::*;

type Answer = (StatusCode, HeaderMap, Vec<u8>);

impl World {
    /// Sends a request, does something else while the broker processes it, and discards the answer.
    async fn ask_while<T>(
        &self,
        request: Request<Body>,
        meanwhile: impl Future<Output = T>,
    ) -> (Answer, T) {
        let door = &self.lax.door;
        door.open.send_replace(false);
        let meanwhile = async {
            door.came.notified().await;
            let done = meanwhile.await;
            door.open.send_replace(true);
            done
        };
        tokio::join!(self.ask(request), meanwhile)
    }

    async fn attest_request(&self, id: &str, nonce: &str) -> Request<Body> {
        let sent = evidence(nonce, 1).await;
        with_cookie(post("attest", &sent), id)
    }

    fn forwarded(&self, verb: &str) -> usize {
        let paths = self.lax.paths();
        paths.iter().filter(|path| path.contains(verb)).count()
    }
}

#[tokio::test]
async fn of_two_attestations_of_one_session_one_goes_on() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let first = world.attest_request(&id, &nonce).await;
    let second = world.attest_request(&id, &nonce).await;
    let (first, second) = Box::pin(world.ask_while(first, world.ask(second))).await;
    assert_eq!(first.0, StatusCode::OK);
    assert_eq!(second.0, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&second.2).detail, "session not found");
    assert_eq!(world.forwarded("attest"), 1);
    assert_eq!(world.get(1, &id).await.0, StatusCode::OK);
}

#[tokio::test]
async fn nobody_is_attested_while_the_broker_still_looks() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let request = world.attest_request(&id, &nonce).await;
    let (attested, early) = Box::pin(world.ask_while(request, world.get(1, &id))).await;
    assert_eq!(attested.0, StatusCode::OK);
    assert_eq!(early.0, StatusCode::UNAUTHORIZED);
    assert_eq!(world.forwarded("resource"), 0);
}

#[tokio::test]
async fn a_revocation_while_the_broker_looks_at_evidence_counts() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let request = world.attest_request(&id, &nonce).await;
    let (attested, ()) = world.ask_while(request, world.revoke(1)).await;
    let token: Value = serde_json::from_slice(&attested.2).unwrap();
    let bearer = format!("Bearer {}", token["token"].as_str().unwrap());
    for request in [
        with_cookie(get(1), &id),
        with(get(1), "authorization", &bearer),
        with(with_cookie(get(1), &id), "authorization", &bearer),
    ] {
        let (status, _, body) = world.ask(request).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(error(&body).code(), Some(Code::MachineUnknown));
    }
    assert_eq!(world.forwarded("resource"), 0);
}

#[tokio::test]
async fn a_quarantined_machine_attests_and_gets_no_key_until_it_is_released() {
    let world = World::new().await;
    let change = async |change| {
        let machines: &dyn MachineRegistry = &*world.registry;
        let machine = sample::machine_id(1);
        machines.change(&machine, change, &sample::line()).await.unwrap();
    };
    let (id, ..) = world.attest(1).await;
    change(MachineChange::Quarantine).await;
    // An earlier session opens nothing.
    let (status, _, body) = world.get(1, &id).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::MachineQuarantined));
    let (_, status, body) = world.attest(1).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::MachineQuarantined));
    assert_eq!(world.forwarded("resource"), 0);
    let attempts: &dyn AttemptLog = &*world.registry;
    let latest = attempts.latest(Some(sample::machine_id(1)), 1).await.unwrap().remove(0);
    assert_eq!(latest.ladder.code, Some(Code::MachineQuarantined));
    let failed = latest.ladder.first_failure().unwrap().gate;
    assert_eq!(failed, Gate::ReleasePolicy, "all that it proved is on record");
    assert_eq!(world.attest(2).await.1, StatusCode::OK, "others get their keys");
    change(MachineChange::Release).await;
    let (id, status, _) = world.attest(1).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(world.get(1, &id).await.0, StatusCode::OK);
    change(MachineChange::Retire).await;
    let (status, _, body) = world.get(1, &id).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::MachineUnknown));
}

#[tokio::test]
async fn a_revocation_while_the_broker_fetches_the_key_counts() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    let request = with_cookie(get(1), &id);
    let ((status, _, body), ()) = world.ask_while(request, world.revoke(1)).await;
    assert_eq!(world.forwarded("resource"), 1);
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::MachineUnknown));
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
    assert_eq!(world.audit(AuditAction::KeyRefused), 1);
}

#[tokio::test]
async fn a_key_that_goes_to_another_machine_takes_no_session_along() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    let aks: &dyn AkRegistry = &*world.registry;
    let key = sample::public_key(1).fingerprint();
    aks.revoke(&key, &sample::line()).await.unwrap();
    let machines: &dyn MachineRegistry = &*world.registry;
    let unlimited = UnclaimedLimit::Unlimited;
    machines.create(&sample::machine(3), unlimited).await.unwrap();
    let approved = sample::approved_ak(1, 3);
    // Whether or not a revoked key may be bound again, the session stays closed.
    let _ = aks.bind(&approved, &sample::line()).await;
    for machine in [1, 3] {
        let (status, ..) = world.get(machine, &id).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(world.forwarded("resource"), 0);
}

/// The broker may have issued a token for it that is unknown here.
#[tokio::test]
async fn a_client_that_hangs_up_while_the_broker_looks_has_lost_its_session() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let request = world.attest_request(&id, &nonce).await;
    let door = &world.lax.door;
    door.open.send_replace(false);
    tokio::select! {
        _ = world.ask(request) => panic!("the broker holds its answer back"),
        () = door.came.notified() => {},
    }
    door.open.send_replace(true);
    assert_eq!(world.get(1, &id).await.0, StatusCode::UNAUTHORIZED);
    let again = world.attest_request(&id, &nonce).await;
    assert_eq!(world.ask(again).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(world.forwarded("attest"), 1);
    assert_eq!(world.attest(1).await.1, StatusCode::OK);
}

#[tokio::test]
async fn a_resource_streams_and_is_noted_before_its_first_byte() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    *world.lax.stuck.lock().unwrap() = true;
    let request = with_cookie(get(1), &id);
    let response = serve(State(world.guard.clone()), request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(world.audit(AuditAction::KeyReleased), 1);
    let first = response.into_body().frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), KEY);
}

/// Many tasks unlock while one machine is revoked: requests after the revocation are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_released_to_a_request_that_came_after_the_revocation() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = Arc::new(World::new().await);
    let revoked = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (world, revoked) = (Arc::clone(&world), Arc::clone(&revoked));
        tasks.spawn(async move {
            let mut refused = 0;
            while refused < 8 {
                let (id, ..) = world.attest(1).await;
                let late = revoked.load(Ordering::SeqCst);
                let (status, ..) = world.get(1, &id).await;
                assert!(status == StatusCode::UNAUTHORIZED || !late, "{status}");
                refused += usize::from(status == StatusCode::UNAUTHORIZED);
            }
        });
    }
    while world.audit(AuditAction::KeyReleased) < 8 {
        tokio::task::yield_now().await;
    }
    world.revoke(1).await;
    revoked.store(true, Ordering::SeqCst);
    let released = world.audit(AuditAction::KeyReleased);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // Requests that had passed the last check when the revocation came: at most one per task.
    assert!(world.audit(AuditAction::KeyReleased) <= released + 4);
    assert_eq!(world.attest(2).await.1, StatusCode::OK);
}
