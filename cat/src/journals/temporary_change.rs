//! Temporary changes of kernel or processor state, which are undone even after a crash of the process.
//!
//! Before a change is made, the previous state is written to a journal. The previous state is put back when
//! the change ends, or by the next start if the process crashed.

use super::{JournalError, Journals, Owner, boot};
use crate::lock::Lock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Temporary change together with everything that is needed to undo it. This is what a journal holds.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// File name of the journal. It differs from every reservation's, so their lock files differ as well:
    /// reservations' journals end in `.json`.
    const NAME: &'static str;
    /// Place where the change is made, for example a mounted file system.
    type Place;
    /// Lock that keeps other processes from changing the same state while it is held.
    type Guard;
    /// Error of making the change or of putting the previous state back.
    type Error: From<JournalError>;

    /// Locks the place. The caller holds the guard from before the state is first read until the change is
    /// made or put back.
    fn lock(place: &Self::Place) -> Result<Self::Guard, Self::Error>;

    /// Makes the change. It calls `save`, which writes the record to the journal again, where it added
    /// something to the record.
    ///
    /// On an error the caller puts back what was changed so far.
    fn carry_out(
        &mut self,
        place: &Self::Place,
        save: &dyn Fn(&Self) -> Result<(), JournalError>,
    ) -> Result<(), Self::Error>;

    /// Puts back every value that is still as this record set it. Returns whether there was any.
    ///
    /// All values are read before the first is written. Where one is neither as it was set nor as before, or
    /// cannot be read, nothing is changed, and the error names the file `journal`.
    fn put_back(&self, place: &Self::Place, journal: &Path) -> Result<bool, Self::Error>;

    /// Puts back every value that is still as this record set it, and leaves the others. Returns descriptions
    /// of the values that were left.
    ///
    /// All values are read before the first is written. Where one cannot be read, nothing is changed.
    fn put_back_what_fits(&self, place: &Self::Place) -> Result<Vec<String>, Self::Error>;

    /// Combines two errors: the change was refused halfway, and what had been changed could not be undone.
    fn half_undone(refused: Self::Error, left: Self::Error) -> Self::Error;
}

/// Outcome of giving up a change whose previous state could not be put back completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetOutcome {
    /// There was no change any more that could be given up.
    Nothing,
    /// A living process owns the change, and nothing was done.
    InUse,
    /// The journal was removed, after everything that could be put back was put back. Holds descriptions of
    /// what stays changed; empty where nothing does.
    Stays(Vec<String>),
}

const VERSION: u32 = 1;

/// Fields with which a journal of every version begins.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    version: u32,
    /// The kernel's boot id when the journal was written. The kernel and the processor forget the change when
    /// they restart.
    boot: String,
    owner: Owner,
}

/// Contents of a journal file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry<R> {
    version: u32,
    boot: String,
    owner: Owner,
    record: R,
}

/// Temporary change that is in effect. The previous state is put back when this is dropped, or by the next
/// start if the process ends without dropping it.
pub(crate) struct Journaled<R: Record> {
    place: R::Place,
    record: R,
    journals: Journals,
    is_restored: bool,
    /// Lock that marks the owner. The kernel releases it however the process ends.
    _ownership: Lock,
}

impl<R: Record> fmt::Debug for Journaled<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(R::NAME).field("is_restored", &self.is_restored).finish_non_exhaustive()
    }
}

impl<R: Record> Journaled<R> {
    /// Puts back what an earlier process left, plans a change, and makes all of it or nothing.
    ///
    /// Returns `None` where another process owns a change of the same kind.
    pub fn make(
        place: R::Place,
        folder: &Path,
        plan: impl FnOnce(&R::Place) -> Result<R, R::Error>,
    ) -> Result<Option<Self>, R::Error> {
        let journals = Journals::open(folder)?;
        let _transaction = journals.transaction()?;
        let owner = journals.load::<Head>(R::NAME)?.map(|head| head.owner);
        let Some(ownership) = journals.inherit(R::NAME, owner)? else { return Ok(None) };
        let _guard = R::lock(&place)?;
        put_back_locked::<R>(&place, &journals)?;
        let mut record = plan(&place)?;
        let save = |record: &R| save(&journals, record);
        save(&record)?;
        if let Err(refused) = record.carry_out(&place, &save) {
            return Err(match put_back_locked::<R>(&place, &journals) {
                Ok(_) => refused,
                Err(left) => R::half_undone(refused, left),
            });
        }
        Ok(Some(Self { place, record, journals, is_restored: false, _ownership: ownership }))
    }

