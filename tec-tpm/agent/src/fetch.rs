//! Obtains the key: rounds over the servers, and when to stop asking.
//!
//! ```text
//! round ─┬─ key ───────────────────────────► done
//!        ├─ no server answered ── 1 s … 30 s ─► next round, up to num_retries
//!        └─ refused ── 20 s … 120 s ─────────► two more rounds, then give up
//! ```
//!
//! Somebody in front of the machine is told of a refusal at once, and of silence from the second round on.

use std::error::Error;
use std::fmt;

use async_trait::async_trait;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_core::ignition::NumRetries;
use tec_core::port::{Entropy, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_trustee::client::RcarError;

use crate::backoff::Backoff;
use crate::report::Report;

/// Number of rounds if the configuration has none (clevis-pin-trustee).
const DEFAULT_ROUNDS: u32 = 10;
/// Further rounds after a refusal: one in case the quote raced with a measurement, and one spare.
const ROUNDS_AFTER_REFUSAL: u32 = 2;

/// One round: asks every server once, in order.
#[async_trait]
pub(crate) trait KeyRound: fmt::Debug + Send + Sync {
    /// Asks.
    async fn ask(&self) -> Result<SecretBytes, FetchError>;
}

/// Whether asking again can change the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No server answered, or none could decide; one may later.
    Unanswered,
    /// A server refused, possibly because it does not know this machine yet.
    Unsettled,
    /// A server refused.
    Refused,
    /// This node cannot send a request at all.
    Hopeless,
}

/// When in a machine's life the key is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Right after the registration: it may take a moment until servers know the machine.
    FirstBoot,
    /// On a later boot: servers know the machine, or have forgotten it.
    LaterBoot,
    /// While a disk is bound to other servers, which must have the key.
    Moving,
}

/// No server released the key in this round.
#[derive(Debug, thiserror::Error)]
#[error("tried {servers}")]
#[non_exhaustive]
pub struct FetchError {
    code: Code,
    verdict: Verdict,
    attempt: Option<AttemptId>,
    servers: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

impl FetchError {
    /// A failed round over `servers`, in words for people.
    pub(crate) fn new(
        code: Code,
        verdict: Verdict,
        servers: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { code, verdict, attempt: None, servers: servers.into(), source: source.into() }
    }

