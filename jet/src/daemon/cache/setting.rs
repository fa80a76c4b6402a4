//! An optional setting of the system: left alone, set, or failed with a reason.

use super::CacheError;
use jet_control::status::SettingStatus;

/// State of an optional setting.
#[derive(Debug, Default)]
pub(super) enum Setting<T> {
    /// The configuration does not ask for the setting, so nothing was changed.
    #[default]
    Left,
    /// The setting is made as configured.
    Set(T),
    /// The setting could not be made. The text is the reason.
    Failed(String),
}

impl<T> Setting<T> {
    /// Converts the result of making a setting. An error is returned if `required`, and otherwise logged
    /// after the text `failed`.
    pub fn of(
        failed: &str,
        result: Result<Option<T>, CacheError>,
        required: bool,
    ) -> Result<Self, CacheError> {
        match result {
            Ok(None) => Ok(Self::Left),
            Ok(Some(set)) => Ok(Self::Set(set)),
            Err(error) if required => Err(error),
            Err(error) => {
                tracing::warn!("{failed}: {error}");
                Ok(Self::Failed(error.to_string()))
            }
        }
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Set(set) => Some(set),
            Self::Left | Self::Failed(_) => None,
        }
    }

    /// Returns the reason why the setting failed, if it did.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed(reason) => Some(reason),
            Self::Left | Self::Set(_) => None,
        }
    }

    /// Undoes the setting if it is made. A failure is logged.
    pub fn undo<E: std::fmt::Display>(&mut self, what: &str, undo: impl FnOnce(T) -> Result<(), E>) {
        if let Self::Set(set) = std::mem::take(self)
            && let Err(error) = undo(set)
        {
            tracing::warn!("{what} not put back: {error}; the next start, or jet cache restore, tries again");
        }
    }

    pub fn status(&self) -> SettingStatus {
        match self {
            Self::Left => SettingStatus::Left,
            Self::Set(_) => SettingStatus::Set,
            Self::Failed(reason) => SettingStatus::Failed { reason: reason.clone() },
        }
    }
}
