//! Structures that have a size: options, and counters. A program may know a shorter or a longer one.

use crate::call::Pointer;
use jet_client_c::Code;

/// Longest structure, with room behind it.
const WORDS: usize = 640;
/// Shortest and longest structure that the library takes.
const SIZES: std::ops::RangeInclusive<usize> = 8..=4096;
const UNTOUCHED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Sizes that programs say. `own` is what the library knows.
pub fn sizes(own: usize) -> [usize; 16] {
    [0, 7, 8, 16, 24, 32, own - 8, own, own, own, own, own + 8, 4096, 4097, usize::MAX, own]
}

pub fn faults(size: usize, pointer: Pointer) -> Vec<Code> {
    if SIZES.contains(&size) && pointer == Pointer::Good { vec![] } else { vec![Code::Argument] }
}

/// What the library refuses of a structure that it is given, of which it knows `own` bytes. Of a longer one
/// the next word is zero, and the others are not: they are settings that it does not know.
pub fn given_faults(size: usize, own: usize, pointer: Pointer) -> Vec<Code> {
    let mut faults = faults(size, pointer);
    if size > own + 8 {
        faults.push(Code::Argument);
    }
    faults
}

/// Memory of the caller's for a structure of any size.
pub struct Structure {
    words: Box<[u64; WORDS]>,
    pointer: Pointer,
}

impl Structure {
    pub fn new(pointer: Pointer) -> Self {
        Self { words: Box::new([UNTOUCHED; WORDS]), pointer }
    }

    pub fn pointer<T>(&mut self) -> *mut T {
        let first = self.words.as_mut_ptr();
        match self.pointer {
            Pointer::Good => first.cast(),
            Pointer::Null => std::ptr::null_mut(),
            // SAFETY: within the words.
            Pointer::Crooked => unsafe { first.cast::<u8>().add(1).cast() },
        }
    }

    /// Gives a structure, if the memory is good. The word behind it is zero.
    pub fn give<T>(&mut self, structure: T) {
        if self.pointer == Pointer::Good {
            self.words[size_of::<T>() / 8] = 0;
            // SAFETY: the words are longer, and as aligned.
            unsafe { self.words.as_mut_ptr().cast::<T>().write(structure) };
        }
    }

    /// Checks that the library wrote a structure of `size` bytes, and nothing else: what it does not know is
    /// zero. Returns the words that it knows.
    pub fn written<T>(&self, size: usize) -> &[u64] {
        let known = size.min(size_of::<T>()) / 8;
        assert!(self.words[known..size / 8].iter().all(|word| *word == 0), "a field of a later version");
        assert!(self.words[size.div_ceil(8)..].iter().all(|word| *word == UNTOUCHED), "written behind it");
        &self.words[..known]
    }

    pub fn check_unchanged(&self, name: &str) {
        assert!(*self.words == [UNTOUCHED; WORDS], "{name} failed, and wrote something");
    }
}
