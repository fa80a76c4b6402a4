//! Tests of hostile bytes: each gives a value, or a typed error that says what is wrong and where.

use crate::messages::{Batch, Mode, Numbers, Owned, Step, WriteRequest, numbers, owned, steps, written};
use jet_wire::in_place::{Blame, DecodeError, InPlace};
use proptest::prelude::*;

/// Checks that bytes give a value or an error. A value of this version must make the same bytes again.
fn taken_or_refused<'a, T: InPlace<'a> + PartialEq + std::fmt::Debug>(bytes: &'a [u8]) {
    match T::read(bytes) {
        Ok(message) => {
            let again = written(&message);
            if bytes[0] == T::VERSION {
                assert_eq!(again, bytes);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok((_, behind)) = T::read_prefix(bytes) {
        assert!(behind.is_empty() || behind.as_ptr_range().end == bytes.as_ptr_range().end);
    }
}

fn all(bytes: &[u8]) {
    taken_or_refused::<Numbers>(bytes);
    taken_or_refused::<WriteRequest>(bytes);
    // Nested messages of other versions are written in this one.
    if let Ok(batch) = Batch::read(bytes) {
        let again = written(&batch);
        assert_eq!(Batch::read(&again), Ok(batch));
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        all(&bytes);
    }

    #[test]
    fn any_change_of_a_message(
        (numbers, owned, steps) in (numbers(), owned(), steps()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0usize..8,
        grow in 0usize..4,
    ) {
        let request = owned.request();
        let batch = Batch {
            digest: &[1, 2, 3, 4],
            first: request,
            steps: &steps,
            second: Some(request),
            comment: None,
            more: Some(&steps),
        };
        for mut bytes in [written(&numbers), written(&request), written(&batch)] {
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            all(&bytes);
            bytes.truncate(bytes.len() - cut);
            bytes.extend(std::iter::repeat_n(0xff, grow));
            all(&bytes);
        }
    }

    #[test]
    fn every_cut_is_refused(owned in owned()) {
        let bytes = written(&owned.request());
        for cut in 0..bytes.len() {
            let error = WriteRequest::read(&bytes[..cut]).unwrap_err();
            prop_assert_eq!(error.blame(), Blame::Writer);
            if cut < 8 {
                prop_assert_eq!(error, DecodeError::Truncated { message: "WriteRequest", bytes: cut });
            }
        }
    }
}

fn request() -> Owned {
    Owned {
        fixed: (1, 2, 3, 4),
        extents: vec![],
        name: "name".into(),
        payload: b"payload".to_vec(),
        tenant: None,
    }
}

/// Reads the bytes of `request` after a change.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<usize, DecodeError> {
    let mut bytes = written(&request().request());
    change(&mut bytes);
    WriteRequest::read(&bytes).map(|request| request.encoded_len())
}

#[test]
fn every_error_says_what_and_where() {
    const MESSAGE: &str = "WriteRequest";
    assert_eq!(
        changed(|bytes| bytes[1] = 9),
        Err(DecodeError::Kind { message: MESSAGE, expected: 2, found: 9 })
    );
    // 50 bytes are fixed, then "name" and "payload".
    for (stated, arrived) in [(60, 61), (62, 61), (49, 61), (0, 61)] {
        assert_eq!(
            changed(|bytes| bytes[4] = stated),
            Err(DecodeError::Length { message: MESSAGE, stated: u32::from(stated), arrived })
        );
    }
    assert_eq!(
        changed(|bytes| bytes.push(0)),
        Err(DecodeError::Length { message: MESSAGE, stated: 61, arrived: 62 })
    );
    // The numbers of extents, name, payload, tenant lie at 26, 30, 34, 46.
    for (at, field) in [
        (26, "WriteRequest.extents"),
        (30, "WriteRequest.name"),
        (34, "WriteRequest.payload"),
        (46, "WriteRequest.tenant"),
    ] {
        for count in [12, 0x1555_5556, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff_u32] {
            let read = changed(|bytes| bytes[at..at + 4].copy_from_slice(&count.to_le_bytes()));
            if (at, count) == (46, 0xffff_ffff) {
                assert_eq!(read, Ok(61), "none, as it was");
                continue;
            }
            let Err(DecodeError::Range { field: found, count: stated, .. }) = read else {
                panic!("{read:?}")
            };
            assert_eq!((found, stated), (field, count));
        }
    }
    assert_eq!(changed(|bytes| bytes[34] = 6), Err(DecodeError::Unclaimed { message: MESSAGE, bytes: 1 }));
    assert_eq!(
        changed(|bytes| bytes[52] = 0xff),
        Err(DecodeError::Utf8 { field: "WriteRequest.name", valid_bytes: 2 })
    );
}

#[test]
fn values_that_are_none_are_named() {
    let numbers = Numbers {
        a: 0,
        b: 0,
        c: 0,
        d: 0,
        e: 0,
        f: 0,
        g: 0,
        h: 0,
        i: 0,
        j: 0,
        k: false,
        l: [0; 5],
        m: Mode::Read,
        n: None,
        o: None,
        p: zerocopy::FromZeros::new_zeroed(),
    };
    let bytes = written(&numbers);
    // k, m, the flag of n, the value of an n that is `None`, the flag of o, the value of an o that is `None`.
    for (at, value, field) in [
        (70, 2, "Numbers.k"),
        (76, 0, "Numbers.m"),
        (76, 3, "Numbers.m"),
        (77, 2, "Numbers.n"),
        (81, 1, "Numbers.n"),
        (82, 255, "Numbers.o"),
        (82, 1, "Numbers.o"),
        (83, 1, "Numbers.o"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let Err(DecodeError::Value { field: found, .. }) = Numbers::read(&bytes) else {
            panic!("{field}: {:?}", Numbers::read(&bytes))
        };
        assert_eq!(found, field);
    }
}

#[test]
fn an_element_that_is_none_is_named_and_a_nested_message_names_its_own() {
    let step = |blocks: u16| Step { mode: Mode::Read, last: false, blocks: blocks.into() };
    let (owned, steps) = (request(), [step(1), step(2), step(3)]);
    let batch = Batch {
        digest: &[0; 4],
        first: owned.request(),
        steps: &steps,
        second: None,
        comment: None,
        more: None,
    };
    let bytes = written(&batch);
    let first = Batch::FIXED_BYTES;
    let steps = first + batch.first.encoded_len();
    let read = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Batch::read(&bytes).map(|_| ())
    };
    assert_eq!(read(steps + 8, 7), Err(DecodeError::Element { field: "Batch.steps", index: 2 }));
    assert_eq!(read(steps + 5, 7), Err(DecodeError::Element { field: "Batch.steps", index: 1 }));
    assert_eq!(read(first + 1, 7), Err(DecodeError::Kind { message: "WriteRequest", expected: 2, found: 7 }));
    assert_eq!(
        read(first + 4, 64),
        Err(DecodeError::Length { message: "WriteRequest", stated: 64, arrived: 61 })
    );
    assert_eq!(DecodeError::Kind { message: "M", expected: 1, found: 2 }.blame(), Blame::Mismatch);
}