    /// Adds the attempt under which the server recorded the reason.
    pub(crate) fn of_attempt(mut self, attempt: Option<AttemptId>) -> Self {
        self.attempt = attempt;
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The attempt, if the server reported it.
    pub fn attempt(&self) -> Option<AttemptId> {
        self.attempt
    }

    /// What to show of it while another round follows.
    pub(crate) fn report(&self, machine: Option<MachineId>) -> Report {
        Report::new(self.code, chain(self)).of_attempt(self.attempt).of_machine(machine)
    }

    /// Whether a server refused, as opposed to no server being reachable.
    pub fn is_refusal(&self) -> bool {
        matches!(self.verdict, Verdict::Refused | Verdict::Unsettled)
    }

    /// Whether the failure is that the TPM holds no attestation key.
    pub fn is_for_want_of_ak(&self) -> bool {
        match self.source.downcast_ref::<RcarError>() {
            Some(RcarError::Attester(error)) => error.kind() == PortErrorKind::NotFound,
            _ => false,
        }
    }

    /// On the first boot, the registration may not have reached all servers yet.
    fn verdict(&self, stage: Stage) -> Verdict {
        match (self.verdict, stage) {
            (Verdict::Unsettled, Stage::FirstBoot) => Verdict::Unanswered,
            (Verdict::Unsettled, Stage::LaterBoot | Stage::Moving) => Verdict::Refused,
            (verdict, _) => verdict,
        }
    }
}

/// Asks until a key is released, the rounds are used up, or the refusal is final. `waits` gets the error of
/// a round after which another follows, unless it has the code of the one before.
///
/// # Cancel safety
/// Nothing is kept between rounds, so dropping the future loses nothing.
pub(crate) async fn fetch_key(
    round: &dyn KeyRound,
    retries: Option<NumRetries>,
    stage: Stage,
    entropy: &dyn Entropy,
    waits: &(dyn Fn(&FetchError) + Sync),
) -> Result<SecretBytes, FetchError> {
    let (mut is_first, mut told) = (true, None);
    let mut left = Rounds::new(retries.unwrap_or(NumRetries::Rounds(DEFAULT_ROUNDS)));
    let (mut short, mut long) = (Backoff::short(entropy), Backoff::long(entropy));
    loop {
        let error = match round.ask().await {
            Ok(key) => return Ok(key),
            Err(error) => error,
        };
        let verdict = error.verdict(stage);
        // An initramfs that has ended does not come back in this boot.
        let is_final = verdict == Verdict::Hopeless || error.code == Code::InitramfsEnded;
        if is_final || !left.allow_another(verdict) {
            return Err(error);
        }
        tracing::info!(code = %error.code, ?verdict, "no key in this round");
        // A network may still be coming up.
        let is_soon = is_first && verdict == Verdict::Unanswered;
        if !is_soon && told.replace(error.code) != Some(error.code) {
            waits(&error);
        }
        is_first = false;
        match verdict {
            Verdict::Unanswered => short.wait().await,
            _ => long.wait().await,
        }
    }
}

/// The remaining rounds, if they are limited.
#[derive(Debug)]
struct Rounds {
    all: Option<u32>,
    refused: Option<u32>,
}

impl Rounds {
    fn new(retries: NumRetries) -> Self {
        match retries {
            NumRetries::Rounds(rounds) => {
                Self { all: Some(rounds), refused: Some(ROUNDS_AFTER_REFUSAL + 1) }
            }
            // `Infinity`: the admin wants the node to keep asking, if slowly.
            _ => Self { all: None, refused: None },
        }
    }

