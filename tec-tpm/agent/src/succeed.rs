//! Replaces the attestation key by one that it certifies.
//!
//! ```text
//! in the TPM           main   next    in use   server
//!                      old    -       old      old bound
//! named                old    -       old      old bound, new its successor
//! stored               old    new     new      "
//! attested             old    new     new      new bound, old revoked
//! old removed          -      new     new      "
//! stored again         new    new     new      "
//! end                  new    -       new      "
//! ```
//! Power may fail at each line: the server accepts the key in use. A run that finds a key at the next handle
//! continues with it: the new one goes to the main handle, and is in use once the next handle is free. If the server
//! was restored from a backup and accepts the main key instead, the run starts over with that one.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tec_core::ak::succession_data;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::ignition::HeaderConfig;
use tec_core::port::Entropy;
use tec_tpm::ak::AkHandle;
use tec_tpm::direct::NewAk;
use tec_trustee::client::{Outcome, RcarClient, RcarError};
use tec_trustee::wire::token_claims;

use crate::disk;
use crate::disk::{DiskError, Header};
use crate::failure::Failure;
use crate::kbs::{client, fetch_error, refusal};
use crate::key::Shown;
use crate::rotate::common_config;
use crate::settings::Settings;
use crate::tpm::{NodeTpm, Place};

/// The TPM of this node, and the key broker of its disks. `K` is a new key that is stored nowhere yet.
#[async_trait]
trait Ports<K>: fmt::Debug + Send + Sync {
    /// Where the key in use is.
    fn in_use(&self) -> Result<Place, Failure>;

    /// Creates a new key, and has the server record it as the successor of the one at `present`.
    async fn name(&self, present: Place) -> Result<K, Failure>;

    /// Stores a new key.
    fn store(&self, new: &K, place: Place) -> Result<(), Failure>;

    /// Removes the key at a place, if there is one.
    fn evict(&self, place: Place) -> Result<(), Failure>;

    /// Attests with the key at a place.
    async fn attest(&self, place: Place) -> Result<(), Failure>;
}

/// Replaces the attestation key.
///
/// # Errors
/// `Disk`, `Tpm`, `Servers`, `Fetch`, `Rotation`, `NotOffered`. The server accepts the key in use.
pub async fn rotate(
    settings: &Settings,
    devices: &[PathBuf],
    entropy: &Arc<dyn Entropy>,
) -> Result<Shown, Failure> {
    let disks = disk::bound(devices)?;
    let headers: Vec<&dyn Header> = disks.iter().map(|disk| disk as &dyn Header).collect();
    // Two runs at the same time would remove each other's keys.
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    let config = common_config(&headers)?.ok_or(Failure::Disk(DiskError::NoToken))?;
    let reason = "the path in the pin names no machine";
    let machine = config.path.machine().ok_or(Failure::Rotation { reason })?;
    let reason = "there is no handle after that of the attestation key";
    let next = settings.ak_handle.next().ok_or(Failure::Rotation { reason })?;
    let client = client(settings, &config.servers, entropy)?;
    let ports = Remote { settings, tpm: NodeTpm::open(settings)?, next, client, config, machine };
    let new = follow(&ports).await?;
    let public = new.key().public().clone();
    Ok(Shown { handle: settings.ak_handle, public, registered_for: Some(machine) })
}

/// Can be run again after a crash at any point.
async fn follow<K: Send + Sync>(ports: &dyn Ports<K>) -> Result<K, Failure> {
    match accepted(ports).await? {
        Place::Main => {
            let new = ports.name(Place::Main).await?;
            ports.store(&new, Place::Next)?;
            // The old key stays until the server has bound the new one.
            ports.attest(Place::Next).await?;
            ports.evict(Place::Main)?;
            ports.store(&new, Place::Main)?;
            ports.evict(Place::Next)?;
            Ok(new)
        }
        Place::Next => {
            let new = ports.name(Place::Next).await?;
            ports.evict(Place::Main)?;
            ports.store(&new, Place::Main)?;
            ports.evict(Place::Next)?;
            ports.attest(Place::Main).await?;
            Ok(new)
        }
    }
}

