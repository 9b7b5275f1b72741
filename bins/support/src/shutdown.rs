//! The end of a program.

use tokio::sync::watch;

use crate::program::stopped;

/// Tells every loop of a program to end.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A shutdown that SIGTERM and SIGINT trigger.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn on_signals() -> anyhow::Result<(Self, impl Future<Output = ()>)> {
        let (sender, receiver) = watch::channel(false);
        let stopped = stopped()?;
        let wait = async move {
            stopped.await;
            let _ = sender.send(true);
        };
        Ok((Self(receiver), wait))
    }

    /// One that a test triggers.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Whether the program shall end.
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs something that would go on for ever, until the program shall end.
    ///
    /// # Errors
    /// Never; the type is that of a part of a program.
    pub async fn until(mut self, endless: impl Future<Output = ()>) -> anyhow::Result<()> {
        tokio::select! {
            () = endless => {},
            () = self.triggered() => {},
        }
        Ok(())
    }

    /// Resolves when the program shall end.
    pub async fn triggered(&mut self) {
        // A dropped sender ends the program, too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
