//! Tests of readers and writers of different versions.

use crate::messages::{Owned, WriteRequest, owned, written};
use jet_wire::in_place::{DecodeError, Head, InPlace};
use proptest::prelude::*;

/// `WriteRequest` as it was before; `after` has it as it may become.
mod before {
    use super::super::messages::Extent;
    use jet_wire::in_place::InPlace;

    #[derive(Clone, Copy, Debug, PartialEq, InPlace)]
    #[in_place(kind = 2, version = 1)]
    pub struct WriteRequest<'a> {
        pub volume: u64,
        pub offset: u64,
        pub flags: u16,
        pub extents: &'a [Extent],
        pub name: &'a str,
        pub payload: &'a [u8],
    }
}

mod after {
    use super::super::messages::Extent;
    use jet_wire::in_place::InPlace;

    /// A later `WriteRequest`, in which version 3 added nothing.
    #[derive(Clone, Copy, Debug, PartialEq, InPlace)]
    #[in_place(kind = 2, version = 4)]
    pub struct WriteRequest<'a> {
        pub volume: u64,
        pub offset: u64,
        pub flags: u16,
        pub extents: &'a [Extent],
        pub name: &'a str,
        pub payload: &'a [u8],
        #[in_place(since = 2)]
        pub trace: u64,
        #[in_place(since = 2)]
        pub tenant: Option<&'a str>,
        #[in_place(since = 4)]
        pub keys: &'a [u8],
        #[in_place(since = 4)]
        pub deadline_us: Option<u32>,
    }
}

fn as_before(owned: &Owned) -> before::WriteRequest<'_> {
    let WriteRequest { volume, offset, flags, extents, name, payload, .. } = owned.request();
    before::WriteRequest { volume, offset, flags, extents, name, payload }
}

fn as_after<'a>(owned: &'a Owned, keys: &'a [u8], deadline_us: Option<u32>) -> after::WriteRequest<'a> {
    let WriteRequest { volume, offset, flags, extents, name, payload, trace, tenant } = owned.request();
    after::WriteRequest { volume, offset, flags, extents, name, payload, trace, tenant, keys, deadline_us }
}

proptest! {
    #[test]
    fn every_version_reads_every_version(owned in owned(), keys: Vec<u8>, deadline: Option<u32>) {
        let now = owned.request();
        let (before, after) = (as_before(&owned), as_after(&owned, &keys, deadline));
        let (one, two, four) = (written(&before), written(&now), written(&after));

        prop_assert_eq!(before::WriteRequest::read(&one), Ok(before));
        prop_assert_eq!(before::WriteRequest::read(&two), Ok(before));
        prop_assert_eq!(before::WriteRequest::read(&four), Ok(before));

        let without = WriteRequest { trace: 0, tenant: None, ..now };
        prop_assert_eq!(WriteRequest::read(&one), Ok(without));
        prop_assert_eq!(WriteRequest::read(&two), Ok(now));
        prop_assert_eq!(WriteRequest::read(&four), Ok(now));

        let without = after::WriteRequest { trace: 0, tenant: None, keys: &[], deadline_us: None, ..after };
        prop_assert_eq!(after::WriteRequest::read(&one), Ok(without));
        let without = after::WriteRequest { keys: &[], deadline_us: None, ..after };
        prop_assert_eq!(after::WriteRequest::read(&two), Ok(without));
        prop_assert_eq!(after::WriteRequest::read(&four), Ok(after));

        // A version that added nothing is like the one before it.
        let mut three = two.clone();
        three[0] = 3;
        prop_assert_eq!(after::WriteRequest::read(&three), Ok(without));
    }

    /// Checks that reading a newer message stays within its stated length, as for any other.
    #[test]
    fn a_newer_message_that_is_cut_is_refused(owned in owned(), keys: Vec<u8>, cut in 1usize..400) {
        let bytes = written(&as_after(&owned, &keys, None));
        let cut = bytes.len().saturating_sub(cut);
        prop_assert!(before::WriteRequest::read(&bytes[..cut]).is_err());
    }
}

#[test]
fn a_fixed_part_that_a_version_cannot_have_is_refused() {
    let owned = Owned {
        fixed: (1, 2, 3, 4),
        extents: vec![],
        name: "n".into(),
        payload: vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
        tenant: None,
    };
    let (one, two) = (written(&as_before(&owned)), written(&owned.request()));
    let fixed = |bytes: &[u8]| Head::peek(bytes).unwrap().fixed_bytes;
    // Version 1 with the fixed part of version 2, and the other way round; version 3 with less than version 2
    // has.
    for (bytes, version, expected) in [(&two, 1, fixed(&one)), (&one, 2, fixed(&two)), (&one, 3, fixed(&two))]
    {
        let mut bytes = bytes.clone();
        bytes[0] = version;
        assert_eq!(
            WriteRequest::read(&bytes),
            Err(DecodeError::Fixed { message: "WriteRequest", version, stated: fixed(&bytes), expected })
        );
    }
    let mut bytes = one;
    bytes[0] = 0;
    assert_eq!(WriteRequest::read(&bytes), Err(DecodeError::Version { message: "WriteRequest" }));
}
