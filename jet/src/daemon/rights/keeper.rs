//! The rights that hold now. An operator has them read again without a restart.

use super::Rights;
use super::accounts;
use super::config::RightsConfig;
use crate::daemon::ConfigError;
use std::sync::Arc;
use tokio::sync::{Mutex, watch};

/// Reads the section `[rights]` of the configuration.
pub type ReadRights = Arc<dyn Fn() -> Result<RightsConfig, ConfigError> + Send + Sync>;

/// The rights, for all who decide by them.
pub struct RightsKeeper {
    now: watch::Sender<Arc<Rights>>,
    read: ReadRights,
    /// Held while the rights are read, so that they never go back to what was read before.
    reading: Mutex<()>,
}

impl RightsKeeper {
    /// Makes a keeper of the rights that were read at the start.
    pub fn new(rights: Rights, read: ReadRights) -> Self {
        Self { now: watch::Sender::new(Arc::new(rights)), read, reading: Mutex::new(()) }
    }

    /// Returns the rights that hold now.
    pub fn now(&self) -> Arc<Rights> {
        Arc::clone(&self.now.borrow())
    }

    /// Returns an end that hears when the rights are others.
    pub fn watch(&self) -> watch::Receiver<Arc<Rights>> {
        self.now.subscribe()
    }

    /// Reads the rights again. Looking up accounts may take long, and holds up nobody meanwhile.
    ///
    /// # Errors
    /// [`ConfigError`]: the configuration is invalid, and the rights stay as they were.
    pub async fn read_again(&self) -> Result<(), ConfigError> {
        let _reading = self.reading.lock().await;
        let read = Arc::clone(&self.read);
        let read = move || -> Result<Rights, ConfigError> { Ok(accounts::resolve(&read()?)?) };
        let rights = tokio::task::spawn_blocking(read).await.expect("reading does not panic")?;
        self.now.send_replace(Arc::new(rights));
        Ok(())
    }
}
