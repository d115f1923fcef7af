//! Dtypes of safetensors and the element classes that give their bits an order (SPEC.md §2, §8).

use crate::error::{FormatError, Result};
use std::fmt;

macro_rules! dtypes {
    ($($name:ident = $code:literal, $text:literal, $bits:literal, $class:ident;)*) => {
        /// A safetensors dtype; the number is its code in a schema.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Dtype { $($name = $code,)* }

        impl Dtype {
            /// Every dtype, by code.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$name,)*];

            /// The dtype of this name in a safetensors header.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$name),)* _ => None }
            }

            /// Its name in a safetensors header.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bits that one value takes.
            pub const fn bits(self) -> u64 {
                match self { $(Self::$name => $bits,)* }
            }

            /// The class in which values of this dtype are ordered, unless they are packed nibbles.
            const fn natural_class(self) -> ElementClass {
                match self { $(Self::$name => ElementClass::$class,)* }
            }

            /// The dtype of this code in a schema.
            pub fn from_code(code: u8) -> Result<Self> {
                match code {
                    $($code => Ok(Self::$name),)*
                    _ => Err(FormatError::Unsupported {
                        what: "schema",
                        field: "dtype code",
                        found: u64::from(code),
                        supported: "codes 1 to 22",
                    }),
                }
            }
        }
    };
}

dtypes! {
    Bool = 1, "BOOL", 8, U8;
    F4 = 2, "F4", 4, U8;
    F6E2M3 = 3, "F6_E2M3", 6, U8;
    F6E3M2 = 4, "F6_E3M2", 6, U8;
    U8 = 5, "U8", 8, U8;
    I8 = 6, "I8", 8, I8;
    F8E5M2 = 7, "F8_E5M2", 8, F8E5M2;
    F8E4M3 = 8, "F8_E4M3", 8, F8E4M3;
    F8E8M0 = 9, "F8_E8M0", 8, U8;
    F8E4M3Fnuz = 10, "F8_E4M3FNUZ", 8, F8E4M3Fnuz;
    F8E5M2Fnuz = 11, "F8_E5M2FNUZ", 8, F8E5M2Fnuz;
    I16 = 12, "I16", 16, I16;
    U16 = 13, "U16", 16, U16;
    F16 = 14, "F16", 16, F16;
    BF16 = 15, "BF16", 16, BF16;
    I32 = 16, "I32", 32, I32;
    U32 = 17, "U32", 32, U32;
    F32 = 18, "F32", 32, F32;
    C64 = 19, "C64", 64, F32;
    F64 = 20, "F64", 64, F64;
    I64 = 21, "I64", 64, I64;
    U64 = 22, "U64", 64, U64;
}

impl Dtype {
    /// The element class of a tensor of this dtype and name: integers that hold packed nibbles go by bytes.
    pub fn class_of(self, tensor_name: &str) -> ElementClass {
        const PACKED: [&str; 4] = [
            "qweight",
            "qzeros",
            "weight_packed",
            "weight_zero_point_packed",
        ];
        let last = tensor_name.rsplit('.').next().unwrap_or(tensor_name);
        if self.may_be_read_as(ElementClass::U8) && PACKED.contains(&last) {
            return ElementClass::U8;
        }
        self.natural_class()
    }

    /// Whether a tensor of this dtype can be of `class`: the one of its values, or bytes where integers may hold
    /// packed nibbles.
    pub(crate) fn may_be_read_as(self, class: ElementClass) -> bool {
        let natural = self.natural_class();
        class == natural || (class == ElementClass::U8 && natural.order() != Order::Float)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the bits of a word are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As they are.
    Unsigned,
    /// Two's complement.
    Signed,
    /// Sign and magnitude, as every IEEE-like float: -NaN … -0, +0 … +NaN.
    Float,
}

macro_rules! classes {
    ($($name:ident = $number:literal, $text:literal, $width:literal, $order:ident;)*) => {
        /// What the words of a tensor are: their width and their order (SPEC.md §2).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum ElementClass { $($name = $number,)* }

        impl ElementClass {
            /// Every class, by number.
            pub const ALL: &'static [ElementClass] = &[$(ElementClass::$name,)*];

            /// The class with this number.
            pub fn from_number(what: &'static str, number: u8) -> Result<Self> {
                match number {
                    $($number => Ok(Self::$name),)*
                    _ => Err(FormatError::Unsupported {
                        what,
                        field: "element class",
                        found: u64::from(number),
                        supported: "classes 1 to 16",
                    }),
                }
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bytes of one element.
            pub const fn width(self) -> usize {
                match self { $(Self::$name => $width,)* }
            }

            /// Order of the elements' bits.
            pub const fn order(self) -> Order {
                match self { $(Self::$name => Order::$order,)* }
            }
        }
    };
}

classes! {
    U8 = 1, "U8", 1, Unsigned;
    I8 = 2, "I8", 1, Signed;
    F8E4M3 = 3, "F8_E4M3", 1, Float;
    F8E5M2 = 4, "F8_E5M2", 1, Float;
    U16 = 5, "U16", 2, Unsigned;
    I16 = 6, "I16", 2, Signed;
    F16 = 7, "F16", 2, Float;
    BF16 = 8, "BF16", 2, Float;
    U32 = 9, "U32", 4, Unsigned;
    I32 = 10, "I32", 4, Signed;
    F32 = 11, "F32", 4, Float;
    U64 = 12, "U64", 8, Unsigned;
    I64 = 13, "I64", 8, Signed;
    F64 = 14, "F64", 8, Float;
    F8E4M3Fnuz = 15, "F8_E4M3FNUZ", 1, Float;
    F8E5M2Fnuz = 16, "F8_E5M2FNUZ", 1, Float;
}

impl ElementClass {
    /// Its number in the formats.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Largest absolute value of a shift, 2^(8w) - 1; for 8-byte elements every `i64` is a shift.
    pub const fn largest_shift(self) -> u64 {
        match self.width() {
            8 => 1 << 63,
            width => (1 << (8 * width)) - 1,
        }
    }
}

impl fmt::Display for ElementClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_widths_agree() {
        for (i, dtype) in Dtype::ALL.iter().enumerate() {
            assert_eq!(*dtype as usize, i + 1);
            assert_eq!(Dtype::from_code(*dtype as u8), Ok(*dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
            // A class is never wider than its dtype, or a shape might not fill whole elements.
            let class = dtype.class_of("w");
            assert!(class.width() as u64 * 8 <= dtype.bits().max(8));
        }
        for (i, class) in ElementClass::ALL.iter().enumerate() {
            assert_eq!(class.number() as usize, i + 1);
            assert_eq!(ElementClass::from_number("x", class.number()), Ok(*class));
        }
    }

    #[test]
    fn packed_integers_go_by_bytes() {
        assert_eq!(Dtype::I32.class_of("model.l.qweight"), ElementClass::U8);
        assert_eq!(Dtype::U8.class_of("a.weight_packed"), ElementClass::U8);
        assert_eq!(Dtype::I32.class_of("a.weight"), ElementClass::I32);
        assert_eq!(Dtype::F16.class_of("a.qweight"), ElementClass::F16);
        assert_eq!(Dtype::C64.class_of("rope"), ElementClass::F32);
    }
}
