//! Something that is set where that is configured and can be, and is told of where not.

use super::CacheError;
use jet_control::status::SettingStatus;

/// What became of it.
#[derive(Debug, Default)]
pub(super) enum Setting<T> {
    /// It is as it was.
    #[default]
    Left,
    /// What is configured is set.
    Set(T),
    /// It could not be, and why.
    Failed(String),
}

impl<T> Setting<T> {
    /// What was tried; a failure is one of the daemon's where it is `required`, else it is said.
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

    /// Why it could not be.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed(reason) => Some(reason),
            Self::Left | Self::Set(_) => None,
        }
    }

    /// Undoes it, as far as it is set; what cannot be undone is said.
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
