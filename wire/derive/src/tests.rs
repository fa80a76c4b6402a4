//! Tests that misuse is refused in words, at the place.

use crate::declaration::Declaration;

/// Returns the derive's error for a struct, and the piece of source that it points at.
fn refused(source: &str) -> (String, String) {
    let input = syn::parse_str(source).expect("Rust");
    let Err(error) = Declaration::parse(&input) else { panic!("taken: {source}") };
    (error.to_string(), error.span().source_text().expect("parsed from text"))
}

/// Returns the derive's error for a field of this type, in a message of version 3 with the lifetime `'a`.
fn field_refused(field: &str) -> (String, String) {
    refused(&format!("#[in_place(kind = 1, version = 3)] struct M<'a> {{ good: &'a str, {field} }}"))
}

#[test]
fn a_message_is_a_struct_with_named_fields_and_one_lifetime() {
    const HEAD: &str = "#[in_place(kind = 1, version = 1)]";
    for (rest, says, at) in [
        ("enum M { A }", "an in-place message is a struct", "M"),
        ("struct M(u8);", "has named fields", "M"),
        ("struct M;", "has named fields", "M"),
        ("struct M<T> { a: T }", "no type or constant parameters", "T"),
        ("struct M<const N: usize> { a: [u8; N] }", "no type or constant parameters", "const N: usize"),
        ("struct M<'a, 'b> { a: &'a str, b: &'b str }", "has one lifetime", "'b"),
        ("struct M<'a> where 'a: 'static { a: &'a str }", "no where clause", "where 'a: 'static"),
    ] {
        let (said, place) = refused(&format!("{HEAD} {rest}"));
        assert!(said.contains(says), "{rest}: {said}");
        assert_eq!(place, at, "{rest}");
    }
}

#[test]
fn kind_and_version_are_said_once_and_are_1_to_255() {
    for (attributes, says, at) in [
        ("", "says its kind and version", "M"),
        ("#[in_place(kind = 1)]", "says its kind and version", "M"),
        ("#[in_place(version = 1)]", "says its kind and version", "M"),
        ("#[in_place(kind = 0, version = 1)]", "from 1 to 255", "0"),
        ("#[in_place(kind = 1, version = 256)]", "from 1 to 255", "256"),
        ("#[in_place(kind = 1, kind = 2, version = 1)]", "said twice", "kind"),
        ("#[in_place(kind = 1, version = 1, since = 1)]", "`kind = N` and `version = N`", "since"),
    ] {
        let (said, place) = refused(&format!("{attributes} struct M {{ a: u8 }}"));
        assert!(said.contains(says), "{attributes}: {said}");
        assert_eq!(place, at, "{attributes}");
    }
}

#[test]
fn new_fields_are_at_the_end_and_not_newer_than_the_message() {
    for (field, says, at) in [
        ("#[in_place(since = 4)] a: u8", "since version 4, but the message is version 3", "a"),
        ("#[in_place(since = 3)] a: u8, b: u8", "what is new goes to the end", "b"),
        ("#[in_place(since = 3)] a: u8, #[in_place(since = 2)] b: u8", "what is new goes to the end", "b"),
        ("#[in_place(since = 0)] a: u8", "from 1 to 255", "0"),
        ("#[in_place(since = 2, since = 2)] a: u8", "each once", "since"),
        ("#[in_place(until = 2)] a: u8", "`since = N` and `nested`", "until"),
        ("#[in_place(since = 2)] a: &'a [u8; 4]", "no default", "&'a [u8; 4]"),
    ] {
        let (said, place) = field_refused(field);
        assert!(said.contains(says), "{field}: {said}");
        assert_eq!(place, at, "{field}");
    }
}

#[test]
fn types_without_a_form_are_told_what_to_take() {
    for (ty, says, at) in [
        ("usize", "take u32 or u64", "usize"),
        ("isize", "take u32 or u64", "isize"),
        ("char", "&'a str", "char"),
        ("f64", "F64", "f64"),
        ("String", "&'a str", "String"),
        ("Vec<u8>", "&'a [T]", "Vec<u8>"),
        ("std::vec::Vec<u8>", "&'a [T]", "std::vec::Vec<u8>"),
        ("Option<usize>", "take u32 or u64", "usize"),
        ("Option<Option<u8>>", "Option in an Option", "Option<u8>"),
        ("Option<&'a [u8; 4]>", "cannot be missing", "Option<&'a [u8; 4]>"),
        ("[u32; 4]", "little_endian", "u32"),
        ("[char; 4]", "&'a str", "char"),
        ("[u8]", "borrow it", "[u8]"),
        ("&'a u64", "little_endian", "u64"),
        ("&'a [u64]", "little_endian", "u64"),
        ("&'a [usize]", "take u32 or u64", "usize"),
        ("&'a [&'a str]", "a field is an integer", "&'a str"),
        ("&'a mut [u8]", "without mut", "&'a mut [u8]"),
        ("&'static str", "the struct's own lifetime", "&'static str"),
        ("&str", "the struct's own lifetime", "&str"),
        ("(u8, u8)", "a field is an integer", "(u8, u8)"),
        ("fn()", "a field is an integer", "fn()"),
        ("Inner<'a>", "#[in_place(nested)]", "Inner<'a>"),
    ] {
        let (said, place) = field_refused(&format!("field: {ty}"));
        assert!(said.contains(says), "{ty}: {said}");
        assert_eq!(place, at, "{ty}");
    }
    let (said, place) = field_refused("#[in_place(nested)] field: &'a [u8]");
    assert!(said.contains("held by value"), "{said}");
    assert_eq!(place, "&'a [u8]");
}
