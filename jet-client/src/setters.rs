//! Setters of options, which all say and do the same.

/// Defines for each field a method of its name that sets it, to be chained after `new` or `default`.
macro_rules! setters {
    ($($field:ident: $type:ty),+ $(,)?) => {
        $(
            #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )+
    };
}

pub(crate) use setters;
