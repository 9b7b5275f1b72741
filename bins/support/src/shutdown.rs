//! Shutdown of a program.

use tokio::sync::watch;

use crate::program::stopped;

/// Tells every loop of a program to stop.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A shutdown that SIGTERM and SIGINT trigger.
    pub fn on_signals() -> anyhow::Result<(Self, impl Future<Output = ()>)> {
        let (sender, receiver) = watch::channel(false);
        let stopped = stopped()?;
        let wait = async move {
            stopped.await;
            let _ = sender.send(true);
        };
        Ok((Self(receiver), wait))
    }

    /// A shutdown that a test triggers.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether the program must stop.
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs an endless future until the program must stop.
    /// Errors: never; the type matches that of other parts of a program.
    pub async fn until(mut self, endless: impl Future<Output = ()>) -> anyhow::Result<()> {
        tokio::select! {
            () = endless => {},
            () = self.triggered() => {},
        }
        Ok(())
    }

    /// Resolves when the program must stop.
    pub async fn triggered(&mut self) {
        // A dropped sender stops the program, too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