    /// Counts a failed round; returns whether another may follow.
    fn allow_another(&mut self, verdict: Verdict) -> bool {
        let used_up = |left: &mut Option<u32>| {
            left.as_mut().is_some_and(|left| {
                *left = left.saturating_sub(1);
                *left == 0
            })
        };
        let refused = verdict == Verdict::Refused && used_up(&mut self.refused);
        !used_up(&mut self.all) && !refused
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tec_core::testing::SeededEntropy;
    use tokio::time::Instant;

    use super::*;

    /// Fails with these codes in order, then returns a key.
    #[derive(Debug)]
    struct Script(Mutex<Vec<(Code, Verdict)>>, Mutex<u32>);

    impl Script {
        fn new(failures: &[(Code, Verdict)]) -> Self {
            Self(Mutex::new(failures.iter().rev().copied().collect()), Mutex::new(0))
        }

        fn rounds(&self) -> u32 {
            *self.1.lock().unwrap()
        }
    }

    #[async_trait]
    impl KeyRound for Script {
        async fn ask(&self) -> Result<SecretBytes, FetchError> {
            *self.1.lock().unwrap() += 1;
            match self.0.lock().unwrap().pop() {
                None => Ok(SecretBytes::new(vec![1])),
                Some((code, verdict)) => {
                    Err(FetchError::new(code, verdict, "http://a", "scripted"))
                }
            }
        }
    }

    const DOWN: (Code, Verdict) = (Code::ServerUnreachable, Verdict::Unanswered);
    const PCR: (Code, Verdict) = (Code::PcrMismatch, Verdict::Refused);
    const UNBOUND: (Code, Verdict) = (Code::AkNotBound, Verdict::Unsettled);
    const NO_TPM: (Code, Verdict) = (Code::NodeTpm, Verdict::Hopeless);

    async fn run(
        script: &Script,
        retries: Option<NumRetries>,
        stage: Stage,
    ) -> (Result<(), Code>, u64) {
        let start = Instant::now();
        let result = fetch_key(script, retries, stage, &SeededEntropy::new(1), &|_| ()).await;
        (result.map(drop).map_err(|error| error.code()), start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_told_of_a_refusal_at_once_and_of_silence_that_lasts_once() {
        let start = Instant::now();
        let told = Mutex::new(Vec::new());
        let waits = |error: &FetchError| {
            told.lock().unwrap().push((error.code(), start.elapsed().as_secs()));
        };
        let script = Script::new(&[PCR, PCR, PCR]);
        let entropy = SeededEntropy::new(1);
        fetch_key(&script, None, Stage::LaterBoot, &entropy, &waits).await.unwrap_err();
        assert_eq!(told.lock().unwrap().drain(..).collect::<Vec<_>>(), [(Code::PcrMismatch, 0)]);
        let script = Script::new(&[DOWN, DOWN, DOWN, PCR]);
        fetch_key(&script, None, Stage::LaterBoot, &entropy, &waits).await.unwrap();
        let codes: Vec<_> = told.lock().unwrap().drain(..).map(|(code, _)| code).collect();
        assert_eq!(codes, [Code::ServerUnreachable, Code::PcrMismatch]);
        let script = Script::new(&[DOWN]);
        fetch_key(&script, None, Stage::LaterBoot, &entropy, &waits).await.unwrap();
        assert!(told.lock().unwrap().is_empty(), "a network that is just coming up");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_down_are_asked_again_ten_times_by_default() {
        let script = Script::new(&[DOWN; 20]);
        let (result, seconds) = run(&script, None, Stage::LaterBoot).await;
        assert_eq!(result, Err(Code::ServerUnreachable));
        assert_eq!(script.rounds(), 10);
        assert!((75..=151).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_retried_twice_and_slowly() {
        let script = Script::new(&[PCR; 20]);
        let (result, seconds) = run(&script, None, Stage::LaterBoot).await;
        assert_eq!(result, Err(Code::PcrMismatch));
        assert_eq!(script.rounds(), 3);
        assert!((30..=60).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_comes_after_failures_is_taken() {
        let script = Script::new(&[DOWN, DOWN, PCR]);
        let (result, _) = run(&script, None, Stage::LaterBoot).await;
        assert_eq!(result, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_rounds_are_obeyed_and_infinity_outlasts_refusals() {
        let script = Script::new(&[PCR; 20]);
        let (result, _) = run(&script, Some(one()), Stage::LaterBoot).await;
        assert_eq!((result, script.rounds()), (Err(Code::PcrMismatch), 1));
        let script = Script::new(&[PCR; 20]);
        let (result, _) = run(&script, Some(NumRetries::Infinity), Stage::LaterBoot).await;
        assert_eq!((result, script.rounds()), (Ok(()), 21));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_cannot_ask_gives_up_at_once() {
        let script = Script::new(&[NO_TPM]);
        let (result, _) = run(&script, Some(NumRetries::Infinity), Stage::FirstBoot).await;
        assert_eq!((result, script.rounds()), (Err(Code::NodeTpm), 1));
    }

    fn one() -> NumRetries {
        serde_json::from_str("1").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_initramfs_there_is_nothing_to_wait_for() {
        let script = Script::new(&[(Code::InitramfsEnded, Verdict::Refused)]);
        let (result, seconds) = run(&script, Some(NumRetries::Infinity), Stage::LaterBoot).await;
        assert_eq!((result, seconds), (Err(Code::InitramfsEnded), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn on_the_first_boot_servers_get_time_to_learn_of_the_machine() {
        let script = Script::new(&[UNBOUND; 5]);
        let (result, _) = run(&script, None, Stage::FirstBoot).await;
        assert_eq!(result, Ok(()));
        let script = Script::new(&[UNBOUND; 5]);
        let (result, _) = run(&script, None, Stage::LaterBoot).await;
        assert_eq!((result, script.rounds()), (Err(Code::AkNotBound), 3));
    }
}
