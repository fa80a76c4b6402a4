//! The derive of in-place messages (Jet §4.2.2). Use it as `jet_wire::in_place::InPlace`, where it is
//! described.
//!
//! What it does not do: it decides nothing about bytes. The code that it writes puts together
//! `jet_wire::in_place::parts`, and has no unsafe of its own.
//!
//! # What the compiler refuses
//!
//! A plain field needs zerocopy's traits; the error names the missing one and points at the field's type.
//! This is taken:
//!
//! ```
//! use jet_wire::in_place::InPlace;
//! use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};
//!
//! #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
//! #[repr(u8)]
//! enum Mode {
//!     Read,
//! }
//!
//! #[derive(InPlace)]
//! #[in_place(kind = 1, version = 1)]
//! struct Open {
//!     mode: Mode,
//! }
//! ```
//!
//! and this not, as it needs an even address:
//!
//! ```compile_fail
//! use jet_wire::in_place::InPlace;
//! use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};
//!
//! #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout)]
//! #[repr(u16)]
//! enum Mode {
//!     Read,
//! }
//!
//! #[derive(InPlace)]
//! #[in_place(kind = 1, version = 1)]
//! struct Open {
//!     mode: Mode,
//! }
//! ```
//!
//! A later field needs a default, for messages that do not have it. `Option<Mode>` and `u8` have one; this
//! has none:
//!
//! ```compile_fail
//! use jet_wire::in_place::InPlace;
//! use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};
//!
//! #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
//! #[repr(u8)]
//! enum Mode {
//!     Read,
//! }
//!
//! #[derive(InPlace)]
//! #[in_place(kind = 1, version = 2)]
//! struct Open {
//!     #[in_place(since = 2)]
//!     mode: Mode,
//! }
//! ```
//!
//! A fixed part of more than 65535 bytes:
//!
//! ```compile_fail
//! use jet_wire::in_place::InPlace;
//!
//! #[derive(InPlace)]
//! #[in_place(kind = 1, version = 1)]
//! struct Block {
//!     bytes: [u8; 65528],
//! }
//! ```
//!
//! What the derive itself refuses (types without a form, versions that go back) it says at the place, in
//! words; that is tested word by word.
#![forbid(unsafe_code)]

mod declaration;
mod field;
mod generate;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Derives `jet_wire::in_place::InPlace`, which see.
#[proc_macro_derive(InPlace, attributes(in_place))]
pub fn derive_in_place(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    match declaration::Declaration::parse(&input) {
        Ok(declaration) => generate::implementation(&declaration).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
