//! The derive of in-place messages (Jet §4.2.2). Use it as `jet_wire::in_place::InPlace`, whose documentation
//! describes it.
//!
//! What it does *not* do: it decides nothing about bytes. The code that it generates only calls
//! `jet_wire::in_place::parts`, and has no unsafe of its own.
//!
//! # What the compiler refuses
//!
//! A plain field needs zerocopy's traits; the error names the missing one and points at the field's type.
//! This is accepted:
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
//! This is refused, for it needs an even address:
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
//! type has none, and is refused:
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
//! A fixed part of more than 65535 bytes is refused:
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
//! The derive itself refuses types without a form and versions that decrease. Its errors say why, at the
//! place, and tests check their words.
#![forbid(unsafe_code)]

mod declaration;
mod field;
mod generate;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Derives `jet_wire::in_place::InPlace`, whose documentation describes the attributes.
#[proc_macro_derive(InPlace, attributes(in_place))]
pub fn derive_in_place(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    match declaration::Declaration::parse(&input) {
        Ok(declaration) => generate::implementation(&declaration).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
