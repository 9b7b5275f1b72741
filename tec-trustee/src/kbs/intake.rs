//! Taking in what strangers send: bounded in size, in time, and in all.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::reply::Refusal;
use crate::wire::ErrorKind;

/// A body must have come by then.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body of `POST auth`, in either direction; real ones have about 200 bytes.
pub(crate) const MAX_AUTH: usize = 64 * 1024;
/// Bytes of all bodies that are held at a time.
const MAX_HELD: usize = 128 * 1024 * 1024;
/// Bytes that are counted as one.
const UNIT: usize = 4096;

/// Takes in bodies. What came of one counts as long as its [`Received`] lives, so who announces
/// much and sends nothing takes no room from others.
#[derive(Debug)]
pub(crate) struct Intake {
    room: Arc<Semaphore>,
    within: Duration,
}

/// A whole body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// Each body must come within this time.
    pub(crate) fn new(within: Duration) -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_HELD / UNIT)),
            within,
        }
    }

    /// Reads a body of at most `max` bytes. One that is there already needs no timer, and so no
    /// runtime.
    pub(crate) async fn receive(&self, body: Body, max: usize) -> Result<Received, Refusal> {
        let mut reading = pin!(self.collect(body, max));
        let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if let Poll::Ready(received) = first {
            return received;
        }
        timeout(self.within, reading).await.map_err(|_elapsed| {
            let detail = "the body did not come in time";
            Refusal::new(&ErrorKind::AttestationError, detail)
        })?
    }

    async fn collect(&self, mut body: Body, max: usize) -> Result<Received, Refusal> {
        let (mut bytes, mut room) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            // A body that breaks off has nobody left to be answered.
            let frame = frame.map_err(|_| Refusal::too_large())?;
            // Trailers mean nothing to anybody here.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = bytes.len().saturating_add(data.len());
            if length > max {
                return Err(Refusal::too_large());
            }
            self.hold(&mut room, length.div_ceil(UNIT))?;
            bytes.extend_from_slice(&data);
        }
        Ok(Received {
            bytes: bytes.into(),
            _room: room,
        })
    }

    /// Makes `room` as large as `units`, if there is that much.
    fn hold(&self, room: &mut Option<OwnedSemaphorePermit>, units: usize) -> Result<(), Refusal> {
        let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(units.saturating_sub(held)).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.room)
            .try_acquire_many_owned(more)
            .map_err(|_| Refusal::busy("too much is being sent, try again later"))?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
    }
}

/// Refuses a body that is announced to be larger than `max` bytes before any of it is read.
pub(crate) fn announced(headers: &HeaderMap, max: usize) -> Result<(), Refusal> {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
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
        let intake = Intake::new(BODY_TIMEOUT);
        let receive = |length: usize| intake.receive(Body::from(vec![b' '; length]), 64 << 20);
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
        let intake = Intake::new(Duration::from_millis(20));
        let refused = intake.receive(never(), 9).await.unwrap_err();
        assert_eq!(refused.into_response().status(), 401);
    }
}
