//! The same calls give the same answers and the same state in the store and in its in-memory double.

use proptest::prelude::*;

use super::Place;
use crate::explain::Gate;
use crate::machine::{Machine, MachineChange, RegisteredBy};
use crate::port::{
    AkRegistry, AttemptLog, AuditSink, ImageRegistry, MachineRegistry, PortError, PortErrorKind,
    SecretStore, UnclaimedLimit,
};
use crate::testing::{MemoryRegistry, sample};

/// One call, with names from a small set, so that they collide.
#[derive(Clone, Debug)]
enum Step {
    Create(u64, RegisteredBy, i64, UnclaimedLimit),
    RevokeMachine(u64),
    ChangeMachine(u64, MachineChange),
    RemoveMachine(u64),
    Expire(i64),
    Submit(u64, u64, Option<u64>),
    Bind(u64, u64, Option<u64>),
    RevokeAk(u64),
    PutImage(u64),
    RevokeImage(u64, i64),
    PutSecret(u64, u64),
    RemoveSecret(u64),
    Append(u64),
    Record(u64, Option<u64>),
    RecordInBoot(u64, u32, bool),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let machine = || 0..5_u64;
    let key = || 0..12_u64;
    let by = prop_oneof![3 => Just(RegisteredBy::FirstBoot), 1 => Just(RegisteredBy::Admin)];
    let limit =
        prop_oneof![Just(UnclaimedLimit::Unlimited), (0..5_u64).prop_map(UnclaimedLimit::AtMost)];
    let change = prop_oneof![
        2 => Just(MachineChange::Quarantine),
        2 => Just(MachineChange::Release),
        1 => Just(MachineChange::Retire),
    ];
    prop_oneof![
        6 => (machine(), by, 0..10_i64, limit).prop_map(|(m, by, at, l)| Step::Create(m, by, at, l)),
        1 => machine().prop_map(Step::RevokeMachine),
        3 => (machine(), change).prop_map(|(m, c)| Step::ChangeMachine(m, c)),
        1 => machine().prop_map(Step::RemoveMachine),
        1 => (0..10_i64).prop_map(Step::Expire),
        5 => (key(), machine(), prop::option::of(50..52_u64)).prop_map(|(k, m, e)| Step::Submit(k, m, e)),
        5 => (key(), machine(), prop::option::of(50..52_u64)).prop_map(|(k, m, e)| Step::Bind(k, m, e)),
        2 => key().prop_map(Step::RevokeAk),
        2 => (0..3_u64).prop_map(Step::PutImage),
        1 => (0..3_u64, 0..10_i64).prop_map(|(n, at)| Step::RevokeImage(n, at)),
        2 => (machine(), 0..3_u64).prop_map(|(m, s)| Step::PutSecret(m, s)),
        1 => machine().prop_map(Step::RemoveSecret),
        1 => (0..9_u64).prop_map(Step::Append),
        3 => (0..40_u64, prop::option::of(machine())).prop_map(|(id, m)| Step::Record(id, m)),
        4 => (0..40_u64, 0..2_u32, any::<bool>())
            .prop_map(|(id, boot, refused)| Step::RecordInBoot(id, boot, refused)),
        1 => Just(Step::Reopen),
    ]
}

trait Ports:
    MachineRegistry + AkRegistry + ImageRegistry + SecretStore + AuditSink + AttemptLog
{
}

impl<T> Ports for T where
    T: MachineRegistry + AkRegistry + ImageRegistry + SecretStore + AuditSink + AttemptLog
{
}

type Answer = Result<String, PortErrorKind>;

fn answer<T: std::fmt::Debug>(answer: Result<T, PortError>) -> Answer {
    answer.map(|value| format!("{value:?}")).map_err(|error| error.kind())
}