    /// Returns the change that was made, and its place.
    pub fn record(&self) -> (&R, &R::Place) {
        (&self.record, &self.place)
    }

    /// Puts the previous state back.
    pub fn restore(mut self) -> Result<(), R::Error> {
        self.undo()
    }

    /// Releases the lock and puts nothing back, as a killed process does.
    #[cfg(test)]
    pub fn abandon(mut self) {
        self.is_restored = true;
    }

    fn undo(&mut self) -> Result<(), R::Error> {
        // Tried only once: what cannot be put back now is put back by the next start.
        self.is_restored = true;
        let _transaction = self.journals.transaction()?;
        if !self.journals.file(R::NAME).exists() {
            // Somebody removed the journal. This process still knows the record, so it writes the journal
            // again.
            save(&self.journals, &self.record)?;
        }
        put_back::<R>(&self.place, &self.journals).map(drop)
    }
}

impl<R: Record> Drop for Journaled<R> {
    fn drop(&mut self) {
        if !self.is_restored {
            // On failure the journal stays, and the next start reports why.
            let _ = self.undo();
        }
    }
}

fn save<R: Record>(journals: &Journals, record: &R) -> Result<(), JournalError> {
    let (boot, owner) = (boot()?, Owner::this());
    journals.save(R::NAME, &Entry { version: VERSION, boot, owner, record })
}

/// Puts back what a process that ended left changed. Returns whether there was anything.
///
/// Does nothing and returns `false` where the owner still lives.
pub(crate) fn recover<R: Record>(place: &R::Place, folder: &Path) -> Result<bool, R::Error> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    let Some(head) = journals.load::<Head>(R::NAME)? else { return Ok(false) };
    match journals.inherit(R::NAME, Some(head.owner))? {
        Some(_ownership) => put_back::<R>(place, &journals),
        None => Ok(false),
    }
}

/// Gives up the change that a process left: puts back what can be put back, leaves the rest changed, and
/// removes the journal.
pub(crate) fn forget<R: Record>(place: &R::Place, folder: &Path) -> Result<ForgetOutcome, R::Error> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    if !journals.file(R::NAME).exists() {
        return Ok(ForgetOutcome::Nothing);
    }
    // A journal that cannot be read names no owner.
    let owner = journals.load::<Head>(R::NAME).ok().flatten().map(|head| head.owner);
    let Some(_ownership) = journals.inherit(R::NAME, owner)? else { return Ok(ForgetOutcome::InUse) };
    let _guard = R::lock(place)?;
    let stays = match load::<R>(&journals) {
        Ok(Some(record)) => record.put_back_what_fits(place)?,
        Ok(None) => Vec::new(),
        Err(error @ JournalError::Format { .. }) => vec![format!("what it was about: {error}")],
        Err(error) => return Err(error.into()),
    };
    journals.forget(R::NAME)?;
    Ok(ForgetOutcome::Stays(stays))
}

/// Puts back what the journal records, and removes it. Returns whether there was anything to put back.
///
/// The caller holds the lock of the journals' folder, and the lock that marks the change's owner.
fn put_back<R: Record>(place: &R::Place, journals: &Journals) -> Result<bool, R::Error> {
    if !journals.file(R::NAME).exists() {
        return Ok(false);
    }
    let _guard = R::lock(place)?;
    put_back_locked::<R>(place, journals)
}

