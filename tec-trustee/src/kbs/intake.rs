//! Receives what strangers send: bounded in size, in time, and in total.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::budget::{Budget, Charge};
use super::reply::Refusal;
use crate::wire::ErrorKind;

/// Time by which a body must have arrived.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body of `POST auth`, in either direction; real ones have about 200 bytes.
pub(crate) const MAX_AUTH: usize = 64 * 1024;
/// Maximum number of bytes of all bodies that a key broker holds at a time.
pub(crate) const HELD: usize = 64 * 1024 * 1024;
/// The part of them that one network may send, as a divisor.
const SHARE: usize = 4;
/// Bytes that all evidence being read and verified may take; see [`weight`].
pub(crate) const WORK: usize = 64 * 1024 * 1024;
/// Bytes per unit of accounting.
const UNIT: usize = 4096;
/// Maximum number of values in one JSON document: evidence with certificates as lists of numbers has about
/// 15,000.
pub(crate) const MAX_VALUES: usize = 65_536;
/// Bytes that a JSON value takes at most in addition to its text: a member of an object, with its name.
const VALUE: usize = 128;
/// Copies of the text of evidence: parsed, decoded, and the findings from it.
const COPIES: usize = 4;

/// Receives bodies. The bytes received count as long as their [`Received`] lives, so a client that announces
/// much and sends nothing takes no room from others.
#[derive(Debug)]
pub(crate) struct Intake {
    room: Budget,
    work: Arc<Semaphore>,
    within: Duration,
}

/// A whole body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _room: Charge,
}

impl Intake {
    /// Each body must arrive within this time, and all of them together have at most `held` bytes.
    pub(crate) fn new(within: Duration, held: usize) -> Self {
        Self { room: Budget::new(held, SHARE), work: Arc::new(Semaphore::new(WORK / UNIT)), within }
    }

    /// Reads a body of at most `max` bytes. One that is already there needs no timer, and so no runtime.
    pub(crate) async fn receive(
        &self,
        body: Body,
        peer: Option<IpAddr>,
        max: usize,
    ) -> Result<Received, Refusal> {
        let mut reading = pin!(self.collect(body, self.room.charge(peer), max));
        let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if let Poll::Ready(received) = first {
            return received;
        }
        timeout(self.within, reading).await.map_err(|_elapsed| {
            let detail = "the body did not come in time";
            Refusal::new(&ErrorKind::AttestationError, detail)
        })?
    }

    async fn collect(
        &self,
        mut body: Body,
        mut room: Charge,
        max: usize,
    ) -> Result<Received, Refusal> {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            // When a body is cut off, nobody is left to answer.
            let frame = frame.map_err(|_| Refusal::too_large())?;
            // Trailers have no meaning here.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = bytes.len().saturating_add(data.len());
            if length > max {
                return Err(Refusal::too_large());
            }
            bytes.reserve(data.len());
            if !room.grow_to(bytes.capacity()) {
                return Err(Refusal::busy("too much is being sent, try again later"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Received { bytes: bytes.into(), _room: room })
    }

    /// Waits until this much evidence may be read and verified.
    pub(crate) async fn work(&self, length: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let units = weight(length).div_ceil(UNIT).min(WORK / UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let waiting = Arc::clone(&self.work).acquire_many_owned(units);
        let mut waiting = pin!(waiting);
        let first = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
        let permit = match first {
            Poll::Ready(permit) => Ok(permit),
            Poll::Pending => timeout(self.within, waiting).await,
        };
        permit
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Refusal::busy("too much evidence is being verified, try again later"))
    }
}

/// Bytes that evidence of this length takes at most while it is read and verified.
pub(crate) fn weight(length: usize) -> usize {
    let values = length.min(MAX_VALUES);
    length.saturating_mul(COPIES).saturating_add(values * VALUE)
}

/// Refuses a body with an announced length above `max` bytes before any of it is read.
pub(crate) fn announced(headers: &HeaderMap, max: usize) -> Result<(), Refusal> {
    let length =
        headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    match length {
        Some(length) if length > max => Err(Refusal::too_large()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::never;

    #[tokio::test]
    async fn bodies_are_bounded_alone_and_together() {
        let intake = Intake::new(BODY_TIMEOUT, 128 << 20);
        let receive = |length: usize| {
            let body = Body::from(vec![b' '; length]);
            intake.receive(body, None, 64 << 20)
        };
        assert_eq!(receive(9).await.unwrap().bytes.len(), 9);
        assert!(receive((64 << 20) + 1).await.is_err());
        let held = (receive(64 << 20).await.unwrap(), receive(64 << 20).await);
        assert!(held.1.is_ok());
        let refused = receive(1).await.unwrap_err();
        assert_eq!(refused.into_response().status(), 503);
        drop(held);
        assert!(receive(1).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let intake = Intake::new(Duration::from_millis(20), 100);
        let refused = intake.receive(never(), None, 9).await.unwrap_err();
        assert_eq!(refused.into_response().status(), 401);
    }

    #[tokio::test]
    async fn bodies_of_one_network_leave_room_for_those_of_others() {
        let intake = Intake::new(BODY_TIMEOUT, 4 << 20);
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let body = || Body::from(vec![b' '; 1 << 20]);
        let held = intake.receive(body(), one, 2 << 20).await.unwrap();
        let refused = intake.receive(Body::from("a"), one, 2 << 20).await;
        assert_eq!(refused.unwrap_err().into_response().status(), 503);
        assert!(intake.receive(body(), other, 2 << 20).await.is_ok());
        drop(held);
        assert!(intake.receive(body(), one, 2 << 20).await.is_ok());
    }

    #[tokio::test]
    async fn evidence_is_verified_as_far_as_there_is_memory_and_then_waits() {
        let intake = Intake::new(Duration::from_millis(20), 4 << 20);
        let most = WORK / weight(2 << 20);
        let mut held = Vec::new();
        for _ in 0..most {
            held.push(intake.work(2 << 20).await.unwrap());
        }
        let refused = intake.work(2 << 20).await.unwrap_err();
        assert_eq!(refused.into_response().status(), 503);
        held.pop();
        assert!(intake.work(2 << 20).await.is_ok());
    }
}
