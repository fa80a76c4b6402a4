//! A struct's declaration, parsed and checked.

use crate::field::Field;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, GenericParam, Ident, Lifetime, LitInt, Result};

/// The declaration of an in-place message.
pub struct Declaration {
    pub name: Ident,
    pub lifetime: Option<Lifetime>,
    pub kind: u8,
    pub version: u8,
    pub fields: Vec<Field>,
}

impl Declaration {
    pub fn parse(input: &DeriveInput) -> Result<Self> {
        let Data::Struct(data) = &input.data else {
            return Err(Error::new(
                input.ident.span(),
                "an in-place message is a struct; an enum can be a field of one, by deriving zerocopy's \
                 traits",
            ));
        };
        let named = match &data.fields {
            Fields::Named(named) => named,
            Fields::Unnamed(_) | Fields::Unit => {
                return Err(Error::new(
                    input.ident.span(),
                    "an in-place message has named fields: struct Name { field: type }",
                ));
            }
        };
        let lifetime = lifetime(input)?;
        let (kind, version) = kind_and_version(input)?;
        let mut fields: Vec<Field> = Vec::new();
        for field in &named.named {
            let field = Field::parse(field, lifetime.as_ref())?;
            if field.since > version {
                return Err(Error::new(
                    field.name.span(),
                    format!("since version {}, but the message is version {version}", field.since),
                ));
            }
            if let Some(last) = fields.last().filter(|last| last.since > field.since) {
                return Err(Error::new(
                    field.name.span(),
                    format!(
                        "since version {}, behind a field since version {}: what is new goes to the end, \
                         or older messages could not be read",
                        field.since, last.since
                    ),
                ));
            }
            fields.push(field);
        }
        Ok(Self { name: input.ident.clone(), lifetime, kind, version, fields })
    }
}

fn lifetime(input: &DeriveInput) -> Result<Option<Lifetime>> {
    let mut found = None;
    for parameter in &input.generics.params {
        match parameter {
            GenericParam::Lifetime(lifetime) if found.is_none() => found = Some(lifetime.lifetime.clone()),
            GenericParam::Lifetime(lifetime) => {
                return Err(Error::new(
                    lifetime.span(),
                    "an in-place message has one lifetime: that of the bytes that it lies in",
                ));
            }
            GenericParam::Type(_) | GenericParam::Const(_) => {
                return Err(Error::new(
                    parameter.span(),
                    "an in-place message has no type or constant parameters: its layout must be one",
                ));
            }
        }
    }
    if let Some(clause) = &input.generics.where_clause {
        return Err(Error::new(clause.span(), "an in-place message has no where clause"));
    }
    Ok(found)
}

fn kind_and_version(input: &DeriveInput) -> Result<(u8, u8)> {
    const NEEDED: &str =
        "an in-place message says its kind and version: #[in_place(kind = N, version = N)], each 1 to 255";
    let (mut kind, mut version) = (None, None);
    for attribute in attributes(&input.attrs) {
        attribute.parse_nested_meta(|meta| {
            let place = if meta.path.is_ident("kind") {
                &mut kind
            } else if meta.path.is_ident("version") {
                &mut version
            } else {
                return Err(meta.error("of a message, `kind = N` and `version = N` are said here"));
            };
            if place.is_some() {
                return Err(meta.error("said twice"));
            }
            *place = Some(one_to_255(&meta.value()?.parse()?)?);
            Ok(())
        })?;
    }
    match (kind, version) {
        (Some(kind), Some(version)) => Ok((kind, version)),
        _ => Err(Error::new(input.ident.span(), NEEDED)),
    }
}

/// Returns the `#[in_place(...)]` attributes among all.
pub fn attributes(all: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    all.iter().filter(|attribute| attribute.path().is_ident("in_place"))
}

/// Parses a kind or a version, 1 to 255.
pub fn one_to_255(literal: &LitInt) -> Result<u8> {
    match literal.base10_parse::<u8>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Error::new(literal.span(), "a number from 1 to 255")),
    }
}
