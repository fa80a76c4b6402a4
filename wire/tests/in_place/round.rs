//! Tests that a value becomes bytes and the same value again, that nothing is copied, and that a place that
//! is too short is refused.

use crate::messages::{Batch, Numbers, WriteRequest, numbers, owned, steps, written};
use jet_wire::in_place::{EncodeError, InPlace};
use proptest::prelude::*;

proptest! {
    #[test]
    fn numbers_come_back(message in numbers()) {
        let bytes = written(&message);
        prop_assert_eq!(bytes.len(), Numbers::FIXED_BYTES);
        prop_assert_eq!(Numbers::read(&bytes), Ok(message));
    }

    #[test]
    fn requests_come_back_at_any_address(owned in owned(), shift in 0usize..16, behind in 0usize..9) {
        let message = owned.request();
        let mut place = vec![0x55; shift + message.encoded_len() + behind];
        let length = message.write_to(&mut place[shift..]).unwrap();
        prop_assert_eq!(length, message.encoded_len());
        prop_assert!(place[..shift].iter().chain(&place[shift + length..]).all(|&byte| byte == 0x55));
        let (read, rest) = WriteRequest::read_prefix(&place[shift..]).unwrap();
        prop_assert_eq!(read, message);
        prop_assert_eq!(rest.len(), behind);
        let own = place.as_ptr_range();
        prop_assert!(own.start <= read.name.as_ptr() && own.start <= read.extents.as_ptr().cast());
        prop_assert!(own.end >= read.payload.as_ptr_range().end);
        // The same value makes the same bytes, whatever lay there.
        prop_assert_eq!(&written(&read), &place[shift..shift + length]);
    }

    #[test]
    fn nested_messages_come_back(
        (first, second) in (owned(), proptest::option::of(owned())),
        (steps, more) in (steps(), proptest::option::of(steps())),
        digest: [u8; 4],
        comment: Option<Vec<u8>>,
    ) {
        let message = Batch {
            digest: &digest,
            first: first.request(),
            steps: &steps,
            second: second.as_ref().map(|second| second.request()),
            comment: comment.as_deref(),
            more: more.as_deref(),
        };
        let bytes = written(&message);
        let read = Batch::read(&bytes).unwrap();
        prop_assert_eq!(read, message);
        prop_assert_eq!(written(&read), bytes);
    }

    #[test]
    fn a_place_that_is_too_short_is_left_as_it_is(owned in owned(), short in 1usize..500) {
        let message = owned.request();
        let needed = message.encoded_len();
        let room = needed.saturating_sub(short);
        let mut place = vec![0x55; room];
        prop_assert_eq!(
            message.write_to(&mut place),
            Err(EncodeError::Room { message: "WriteRequest", needed, room })
        );
        prop_assert!(place.iter().all(|&byte| byte == 0x55));
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn what_is_longer_than_its_head_can_say_is_refused() {
    // None of these bytes is touched, so the system allocates no memory for them.
    let bytes = vec![0u8; u32::MAX as usize - WriteRequest::FIXED_BYTES + 1];
    let empty = crate::messages::Owned {
        fixed: (0, 0, 0, 0),
        extents: vec![],
        name: String::new(),
        payload: vec![],
        tenant: None,
    };
    let message = WriteRequest { payload: &bytes, ..empty.request() };
    assert_eq!(
        message.write_to(&mut []),
        Err(EncodeError::TooLong { message: "WriteRequest", bytes: 1 << 32 })
    );
    let message = WriteRequest { payload: &bytes[1..], ..empty.request() };
    assert_eq!(
        message.write_to(&mut []),
        Err(EncodeError::Room { message: "WriteRequest", needed: u32::MAX as usize, room: 0 })
    );
}