async fn run(ports: &impl Ports, step: &Step) -> Answer {
    match *step {
        Step::Create(id, by, at, limit) => {
            let machine = Machine::unclaimed(sample::machine_id(id), by, sample::time(at));
            answer(ports.create(&machine, limit).await)
        }
        Step::RevokeMachine(id) => {
            answer(MachineRegistry::revoke(ports, &sample::machine_id(id), &sample::line()).await)
        }
        Step::ChangeMachine(id, change) => {
            answer(ports.change(&sample::machine_id(id), change, &sample::line()).await)
        }
        Step::RemoveMachine(id) => {
            answer(MachineRegistry::remove(ports, &sample::machine_id(id)).await)
        }
        Step::Expire(before) => answer(ports.expire_unclaimed(sample::time(before)).await),
        Step::Submit(key, machine, ek) => {
            answer(ports.submit(&ak(key, machine, ek), &sample::line()).await)
        }
        Step::Bind(key, machine, ek) => {
            let record = ak(key, machine, ek);
            let approved = crate::ak::ApprovedAk::dangerous_assume_approved(record);
            answer(ports.bind(&approved, &sample::line()).await)
        }
        Step::RevokeAk(key) => answer(
            AkRegistry::revoke(ports, &sample::public_key(key).fingerprint(), &sample::line())
                .await,
        ),
        _ => run_other(ports, step).await,
    }
}

fn ak(key: u64, machine: u64, ek: Option<u64>) -> crate::ak::AkRecord {
    let mut record = sample::ak(key, machine);
    record.ek = ek.map(|ek| sample::public_key(ek).fingerprint());
    record.submitted_at = sample::time(i64::try_from(machine).unwrap());
    let source = [192, 0, 2, u8::try_from(key % 3).unwrap()];
    record.source = (!key.is_multiple_of(4)).then(|| crate::ak::SourceNetwork::of(source.into()));
    record
}

async fn run_other(ports: &impl Ports, step: &Step) -> Answer {
    match *step {
        Step::PutImage(number) => answer(ports.put(&sample::image(number)).await),
        Step::RevokeImage(number, at) => {
            let name = sample::image_name(number);
            answer(ImageRegistry::revoke(ports, &name, &sample::line_at(at)).await)
        }
        Step::PutSecret(machine, secret) => {
            let path = sample::secret_path(machine);
            answer(ports.put_new(&path, &sample::secret(secret), &sample::line()).await)
        }
        Step::RemoveSecret(machine) => {
            answer(SecretStore::remove(ports, &sample::secret_path(machine)).await)
        }
        Step::Append(number) => answer(ports.append(&sample::audit_event(number)).await),
        Step::Record(id, machine) => answer(ports.record(&sample::attempt(id, machine)).await),
        Step::RecordInBoot(id, boot, refused) => {
            let mut attempt = sample::attempt_in_boot(id, boot);
            if refused {
                attempt.ladder.fail(Gate::Pcrs, "differs");
            }
            answer(ports.record(&attempt).await)
        }
        _ => Ok(String::new()),
    }
}

/// Everything that the ports report.
async fn state(ports: &impl Ports) -> Vec<Answer> {
    let mut state = vec![
        answer(MachineRegistry::list(ports, None, 100).await),
        answer(AkRegistry::list(ports, None).await),
        answer(ImageRegistry::list(ports).await),
        answer(ports.latest(None, 10_000).await),
    ];
    for machine in 0..5 {
        let id = sample::machine_id(machine);
        state.push(answer(ports.bound_to(&id).await));
        let source = [192, 0, 2, u8::try_from(machine % 3).unwrap()];
        let source = crate::ak::SourceNetwork::of(source.into());
        state.push(answer(ports.claims(&source).await));
        state.push(answer(ports.latest(Some(id), 100).await));
        let secret = SecretStore::find(ports, &sample::secret_path(machine)).await;
        let bytes = secret.map(|found| found.map(|found| found.expose("test").to_vec()));
        state.push(answer(bytes));
    }
    state
}

async fn compare(steps: Vec<Step>) {
    let (place, double) = (Place::new(), MemoryRegistry::new());
    let mut store = place.open();
    for step in &steps {
        if matches!(step, Step::Reopen) {
            drop(store);
            store = place.open();
        }
        assert_eq!(run(&store, step).await, run(&double, step).await, "{step:?}");
    }
    assert_eq!(state(&store).await, state(&double).await);
    let events = store.audit_events(0, usize::MAX).unwrap();
    let events: Vec<_> = events.into_iter().map(|entry| entry.event).collect();
    assert_eq!(events, double.events());
    let unclaimed: i64 = place
        .raw()
        .query_row(
            "SELECT machines = (SELECT count(*) FROM machine WHERE state = 'unclaimed') \
             FROM unclaimed",
            (),
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(unclaimed, 1, "the counter counts");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn store_and_double_cannot_be_told_apart(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(compare(steps));
    }
}
