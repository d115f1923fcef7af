//! `ord` and shifts: the order of an element class's bits (SPEC.md §2).
//!
//! [`Element`] is implemented by one type per (width, order), so that kernels are compiled for each;
//! [`with_element!`](crate::ord::with_element) picks the type for an [`ElementClass`](crate::ElementClass).

use crate::dtype::Order;

/// One width and order of elements; `ord` is a bijection between words and unsigned integers.
pub(crate) trait Element: 'static {
    /// Bytes of a word.
    const WIDTH: usize;
    /// Order of its bits.
    const ORDER: Order;

    /// Mask of the word's bits.
    const MASK: u64 = u64::MAX >> (64 - 8 * Self::WIDTH);
    /// The sign bit.
    const SIGN: u64 = 1 << (8 * Self::WIDTH - 1);

    /// The word at the start of `bytes`, which holds at least `WIDTH`.
    fn load(bytes: &[u8]) -> u64;

    /// Write `word` at the start of `bytes`, which holds at least `WIDTH`.
    fn store(bytes: &mut [u8], word: u64);

    /// The word's place in the order of its values.
    #[inline(always)]
    fn ord(word: u64) -> u64 {
        match Self::ORDER {
            Order::Unsigned => word,
            Order::Signed => word ^ Self::SIGN,
            Order::Float => {
                let negative = (word >> (8 * Self::WIDTH - 1)) & 1;
                // All ones for negative numbers, else the sign bit alone.
                word ^ (negative.wrapping_neg() & Self::MASK | Self::SIGN)
            }
        }
    }

    /// The word at place `ord`; the inverse of [`Element::ord`].
    #[inline(always)]
    fn word(ord: u64) -> u64 {
        match Self::ORDER {
            Order::Unsigned => ord,
            Order::Signed => ord ^ Self::SIGN,
            Order::Float => {
                let positive = (ord >> (8 * Self::WIDTH - 1)) & 1;
                ord ^ (positive.wrapping_sub(1) & Self::MASK | Self::SIGN)
            }
        }
    }

    /// `ord(new) - ord(old)`: exact for narrower elements, mod 2⁶⁴ for 8 bytes.
    #[inline(always)]
    fn shift(old: u64, new: u64) -> i64 {
        Self::ord(new).wrapping_sub(Self::ord(old)) as i64
    }

    /// The place reached from `ord` by `shift`, or `None` if that leaves the range.
    #[inline(always)]
    fn moved(ord: u64, shift: i64) -> Option<u64> {
        let moved = ord.wrapping_add(shift as u64);
        (Self::WIDTH == 8 || moved <= Self::MASK).then_some(moved)
    }
}

macro_rules! elements {
    ($($name:ident: $word:ty, $order:ident;)*) => {$(
        pub(crate) struct $name;

        impl Element for $name {
            const WIDTH: usize = size_of::<$word>();
            const ORDER: Order = Order::$order;

            #[inline(always)]
            fn load(bytes: &[u8]) -> u64 {
                let mut word = [0; size_of::<$word>()];
                word.copy_from_slice(&bytes[..size_of::<$word>()]);
                u64::from(<$word>::from_le_bytes(word))
            }

            #[inline(always)]
            fn store(bytes: &mut [u8], word: u64) {
                bytes[..size_of::<$word>()].copy_from_slice(&(word as $word).to_le_bytes());
            }
        }
    )*};
}

elements! {
    Unsigned1: u8, Unsigned;
    Signed1: u8, Signed;
    Float1: u8, Float;
    Unsigned2: u16, Unsigned;
    Signed2: u16, Signed;
    Float2: u16, Float;
    Unsigned4: u32, Unsigned;
    Signed4: u32, Signed;
    Float4: u32, Float;
    Unsigned8: u64, Unsigned;
    Signed8: u64, Signed;
    Float8: u64, Float;
}

/// Run `$body` with `$element` naming the [`Element`] type of an `ElementClass`.
macro_rules! with_element {
    ($class:expr, $element:ident => $body:expr) => {{
        use $crate::dtype::Order;
        use $crate::ord;
        let class: $crate::dtype::ElementClass = $class;
        match (class.width(), class.order()) {
            (1, Order::Unsigned) => $crate::ord::with_element!(@ $element, Unsigned1, $body),
            (1, Order::Signed) => $crate::ord::with_element!(@ $element, Signed1, $body),
            (1, Order::Float) => $crate::ord::with_element!(@ $element, Float1, $body),
            (2, Order::Unsigned) => $crate::ord::with_element!(@ $element, Unsigned2, $body),
            (2, Order::Signed) => $crate::ord::with_element!(@ $element, Signed2, $body),
            (2, Order::Float) => $crate::ord::with_element!(@ $element, Float2, $body),
            (4, Order::Unsigned) => $crate::ord::with_element!(@ $element, Unsigned4, $body),
            (4, Order::Signed) => $crate::ord::with_element!(@ $element, Signed4, $body),
            (4, Order::Float) => $crate::ord::with_element!(@ $element, Float4, $body),
            (_, Order::Unsigned) => $crate::ord::with_element!(@ $element, Unsigned8, $body),
            (_, Order::Signed) => $crate::ord::with_element!(@ $element, Signed8, $body),
            (_, Order::Float) => $crate::ord::with_element!(@ $element, Float8, $body),
        }
    }};
    (@ $element:ident, $type:ident, $body:expr) => {{
        type $element = ord::$type;
        $body
    }};
}
pub(crate) use with_element;

use crate::dtype::ElementClass;

/// The place of the word in `bytes` (one element, little-endian) in the order of its class.
///
/// # Panics
///
/// If `bytes` is shorter than one element.
pub fn ord(class: ElementClass, bytes: &[u8]) -> u64 {
    with_element!(class, E => E::ord(E::load(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ord_is_a_bijection_in_the_order_of_values() {
        for &class in ElementClass::ALL.iter().filter(|c| c.width() <= 2) {
            with_element!(class, E => {
                let mut seen = vec![false; 1 << (8 * class.width())];
                for word in 0..=E::MASK {
                    let place = E::ord(word);
                    assert_eq!(E::word(place), word);
                    assert!(!std::mem::replace(&mut seen[place as usize], true));
                }
            });
        }
        let floats = [
            f32::NEG_INFINITY,
            -1.5,
            -f32::MIN_POSITIVE,
            -0.0,
            0.0,
            1e-40,
            1.0,
            f32::INFINITY,
        ];
        for pair in floats.windows(2) {
            let [low, high] = [pair[0], pair[1]].map(|x| ord(ElementClass::F32, &x.to_le_bytes()));
            assert!(low < high, "{pair:?}");
        }
        assert_eq!(
            ord(ElementClass::F64, &(-0.0f64).to_le_bytes()) + 1,
            ord(ElementClass::F64, &0.0f64.to_le_bytes())
        );
        assert!(
            ord(ElementClass::I64, &(-1i64).to_le_bytes())
                < ord(ElementClass::I64, &0i64.to_le_bytes())
        );
    }
}
