//! Generation of a message's code.

use crate::declaration::Declaration;
use crate::field::{Field, Form};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Lifetime, LitStr};

/// A field with the names of its constants.
struct Placed<'d> {
    field: &'d Field,
    /// Name of the constant with the field's offset in the fixed part.
    at: Ident,
    /// Name of the constant with the offset of the field's value, which lies behind the byte that says
    /// whether there is one.
    value: Ident,
    /// Name of the constant with the number of bytes of the field's value, or of the number that stands for
    /// it.
    size: Ident,
    /// Name of the local variable that the field is read into.
    local: Ident,
    /// Names for the fixed part that has the field: of its length constant and of its local variable.
    fixed: (Ident, Ident),
    /// The field's name in errors, `Message.field`.
    path: LitStr,
}

/// Generates the implementation of `InPlace` for a message.
pub fn implementation(declaration: &Declaration) -> TokenStream {
    let Declaration { name, lifetime, kind, version, fields } = declaration;
    let message = LitStr::new(&name.to_string(), name.span());
    let placed: Vec<Placed> =
        fields.iter().enumerate().map(|(index, field)| Placed::new(name, index, field)).collect();
    let constants = constants(*version, &placed);
    let all = fixed_names(*version).0;
    let lengths = placed.iter().filter_map(Placed::length);
    let writes = placed.iter().map(Placed::write);
    let reads = reads(&placed);
    let (names, locals): (Vec<_>, Vec<_>) = placed.iter().map(|one| (&one.field.name, &one.local)).unzip();
    let (of, arguments) = match lifetime {
        Some(lifetime) => (lifetime.clone(), Some(quote!(<#lifetime>))),
        None => (Lifetime::new("'in_place", Span::mixed_site()), None),
    };
    quote! {
        const _: () = {
            use ::jet_wire::in_place::parts as __parts;
            #constants

            #[automatically_derived]
            impl<#of> ::jet_wire::in_place::InPlace<#of> for #name #arguments {
                const NAME: &'static str = #message;
                const KIND: u8 = #kind;
                const VERSION: u8 = #version;
                const FIXED_BYTES: usize = #all;

                #[inline]
                fn encoded_len(&self) -> usize {
                    // A message that does not fit is refused by `write_to`.
                    let bytes = #all;
                    #(let bytes = ::core::primitive::usize::saturating_add(bytes, #lengths);)*
                    bytes
                }

                #[inline]
                #[allow(unused_mut, unused_variables, unused_assignments)]
                fn write_to(
                    &self,
                    out: &mut [u8],
                ) -> ::core::result::Result<usize, ::jet_wire::in_place::EncodeError> {
                    let bytes = ::jet_wire::in_place::InPlace::encoded_len(self);
                    let (fixed, mut rest) =
                        __parts::start::<{ #all }>(#message, (#version, #kind), bytes, out)?;
                    #(#writes)*
                    ::core::result::Result::Ok(bytes)
                }

                #[inline]
                fn read_prefix(
                    bytes: &#of [u8],
                ) -> ::core::result::Result<(Self, &#of [u8]), ::jet_wire::in_place::DecodeError> {
                    let opened = __parts::open(#message, (#version, #kind), &__VERSIONS, bytes)?;
                    let message = fields(&opened)?;
                    ::core::result::Result::Ok((message, opened.behind))
                }

                // Inlined whole into its caller, where the fields stay in registers and no struct is built.
                #[inline(always)]
                fn read(
                    bytes: &#of [u8],
                ) -> ::core::result::Result<Self, ::jet_wire::in_place::DecodeError> {
                    let opened = __parts::open(#message, (#version, #kind), &__VERSIONS, bytes)?;
                    __parts::alone(&opened)?;
                    fields(&opened)
                }
            }

            #[inline(always)]
            #[allow(unused_mut, unused_variables)]
            fn fields<#of>(
                opened: &__parts::Opened<#of>,
            ) -> ::core::result::Result<#name #arguments, ::jet_wire::in_place::DecodeError> {
                let mut rest = opened.rest;
                #reads
                __parts::end(#version, opened, rest)?;
                ::core::result::Result::Ok(#name { #(#names: #locals),* })
            }
        };
    }
}

/// Returns the names for a version's fixed part: its length constant and its local variable.
fn fixed_names(version: u8) -> (Ident, Ident) {
    (format_ident!("__FIXED_{version}"), format_ident!("fixed_{version}"))
}

/// Generates the constants that say where each field of the message lies.
fn constants(version: u8, placed: &[Placed]) -> TokenStream {
    let mut next = quote!(::jet_wire::in_place::HEAD_BYTES);
    let mut constants = TokenStream::new();
    for one in placed {
        let Placed { at, value, size, .. } = one;
        let bytes = one.size();
        let flag = usize::from(one.field.optional && !one.field.form.is_variable());
        constants.extend(quote! {
            const #at: usize = #next;
            const #value: usize = #at + #flag;
            const #size: usize = #bytes;
        });
        next = quote!(#value + #size);
    }
    let mut versions = Vec::new();
    for version in 1..=version {
        let (fixed, _) = fixed_names(version);
        let end = match placed.iter().rfind(|one| one.field.since <= version) {
            Some(Placed { value, size, .. }) => quote!(#value + #size),
            None => quote!(::jet_wire::in_place::HEAD_BYTES),
        };
        constants.extend(quote!(const #fixed: usize = #end;));
        versions.push(fixed);
    }
    let count = versions.len();
    quote! {
        #constants
        const __VERSIONS: [u16; #count] = [#(__parts::fixed_bytes(#versions)),*];
    }
}

/// Generates the reads of the fields, each into its local variable. A version's fixed part is taken before
/// its first field.
fn reads(placed: &[Placed]) -> TokenStream {
    let mut reads = TokenStream::new();
    let mut last = 0;
    for one in placed {
        let Placed { field, local, fixed: (length, fixed), .. } = one;
        let since = field.since;
        if since != last {
            let part = quote!(__parts::fixed_part::<{ #length }>(opened)?);
            reads.extend(if since == 1 {
                quote!(let #fixed = #part;)
            } else {
                quote! {
                    let #fixed = if opened.version >= #since {
                        ::core::option::Option::Some(#part)
                    } else {
                        ::core::option::Option::None
                    };
                }
            });
            last = since;
        }
        let read = one.read();
        reads.extend(if since == 1 {
            quote!(let #local = #read;)
        } else {
            let ty = &field.whole;
            let default = quote_spanned!(ty.span()=> <#ty as ::core::default::Default>::default());
            quote! {
                let #local = match #fixed {
                    ::core::option::Option::Some(#fixed) => #read,
                    ::core::option::Option::None => #default,
                };
            }
        });
    }
    reads
}

impl<'d> Placed<'d> {
    fn new(message: &Ident, index: usize, field: &'d Field) -> Self {
        Self {
            field,
            at: format_ident!("__AT_{index}"),
            value: format_ident!("__VALUE_{index}"),
            size: format_ident!("__SIZE_{index}"),
            local: format_ident!("field_{index}"),
            fixed: fixed_names(field.since),
            path: LitStr::new(&format!("{message}.{}", field.name), field.name.span()),
        }
    }

    /// Generates the number of bytes of the field's value, or of the number that stands for it in the fixed
    /// part.
    fn size(&self) -> TokenStream {
        match &self.field.form {
            Form::Integer(ty) => quote!(::core::mem::size_of::<#ty>()),
            Form::Plain(ty) | Form::PlainInPlace(ty) => quote_spanned!(ty.span()=> __parts::size::<#ty>()),
            Form::Bytes | Form::Text | Form::List(_) | Form::Nested(_) => quote!(4),
        }
    }

    /// Generates the number of bytes that the field takes behind the fixed part; `None` where it takes none
    /// there.
    fn length(&self) -> Option<TokenStream> {
        let name = &self.field.name;
        let length = |value: TokenStream| match &self.field.form {
            Form::Integer(_) | Form::Plain(_) | Form::PlainInPlace(_) => None,
            Form::Bytes | Form::Text | Form::List(_) => Some(quote!(::core::mem::size_of_val(#value))),
            Form::Nested(ty) => {
                Some(quote_spanned!(ty.span()=> <#ty as ::jet_wire::in_place::InPlace>::encoded_len(#value)))
            }
        };
        if !self.field.optional {
            return match self.field.form {
                Form::Nested(_) => length(quote!(&self.#name)),
                _ => length(quote!(self.#name)),
            };
        }
        let some = length(quote!(value))?;
        let pattern = self.some();
        Some(quote! {
            match self.#name {
                #pattern => #some,
                ::core::option::Option::None => 0,
            }
        })
    }

    /// Generates the pattern `Some(value)` for the field, in which `value` is a reference.
    fn some(&self) -> TokenStream {
        match self.field.form {
            Form::Bytes | Form::Text | Form::List(_) => quote!(::core::option::Option::Some(value)),
            Form::Integer(_) | Form::Plain(_) | Form::PlainInPlace(_) | Form::Nested(_) => {
                quote!(::core::option::Option::Some(ref value))
            }
        }
    }

    fn write(&self) -> TokenStream {
        let Self { at, value: place, size, path, .. } = self;
        let name = &self.field.name;
        if !self.field.form.is_variable() {
            let put = |value: TokenStream| match &self.field.form {
                Form::Integer(ty) => {
                    quote!(__parts::put::<#place, #size, _>(fixed, &<#ty>::to_le_bytes(*#value));)
                }
                Form::Plain(ty) | Form::PlainInPlace(ty) => {
                    quote_spanned!(ty.span()=> __parts::put_plain::<#ty, #place, _>(fixed, #value);)
                }
                _ => unreachable!("variable"),
            };
            if !self.field.optional {
                return match self.field.form {
                    Form::PlainInPlace(_) => put(quote!(self.#name)),
                    _ => put(quote!((&self.#name))),
                };
            }
            let (some, put) = (self.some(), put(quote!(value)));
            return quote! {
                match self.#name {
                    #some => {
                        __parts::put::<#at, 1, _>(fixed, &[1]);
                        #put
                    }
                    ::core::option::Option::None => {
                        __parts::put::<#at, 1, _>(fixed, &[0]);
                        __parts::put::<#place, #size, _>(fixed, &[0; #size]);
                    }
                }
            };
        }
        let bytes = |value: TokenStream| match &self.field.form {
            Form::Text => quote!(::core::primitive::str::as_bytes(#value)),
            Form::List(ty) => quote_spanned!(ty.span()=> __parts::list_bytes::<#ty>(#value)),
            _ => value,
        };
        let append = |value: TokenStream| match &self.field.form {
            Form::Nested(ty) => quote_spanned!(ty.span()=> {
                let (count, left) = __parts::append_nested::<#ty>(#path, rest, #value)?;
                rest = left;
                count
            }),
            _ => {
                let bytes = bytes(value.clone());
                quote!({
                    rest = __parts::append(#path, rest, #bytes)?;
                    #value.len()
                })
            }
        };
        let (count, number) = if self.field.optional {
            let (some, append) = (self.some(), append(quote!(value)));
            let count = quote! {
                match self.#name {
                    #some => ::core::option::Option::Some(#append),
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            };
            (count, quote!(number_or_none))
        } else {
            let value = match self.field.form {
                Form::Nested(_) => quote!(&self.#name),
                _ => quote!(self.#name),
            };
            (append(value), quote!(number))
        };
        quote! {
            let count = #count;
            __parts::put::<#place, #size, _>(fixed, &__parts::#number(count));
        }
    }

    /// Generates the read of the field from the local variable with the fixed part.
    fn read(&self) -> TokenStream {
        let Self { at, value: place, size, path, fixed: (_, fixed), .. } = self;
        let bytes = quote!(__parts::get::<#place, #size, _>(#fixed));
        if !self.field.form.is_variable() {
            let value = match &self.field.form {
                Form::Integer(ty) => quote!(<#ty>::from_le_bytes(*#bytes)),
                Form::PlainInPlace(ty) => {
                    quote_spanned!(ty.span()=> __parts::plain_in_place::<#ty, #size>(#path, #bytes)?)
                }
                Form::Plain(ty) => quote_spanned!(ty.span()=> __parts::plain::<#ty, #size>(#path, #bytes)?),
                _ => unreachable!("variable"),
            };
            if !self.field.optional {
                return value;
            }
            return quote! {
                if __parts::present(#path, __parts::get::<#at, 1, _>(#fixed)[0], #bytes)? {
                    ::core::option::Option::Some(#value)
                } else {
                    ::core::option::Option::None
                }
            };
        }
        let take = match &self.field.form {
            Form::Bytes => quote!(__parts::bytes(#path, count, &mut rest)?),
            Form::Text => quote!(__parts::text(#path, count, &mut rest)?),
            Form::List(ty) => {
                quote_spanned!(ty.span()=> __parts::elements::<#ty>(#path, count, &mut rest)?)
            }
            Form::Nested(ty) => {
                quote_spanned!(ty.span()=> __parts::nested::<#ty>(#path, count, &mut rest)?)
            }
            _ => unreachable!("fixed"),
        };
        if self.field.optional {
            quote! {
                match __parts::count_or_none(#bytes) {
                    ::core::option::Option::Some(count) => ::core::option::Option::Some(#take),
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            }
        } else {
            quote!({
                let count = __parts::count(#bytes);
                #take
            })
        }
    }
}
