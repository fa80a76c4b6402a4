//! A field's declaration: its form, and which part of it lies where in the message.

use crate::declaration::{attributes, one_to_255};
use syn::spanned::Spanned;
use syn::{Error, GenericArgument, Ident, Lifetime, PathArguments, Result, Type, TypePath, TypeReference};

const INTEGERS: [&str; 10] = ["u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128"];

/// A field of a message.
pub struct Field {
    pub name: Ident,
    /// The field's whole type, as declared.
    pub whole: Type,
    /// Version that introduced the field.
    pub since: u8,
    /// Whether the field's type is an `Option` of the form.
    pub optional: bool,
    pub form: Form,
}

/// The form in which a field is written.
pub enum Form {
    /// A little-endian integer.
    Integer(Type),
    /// A value, copied.
    Plain(Type),
    /// A value, borrowed where it lies.
    PlainInPlace(Type),
    /// A number of bytes, and those bytes.
    Bytes,
    /// A number of bytes, and those bytes, as text.
    Text,
    /// A number of elements, and those elements.
    List(Type),
    /// A number of bytes, and the message that lies in them.
    Nested(Type),
}

impl Form {
    /// Returns whether the form puts a number into the fixed part, and what it counts (bytes or elements)
    /// behind that part.
    pub fn is_variable(&self) -> bool {
        match self {
            Self::Integer(_) | Self::Plain(_) | Self::PlainInPlace(_) => false,
            Self::Bytes | Self::Text | Self::List(_) | Self::Nested(_) => true,
        }
    }
}

impl Field {
    pub fn parse(field: &syn::Field, lifetime: Option<&Lifetime>) -> Result<Self> {
        let (mut since, mut nested) = (None, false);
        for attribute in attributes(&field.attrs) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("since") && since.is_none() {
                    since = Some(one_to_255(&meta.value()?.parse()?)?);
                    Ok(())
                } else if meta.path.is_ident("nested") && !nested {
                    nested = true;
                    Ok(())
                } else {
                    Err(meta.error("of a field, `since = N` and `nested` are said here, each once"))
                }
            })?;
        }
        let since = since.unwrap_or(1);
        let (optional, inner) = match option(&field.ty) {
            Some(inner) => (true, inner),
            None => (false, &field.ty),
        };
        let form = if nested { nested_form(inner)? } else { form(inner, lifetime)? };
        if let Form::PlainInPlace(_) = form {
            if optional {
                return Err(Error::new(
                    field.ty.span(),
                    "a borrowed value cannot be missing: its bytes are there; take Option<T>, \
                     or a list &[T] of none or one",
                ));
            }
            if since > 1 {
                return Err(Error::new(
                    field.ty.span(),
                    "a borrowed value has no default that older messages could be read with; \
                     take T, or a list &[T]",
                ));
            }
        }
        let name = field.ident.clone().ok_or_else(|| Error::new(field.span(), "a field has a name"))?;
        Ok(Self { name, whole: field.ty.clone(), since, optional, form })
    }
}

/// Returns the type inside an `Option`.
fn option(ty: &Type) -> Option<&Type> {
    let Type::Path(TypePath { qself: None, path }) = bare(ty) else { return None };
    let last = path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(inner)) => Some(inner),
        _ => None,
    }
}

fn nested_form(ty: &Type) -> Result<Form> {
    match bare(ty) {
        Type::Path(_) => Ok(Form::Nested(ty.clone())),
        _ => Err(Error::new(ty.span(), "a nested message is held by value: Name or Name<'a>")),
    }
}

