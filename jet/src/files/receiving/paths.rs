//! Paths that are too long for a header. Each path is sent once, and later messages refer to the path by
//! (sender, file id).

use crate::files::parts::Key;
use std::collections::HashMap;

/// Limit of the paths that are remembered. Beyond that limit the oldest path is forgotten, and its sender
/// sends it again.
const PATHS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: HashMap<Key, (Vec<u8>, u64)>,
    clock: u64,
}

impl Paths {
    pub(super) fn remember(&mut self, key: Key, path: &[u8]) {
        self.clock += 1;
        if self.paths.len() >= PATHS_MAX
            && !self.paths.contains_key(&key)
            && let Some(oldest) =
                self.paths.iter().min_by_key(|(_, (_, said_at))| *said_at).map(|(&key, _)| key)
        {
            self.paths.remove(&oldest);
        }
        self.paths.insert(key, (path.to_vec(), self.clock));
    }

    pub(super) fn get(&self, key: Key) -> Option<&[u8]> {
        self.paths.get(&key).map(|(path, _)| &path[..])
    }

    pub(super) fn forget(&mut self, key: Key) {
        self.paths.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut paths = Paths::default();
        for file_id in 0..=PATHS_MAX as u64 {
            paths.remember((1, file_id), b"path");
        }
        assert_eq!(paths.get((1, 0)), None);
        assert_eq!(paths.get((1, 1)), Some(&b"path"[..]));
        paths.forget((1, 1));
        assert_eq!((paths.get((1, 1)), paths.paths.len()), (None, PATHS_MAX - 1));
    }
}
