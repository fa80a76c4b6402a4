//! Deadlines as moments in time.

use std::time::{Duration, Instant};

/// Returns the moment that is `span` from now. A span that is too long, such as [`Duration::MAX`], gives a
/// moment a century away.
pub(super) fn later(span: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);
    let now = Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_is_too_long() {
        assert!(later(Duration::MAX) > later(Duration::from_secs(86_400)));
        assert!(later(Duration::from_secs(1)) <= Instant::now() + Duration::from_secs(1));
    }
}