fn put_back_locked<R: Record>(place: &R::Place, journals: &Journals) -> Result<bool, R::Error> {
    let was_there = match load::<R>(journals)? {
        Some(record) => record.put_back(place, &journals.file(R::NAME))?,
        None => false,
    };
    journals.forget(R::NAME)?;
    Ok(was_there)
}

/// Reads the record that is to be put back. Returns `None` where there is no journal, or where it was written
/// before the kernel's last start.
fn load<R: Record>(journals: &Journals) -> Result<Option<R>, JournalError> {
    let Some(head) = journals.load::<Head>(R::NAME)? else { return Ok(None) };
    if head.boot != boot()? {
        return Ok(None);
    }
    if head.version != VERSION {
        let problem = format!("it is of version {}", head.version);
        return Err(JournalError::Format { path: journals.file(R::NAME), problem });
    }
    Ok(journals.load::<Entry<R>>(R::NAME)?.map(|entry| entry.record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Test record: a text in a file.
    #[derive(Debug, Serialize, Deserialize)]
    struct Number {
        before: String,
        after: String,
    }

    impl Record for Number {
        const NAME: &'static str = "number.state";
        type Place = PathBuf;
        type Guard = ();
        type Error = JournalError;

        fn lock(_: &PathBuf) -> Result<(), JournalError> {
            Ok(())
        }

        fn carry_out(
            &mut self,
            place: &PathBuf,
            save: &dyn Fn(&Self) -> Result<(), JournalError>,
        ) -> Result<(), JournalError> {
            fs::write(place, &self.after).unwrap();
            if self.after == "bad" {
                return Err(misfit(place));
            }
            if self.after == "worse" {
                fs::write(place, "and nobody knows").unwrap();
                return Err(misfit(place));
            }
            save(self)
        }

        fn half_undone(_: JournalError, left: JournalError) -> JournalError {
            let JournalError::Format { path, .. } = left else { return left };
            JournalError::Format { path, problem: "half undone".to_owned() }
        }

        fn put_back(&self, place: &PathBuf, journal: &Path) -> Result<bool, JournalError> {
            match fs::read_to_string(place).unwrap() {
                found if found == self.before => Ok(false),
                found if found == self.after => {
                    fs::write(place, &self.before).unwrap();
                    Ok(true)
                }
                _ => Err(misfit(journal)),
            }
        }

        fn put_back_what_fits(&self, place: &PathBuf) -> Result<Vec<String>, JournalError> {
            let put_back = self.put_back(place, place);
            Ok(put_back.err().map(|error| error.to_string()).into_iter().collect())
        }
    }

    /// Makes another process the owner that the journal names.
    fn hand_over(folder: &Path, pid: u32) {
        let path = folder.join(Number::NAME);
        let mut entry: Entry<Number> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        entry.owner = Owner::of(pid);
        fs::write(path, serde_json::to_string(&entry).unwrap()).unwrap();
    }

    fn misfit(path: &Path) -> JournalError {
        JournalError::Format { path: path.to_owned(), problem: "misfit".to_owned() }
    }

    fn set(folder: &Path, after: &str) -> Result<Option<Journaled<Number>>, JournalError> {
        let place = folder.join("number");
        let after = after.to_owned();
        Journaled::make(place, folder, |place| {
            Ok(Number { before: fs::read_to_string(place).unwrap(), after })
        })
    }

    #[test]
    fn what_is_changed_is_put_back_by_the_end_by_dropping_and_by_who_comes_next() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, place) = (dir.path(), dir.path().join("number"));
        let number = || fs::read_to_string(&place).unwrap();
        fs::write(&place, "1").unwrap();
        let kept = set(folder, "2").unwrap().unwrap();
        assert_eq!(number(), "2");
        assert!(set(folder, "3").unwrap().is_none(), "another has it");
        assert!(!recover::<Number>(&place, folder).unwrap(), "who has it lives");
        kept.restore().unwrap();
        assert_eq!(number(), "1");
        drop(set(folder, "2").unwrap().unwrap());
        assert_eq!(number(), "1");
        // As a killed process leaves it: the lock is free, the journal and the change remain.
        set(folder, "2").unwrap().unwrap().abandon();
        assert_eq!(number(), "2");
        // A living owner keeps the change even without its lock; a dead one does not.
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        hand_over(folder, sleeper.id());
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert!(set(folder, "3").unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(recover::<Number>(&place, folder).unwrap());
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert_eq!(number(), "1");
    }

    #[test]
    fn what_somebody_removed_is_put_back_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, place) = (dir.path().join("journals"), dir.path().join("number"));
        let set = || {
            let plan = |_: &PathBuf| Ok(Number { before: "1".to_owned(), after: "2".to_owned() });
            Journaled::make(place.clone(), &folder, plan).unwrap().unwrap()
        };
        for whole in [false, true] {
            fs::write(&place, "1").unwrap();
            let kept = set();
            if whole {
                fs::remove_dir_all(&folder).unwrap();
            } else {
                fs::remove_file(folder.join(Number::NAME)).unwrap();
            }
            kept.restore().unwrap();
            assert_eq!(fs::read_to_string(&place).unwrap(), "1");
        }
    }

    #[test]
    fn what_fails_or_does_not_fit_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, place) = (dir.path(), dir.path().join("number"));
        fs::write(&place, "1").unwrap();
        assert!(set(folder, "bad").is_err());
        assert_eq!(fs::read_to_string(&place).unwrap(), "1");
        assert!(set(folder, "worse").unwrap_err().to_string().contains("half undone"));
        fs::write(&place, "1").unwrap();
        let kept = set(folder, "2").unwrap().unwrap();
        fs::write(&place, "7").unwrap();
        assert!(kept.restore().is_err());
        assert!(set(folder, "3").is_err(), "the journal stays, and is in the way until it is looked at");
        assert_eq!(fs::read_to_string(&place).unwrap(), "7");
        // Giving up removes the journal and keeps the value that was found.
        let journal = fs::read(folder.join(Number::NAME)).unwrap();
        let ForgetOutcome::Stays(stays) = forget::<Number>(&place, folder).unwrap() else {
            panic!("nobody has it")
        };
        assert!(stays.len() == 1 && stays[0].contains("misfit"), "{stays:?}");
        assert_eq!(
            forget::<Number>(&place, folder).unwrap(),
            ForgetOutcome::Nothing,
            "there is none any more"
        );
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "7");
        fs::write(folder.join(Number::NAME), "no journal").unwrap();
        assert!(recover::<Number>(&place, folder).is_err());
        let ForgetOutcome::Stays(stays) = forget::<Number>(&place, folder).unwrap() else {
            panic!("nobody has it")
        };
        assert!(stays.len() == 1 && stays[0].contains("what it was about"), "{stays:?}");
        fs::write(folder.join(Number::NAME), journal).unwrap();
        // A journal from before the kernel's last start is discarded, whatever its version.
        let text = fs::read_to_string(folder.join(Number::NAME)).unwrap();
        let boot = boot().unwrap();
        fs::write(
            folder.join(Number::NAME),
            text.replace(&boot, "another").replace("\"version\": 1", "\"version\": 9"),
        )
        .unwrap();
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "7");
    }

    #[test]
    fn what_a_living_process_has_is_not_given_up_even_where_its_journal_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, place) = (dir.path(), dir.path().join("number"));
        fs::write(&place, "1").unwrap();
        let kept = set(folder, "2").unwrap().unwrap();
        let journal = fs::read(folder.join(Number::NAME)).unwrap();
        for text in [&journal[..], b"no journal"] {
            fs::write(folder.join(Number::NAME), text).unwrap();
            assert_eq!(forget::<Number>(&place, folder).unwrap(), ForgetOutcome::InUse);
            assert_eq!(fs::read(folder.join(Number::NAME)).unwrap(), text);
        }
        fs::write(folder.join(Number::NAME), journal).unwrap();
        kept.restore().unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "1");
    }
}