fn form(ty: &Type, lifetime: Option<&Lifetime>) -> Result<Form> {
    match bare(ty) {
        Type::Path(_) if is_integer(ty) => Ok(Form::Integer(ty.clone())),
        Type::Path(_) => {
            if option(ty).is_some() {
                return Err(Error::new(ty.span(), "an Option in an Option has no form"));
            }
            plain(ty).map(Form::Plain)
        }
        Type::Array(array) => {
            if is_integer(&array.elem) && !is_byte(&array.elem) {
                return Err(aligned(&array.elem));
            }
            plain(&array.elem)?;
            Ok(Form::Plain(ty.clone()))
        }
        Type::Reference(reference) => borrowed(reference, lifetime),
        Type::Slice(_) => Err(Error::new(ty.span(), "borrow it: &'a [T]")),
        _ => Err(unsupported(ty)),
    }
}

fn borrowed(reference: &TypeReference, lifetime: Option<&Lifetime>) -> Result<Form> {
    if reference.mutability.is_some() {
        return Err(Error::new(reference.span(), "a message is only read: take it without mut"));
    }
    if reference.lifetime.is_none() || reference.lifetime.as_ref() != lifetime {
        return Err(Error::new(
            reference.span(),
            "borrowed from the message's bytes: with the struct's own lifetime, &'a",
        ));
    }
    let ty = &*reference.elem;
    match bare(ty) {
        Type::Slice(slice) => {
            let element = &*slice.elem;
            if is_named(element, "u8") {
                return Ok(Form::Bytes);
            }
            if is_integer(element) && !is_byte(element) {
                return Err(aligned(element));
            }
            match bare(element) {
                Type::Path(_) | Type::Array(_) => plain(element).map(Form::List),
                _ => Err(unsupported(element)),
            }
        }
        Type::Path(_) if is_named(ty, "str") => Ok(Form::Text),
        Type::Path(_) if is_integer(ty) && !is_byte(ty) => Err(aligned(ty)),
        Type::Path(_) | Type::Array(_) => plain(ty).map(Form::PlainInPlace),
        _ => Err(unsupported(ty)),
    }
}

/// Takes a type as plain, unless it is known not to have zerocopy's traits. The compiler checks the traits.
fn plain(ty: &Type) -> Result<Type> {
    let Type::Path(TypePath { path, .. }) = bare(ty) else { return Ok(ty.clone()) };
    let Some(last) = path.segments.last() else { return Err(unsupported(ty)) };
    let advice = match last.ident.to_string().as_str() {
        "usize" | "isize" => "its size is the machine's; take u32 or u64",
        "char" => "not all bytes are one; take u32, or &'a str",
        "f32" | "f64" => "take zerocopy::little_endian::F32 or F64",
        "str" => "borrow it: &'a str",
        "String" => "it lies elsewhere; borrow it from the message: &'a str",
        "Vec" | "Box" | "Rc" | "Arc" | "Cow" => "it lies elsewhere; borrow it from the message: &'a [T]",
        _ => match &last.arguments {
            PathArguments::AngleBracketed(arguments)
                if arguments.args.iter().any(|one| matches!(one, GenericArgument::Lifetime(_))) =>
            {
                "what borrows is no plain value; if it is an in-place message: #[in_place(nested)]"
            }
            _ => return Ok(ty.clone()),
        },
    };
    Err(Error::new(ty.span(), advice))
}

fn aligned(ty: &Type) -> Error {
    Error::new(
        ty.span(),
        "a message lies at any address, and an integer that is borrowed does not; \
         take U16, U32, U64, ... of zerocopy::little_endian",
    )
}

fn unsupported(ty: &Type) -> Error {
    Error::new(
        ty.span(),
        "a field is an integer, a plain type (zerocopy's traits), &'a [u8], &'a str, &'a [T], an Option of \
         these, or #[in_place(nested)]",
    )
}

fn is_integer(ty: &Type) -> bool {
    INTEGERS.iter().any(|name| is_named(ty, name))
}

fn is_byte(ty: &Type) -> bool {
    is_named(ty, "u8") || is_named(ty, "i8")
}

fn is_named(ty: &Type, name: &str) -> bool {
    matches!(bare(ty), Type::Path(TypePath { qself: None, path }) if path.is_ident(name))
}

/// Removes the groups that a macro leaves around a type that it was given.
fn bare(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            _ => return ty,
        };
    }
}
