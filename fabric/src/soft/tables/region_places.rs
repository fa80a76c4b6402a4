//! Places for regions of peers that a NIC reads: how many there are altogether, and who has them.
//!
//! A region takes a place, and its file takes another for as long as it is open. A source has at most three
//! quarters of each kind, so one process keeps nobody else out. A place is given back when what it was taken
//! for is dropped, on whatever thread that happens.

use crate::nic::RegionError;
use crate::source::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places that are taken.
#[derive(Debug, Default)]
struct Taken {
    regions: AtomicU32,
    files: AtomicU32,
}

/// Places for regions of peers.
#[derive(Debug)]
pub(crate) struct RegionPlaces {
    regions_max: u32,
    files_max: u32,
    all: Arc<Taken>,
    /// Sources that have connections or places.
    sources: Vec<(Source, Arc<Taken>)>,
}

/// What a source has taken of the places. All connections of the source have the same.
#[derive(Debug)]
pub(crate) struct SourcePlaces(Arc<Taken>);

/// Place of a region. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct RegionPlace {
    all: Arc<Taken>,
    source: Arc<Taken>,
}

/// Place of a region's open file. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct FilePlace {
    all: Arc<Taken>,
    source: Arc<Taken>,
}

/// Returns how many of these places one source may have.
fn share(max: u32) -> u32 {
    max - max / 4
}

impl RegionPlaces {
    /// Makes so many places for regions, and for their files.
    pub(crate) fn new(regions_max: u32, files_max: u32) -> Self {
        Self { regions_max, files_max, all: Arc::default(), sources: Vec::new() }
    }

    /// Returns what a source has taken.
    pub(crate) fn of(&mut self, source: Source) -> SourcePlaces {
        // Nobody else has what is left of a source that is gone.
        self.sources.retain(|(_, taken)| Arc::strong_count(taken) > 1);
        let known = self.sources.iter().find(|(other, _)| *other == source);
        SourcePlaces(match known {
            Some((_, taken)) => Arc::clone(taken),
            None => {
                let taken = Arc::default();
                self.sources.push((source, Arc::clone(&taken)));
                taken
            }
        })
    }

    /// Takes the places of a region of this source, and of its file.
    ///
    /// # Errors
    /// [`RegionError::ReceiverFull`] where there are none, [`RegionError::Share`] where the source has its
    /// share.
    pub(crate) fn take(&self, source: &SourcePlaces) -> Result<(RegionPlace, FilePlace), RegionError> {
        let taken = |count: &AtomicU32| count.load(Ordering::Relaxed);
        let SourcePlaces(source) = source;
        if taken(&self.all.regions) >= self.regions_max || taken(&self.all.files) >= self.files_max {
            return Err(RegionError::ReceiverFull);
        }
        if taken(&source.regions) >= share(self.regions_max) || taken(&source.files) >= share(self.files_max)
        {
            return Err(RegionError::Share);
        }
        let (all, source) = (&self.all, source);
        for taken in [all, source] {
            taken.regions.fetch_add(1, Ordering::Relaxed);
            taken.files.fetch_add(1, Ordering::Relaxed);
        }
        Ok((
            RegionPlace { all: Arc::clone(all), source: Arc::clone(source) },
            FilePlace { all: Arc::clone(all), source: Arc::clone(source) },
        ))
    }

    /// Returns how many regions and how many of their files have places.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> (u32, u32) {
        (self.all.regions.load(Ordering::Relaxed), self.all.files.load(Ordering::Relaxed))
    }

    /// Sets how many places there are for files.
    #[cfg(test)]
    pub(crate) fn set_files_max(&mut self, max: u32) {
        self.files_max = max;
    }
}

impl Drop for RegionPlace {
    fn drop(&mut self) {
        for taken in [&self.all, &self.source] {
            taken.regions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for FilePlace {
    fn drop(&mut self) {
        for taken in [&self.all, &self.source] {
            taken.files.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_has_three_quarters_and_another_gets_the_rest() {
        for (regions_max, files_max) in [(4, 100), (100, 4)] {
            let mut places = RegionPlaces::new(regions_max, files_max);
            let (first, again, second) = (
                places.of(Source::of_process(1, 0)),
                places.of(Source::of_process(1, 0)),
                places.of(Source::of_process(2, 0)),
            );
            let mut of_first = vec![places.take(&first).unwrap(), places.take(&again).unwrap()];
            of_first.push(places.take(&first).unwrap());
            assert_eq!(places.take(&again).unwrap_err(), RegionError::Share);
            let of_second = vec![places.take(&second).unwrap()];
            assert_eq!(places.take(&second).unwrap_err(), RegionError::ReceiverFull);
            assert_eq!(places.taken(), (4, 4));
            drop(of_first.pop());
            of_first.push(places.take(&again).unwrap());
            // A file that is closed leaves the region's place.
            let closed: Vec<_> = of_second.into_iter().map(|(region, _file)| region).collect();
            assert_eq!(places.taken(), (4, 3));
            drop((closed, of_first));
            assert_eq!(places.taken(), (0, 0));
        }
    }

    #[test]
    fn a_source_is_kept_as_long_as_it_has_anything() {
        let mut places = RegionPlaces::new(2, 2);
        let source = places.of(Source::of_process(1, 0));
        let held = places.take(&source).unwrap();
        drop(source);
        // Its place counts for its next connection.
        let source = places.of(Source::of_process(1, 0));
        let second = places.take(&source).unwrap();
        assert!(places.take(&source).is_err());
        drop(second);
        drop(source);
        for number in 2..100 {
            places.of(Source::of_process(number, 0));
        }
        assert_eq!(places.sources.len(), 2, "the first has a place yet, and the last was just asked for");
        drop(held);
        places.of(Source::of_process(1, 0));
        assert_eq!(places.sources.len(), 1);
    }
}