/// Where the key is that the server accepts; the other one goes if it is not known to the server.
async fn accepted<K>(ports: &dyn Ports<K>) -> Result<Place, Failure> {
    if ports.in_use()? == Place::Main {
        return Ok(Place::Main);
    }
    let Err(refused) = ports.attest(Place::Next).await else {
        return Ok(Place::Next);
    };
    // One key of a machine is accepted at a time.
    ports.attest(Place::Main).await.or(Err(refused))?;
    ports.evict(Place::Next)?;
    Ok(Place::Main)
}

/// Uses the network, and the TPM of this machine.
#[derive(Debug)]
struct Remote<'a> {
    settings: &'a Settings,
    tpm: NodeTpm,
    next: AkHandle,
    client: RcarClient,
    config: HeaderConfig,
    machine: MachineId,
}

impl Remote<'_> {
    fn at(&self, place: Place) -> NodeTpm {
        self.tpm.at(match place {
            Place::Main => self.settings.ak_handle,
            Place::Next => self.next,
        })
    }

    fn failed(&self, error: RcarError) -> Failure {
        Failure::Fetch(fetch_error(&self.config.servers, error))
    }
}

#[async_trait]
impl Ports<NewAk> for Remote<'_> {
    fn in_use(&self) -> Result<Place, Failure> {
        Ok(if self.tpm.handle() == self.next { Place::Next } else { Place::Main })
    }

    async fn name(&self, present: Place) -> Result<NewAk, Failure> {
        let tpm = self.at(present);
        let created = Mutex::new(None);
        let certify = |nonce: &str| {
            let new = tpm.create_successor(&succession_data(nonce, &self.machine))?;
            let offer = new.offer().clone();
            *created.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
            Ok(offer)
        };
        let attester = tpm.attester(self.settings.read_event_log());
        let named = match self.client.name_successor(&attester, &certify).await {
            // Trustee returns no code.
            Err(RcarError::Denied { code: None | Some(Code::RegisterNotFound), .. }) => {
                return Err(Failure::NotOffered);
            }
            named => named.map_err(|error| self.failed(error))?,
        };
        let created = created.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_it = |new: &NewAk| new.key().public().fingerprint() == named;
        let reason = "the key broker recorded another key";
        created.filter(is_it).ok_or(Failure::Rotation { reason })
    }

    fn store(&self, new: &NewAk, place: Place) -> Result<(), Failure> {
        self.at(place).store_ak(new)
    }

    fn evict(&self, place: Place) -> Result<(), Failure> {
        self.at(place).evict_ak()
    }

    async fn attest(&self, place: Place) -> Result<(), Failure> {
        let attester = self.at(place).attester(self.settings.read_event_log());
        let token = self.client.token(&attester).await.map_err(|error| self.failed(error))?;
        let outcome = Outcome::token(token_claims(&token).unwrap_or_default());
        match refusal(&outcome) {
            None => Ok(()),
            Some(report) => Err(Failure::NotTaken { code: report.code }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A key is a number.
    type Key = u32;

    /// A node and a server with the transitions of the real ones. Power fails before or after a call.
    #[derive(Debug, Default)]
    struct World {
        state: Mutex<State>,
        created: AtomicU32,
        /// Calls that are carried out, and whether the next one is carried out although its answer is lost.
        life: Mutex<Option<(u32, bool)>>,
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct State {
        main: Option<Key>,
        next: Option<Key>,
        bound: Key,
        successor: Option<Key>,
        revoked: Vec<Key>,
    }

    impl State {
        fn at(&mut self, place: Place) -> &mut Option<Key> {
            match place {
                Place::Main => &mut self.main,
                Place::Next => &mut self.next,
            }
        }

        /// Evidence signed by a key: whether the server takes it.
        fn attest(&mut self, key: Key) -> bool {
            if self.successor == Some(key) {
                self.revoked.push(self.bound);
                self.bound = key;
                self.successor = None;
            }
            self.bound == key
        }

        fn in_use(&self) -> Option<Key> {
            self.next.or(self.main)
        }
    }

    const LOST: Failure = Failure::Rotation { reason: "power failed" };

    impl World {
        fn new() -> Self {
            let world = Self::default();
            world.created.store(1, Ordering::Relaxed);
            *world.state.lock().unwrap() = State { main: Some(1), bound: 1, ..State::default() };
            world
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().unwrap()
        }

        fn life(&self) -> MutexGuard<'_, Option<(u32, bool)>> {
            self.life.lock().unwrap()
        }

        fn call<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, Failure> {
            let mut life = self.life();
            let mut state = self.state();
            match &mut *life {
                Some((0, false)) => Err(LOST),
                Some((0, is_done)) => {
                    *is_done = false;
                    work(&mut state);
                    Err(LOST)
                }
                Some((left, _)) => {
                    *left -= 1;
                    Ok(work(&mut state))
                }
                None => Ok(work(&mut state)),
            }
        }
    }

    #[async_trait]
    impl Ports<Key> for World {
        fn in_use(&self) -> Result<Place, Failure> {
            let next = self.state().next;
            Ok(next.map_or(Place::Main, |_| Place::Next))
        }

        async fn name(&self, present: Place) -> Result<Key, Failure> {
            let new = self.created.fetch_add(1, Ordering::Relaxed) + 1;
            self.call(|state| {
                let key = state.at(present).unwrap();
                assert!(state.attest(key), "{state:?}");
                state.successor = Some(new);
                new
            })
        }

        fn store(&self, new: &Key, place: Place) -> Result<(), Failure> {
            self.call(|state| assert_eq!(state.at(place).replace(*new), None, "occupied"))
        }

        fn evict(&self, place: Place) -> Result<(), Failure> {
            self.call(|state| *state.at(place) = None)
        }

        async fn attest(&self, place: Place) -> Result<(), Failure> {
            let is_taken = self.call(|state| {
                let key = *state.at(place);
                key.is_some_and(|key| state.attest(key))
            })?;
            is_taken.then_some(()).ok_or(Failure::NotTaken { code: Code::AkNotBound })
        }
    }

    /// A boot: the key in use is accepted, whatever happened.
    fn assert_boots(world: &World, when: &str) {
        let mut state = world.state.lock().unwrap();
        let key = state.in_use().unwrap_or_else(|| panic!("{when}: no key"));
        assert!(state.attest(key), "{when}: {state:?}");
    }

    #[tokio::test]
    async fn a_rotation_ends_with_the_new_key_at_the_main_handle_alone() {
        let world = World::new();
        assert_eq!(follow(&world).await.unwrap(), 2);
        let expected =
            State { main: Some(2), next: None, bound: 2, successor: None, revoked: vec![1] };
        assert_eq!(*world.state.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn a_server_that_knows_only_the_earlier_key_gets_a_new_one() {
        let world = World::new();
        *world.state() = State { main: Some(1), next: Some(9), bound: 1, ..State::default() };
        assert_eq!(follow(&world).await.unwrap(), 2);
        let expected =
            State { main: Some(2), next: None, bound: 2, successor: None, revoked: vec![1] };
        assert_eq!(*world.state(), expected);
    }

    #[tokio::test]
    async fn no_key_is_removed_that_a_server_may_know() {
        let world = World::new();
        *world.state() = State { main: Some(1), next: Some(2), bound: 3, ..State::default() };
        let before = world.state().clone();
        assert!(follow(&world).await.is_err());
        assert_eq!(*world.state(), before);
    }

    #[tokio::test]
    async fn power_may_fail_twice_anywhere_with_or_without_a_boot_in_between() {
        let lives = || (0..10).flat_map(|calls| [(calls, false), (calls, true)]);
        let mut interrupted = 0;
        for (first, second) in lives().flat_map(|one| lives().map(move |two| (one, two))) {
            for boots in [false, true] {
                let world = World::new();
                for life in [first, second] {
                    *world.life.lock().unwrap() = Some(life);
                    interrupted += u32::from(follow(&world).await.is_err());
                    if boots {
                        assert_boots(&world, &format!("{first:?}, {second:?}"));
                    }
                }
                *world.life.lock().unwrap() = None;
                let new = follow(&world).await.unwrap();
                let state = world.state.lock().unwrap().clone();
                assert_eq!((state.main, state.next), (Some(new), None), "{first:?}, {second:?}");
                assert_eq!((state.bound, state.successor), (new, None), "{state:?}");
            }
        }
        assert!(interrupted > 500, "{interrupted}");
    }
}
