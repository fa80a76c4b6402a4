//! Something that is changed for as long as a process wants it, by the rule of all journals: what was there is written down
//! first, and put back at the end or by the next start.

use super::{JournalError, Journals, boot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;

/// A change, with what it takes to undo it.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// The journal's name, which is no group's.
    const NAME: &'static str;
    /// Where it is changed.
    type Place;
    /// Why it is not.
    type Error: From<JournalError>;

    /// Carries it out; where it fails, what was done so far is put back by the caller.
    fn carry_out(&self, place: &Self::Place) -> Result<(), Self::Error>;

    /// Looks at everything, and puts back what is still as it was left; says whether there was anything. Where something is
    /// neither that nor as before, nothing is changed, and `journal` is named.
    fn put_back(&self, place: &Self::Place, journal: &Path) -> Result<bool, Self::Error>;
}

/// In the file: the kernel and the processor forget with the boot.
#[derive(Debug, Serialize, Deserialize)]
struct Entry<R> {
    boot: String,
    record: R,
}

/// What is changed. Put back when dropped, and by the next start where the process ends otherwise.
pub(crate) struct Kept<R: Record> {
    place: R::Place,
    journals: Journals,
    is_restored: bool,
    /// Given up by the system, however the process ends.
    _ownership: File,
    record: PhantomData<R>,
}

impl<R: Record> fmt::Debug for Kept<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(R::NAME).field("is_restored", &self.is_restored).finish_non_exhaustive()
    }
}

impl<R: Record> Kept<R> {
    /// Puts back what a process before had left, plans, and carries out all of it or nothing. None where another process has
    /// changed the same.
    pub fn make(
        place: R::Place,
        folder: &Path,
        plan: impl FnOnce(&R::Place) -> Result<R, R::Error>,
    ) -> Result<Option<Self>, R::Error> {
        let journals = Journals::open(folder)?;
        let _transaction = journals.transaction()?;
        let Some(ownership) = journals.ownership(R::NAME)? else { return Ok(None) };
        put_back::<R>(&place, &journals)?;
        let record = plan(&place)?;
        let entry = Entry { boot: boot()?, record };
        journals.save(R::NAME, &entry)?;
        let carried_out = entry.record.carry_out(&place);
        if let Err(error) = carried_out {
            // What cannot be put back now has its journal still.
            let _ = put_back::<R>(&place, &journals);
            return Err(error);
        }
        Ok(Some(Self { place, journals, is_restored: false, _ownership: ownership, record: PhantomData }))
    }

    /// Puts everything back.
    pub fn restore(mut self) -> Result<(), R::Error> {
        self.is_restored = true;
        let _transaction = self.journals.transaction()?;
        put_back::<R>(&self.place, &self.journals).map(drop)
    }
}

impl<R: Record> Drop for Kept<R> {
    fn drop(&mut self) {
        if !self.is_restored
            && let Ok(_transaction) = self.journals.transaction()
        {
            // Where it fails the journal stays, and the next start says why.
            let _ = put_back::<R>(&self.place, &self.journals);
        }
    }
}

/// Puts back what a process that is gone had left: says whether there was anything.
pub(crate) fn recover<R: Record>(place: &R::Place, folder: &Path) -> Result<bool, R::Error> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    // Whoever has the lock lives.
    match journals.ownership(R::NAME)? {
        Some(_ownership) => put_back::<R>(place, &journals),
        None => Ok(false),
    }
}

/// The caller has the transaction's lock and owns what is changed.
fn put_back<R: Record>(place: &R::Place, journals: &Journals) -> Result<bool, R::Error> {
    let Some(entry) = journals.load::<Entry<R>>(R::NAME)? else { return Ok(false) };
    let was_there = entry.boot == boot()? && entry.record.put_back(place, &journals.file(R::NAME))?;
    journals.forget(R::NAME)?;
    Ok(was_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A number in a file.
    #[derive(Debug, Serialize, Deserialize)]
    struct Number {
        before: String,
        after: String,
    }

    impl Record for Number {
        const NAME: &'static str = "number.state";
        type Place = PathBuf;
        type Error = JournalError;

        fn carry_out(&self, place: &PathBuf) -> Result<(), JournalError> {
            fs::write(place, &self.after).unwrap();
            if self.after == "bad" { Err(misfit(place)) } else { Ok(()) }
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
    }

    fn misfit(path: &Path) -> JournalError {
        JournalError::Format { path: path.to_owned(), problem: "misfit".to_owned() }
    }

    fn set(folder: &Path, after: &str) -> Result<Option<Kept<Number>>, JournalError> {
        let place = folder.join("number");
        let after = after.to_owned();
        Kept::make(place, folder, |place| Ok(Number { before: fs::read_to_string(place).unwrap(), after }))
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
        // As a process that is killed leaves it: the lock is gone, the rest is not.
        let mut kept = set(folder, "2").unwrap().unwrap();
        kept.is_restored = true;
        drop(kept);
        assert_eq!(number(), "2");
        assert!(recover::<Number>(&place, folder).unwrap());
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert_eq!(number(), "1");
    }

    #[test]
    fn what_fails_or_does_not_fit_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, place) = (dir.path(), dir.path().join("number"));
        fs::write(&place, "1").unwrap();
        assert!(set(folder, "bad").is_err());
        assert_eq!(fs::read_to_string(&place).unwrap(), "1");
        let kept = set(folder, "2").unwrap().unwrap();
        fs::write(&place, "7").unwrap();
        assert!(kept.restore().is_err());
        assert!(set(folder, "3").is_err(), "the journal stays, and is in the way until it is looked at");
        assert_eq!(fs::read_to_string(&place).unwrap(), "7");
        // Of another boot: forgotten.
        let text = fs::read_to_string(folder.join(Number::NAME)).unwrap();
        let boot = boot().unwrap();
        fs::write(folder.join(Number::NAME), text.replace(&boot, "another")).unwrap();
        assert!(!recover::<Number>(&place, folder).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "7");
    }
}
