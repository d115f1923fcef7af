//! Reading the golden vectors (`format-spec/vectors/README.md` describes them).

use crate::places;
use crate::weights::Stream;
use deltaic_format::ElementClass;
use deltaic_format::patch::Changes;
use serde_json::Value;
use std::fmt;

/// A case of a vector file, with access that names the case where something is missing.
pub struct Case {
    file: String,
    number: usize,
    value: Value,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} case {}", self.file, self.number)?;
        for key in ["kind", "name", "why"] {
            if let Some(text) = self.value[key].as_str() {
                write!(f, ", {text}")?;
            }
        }
        Ok(())
    }
}

/// All cases of `file`.
///
/// # Panics
///
/// If the file is missing or is not an array of cases.
pub fn cases(file: &str) -> Vec<Case> {
    let path = places::vectors().join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let values: Vec<Value> = serde_json::from_slice(&bytes).expect("a vector file is an array");
    assert!(!values.is_empty(), "{file} has cases");
    (values.into_iter().enumerate())
        .map(|(number, value)| Case {
            file: file.to_owned(),
            number,
            value,
        })
        .collect()
}

impl Case {
    /// The field `key`, which may be missing.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key)
    }

    /// The field `key`.
    pub fn at(&self, key: &str) -> &Value {
        self.get(key)
            .unwrap_or_else(|| panic!("{self} has no {key}"))
    }

    /// A text.
    pub fn text(&self, key: &str) -> &str {
        text(self.at(key))
    }

    /// A number.
    pub fn number(&self, key: &str) -> u64 {
        number(self.at(key))
    }

    /// Bytes in hex.
    pub fn bytes(&self, key: &str) -> Vec<u8> {
        unhex(self.text(key))
    }

    /// The element class.
    pub fn class(&self) -> ElementClass {
        ElementClass::from_number("vector", self.number("class") as u8)
            .expect("vectors name known classes")
    }

    /// The content, which stands there in hex or as a recipe.
    pub fn content(&self) -> Vec<u8> {
        let Some(recipe) = self.get("generated") else {
            return self.bytes("content_hex");
        };
        let mask = recipe.get("mask").map_or(u64::MAX, |mask| {
            let digits = text(mask).trim_start_matches("0x");
            u64::from_str_radix(digits, 16).expect("a mask is hex")
        });
        let length = number(&recipe["elements"]) as usize * self.class().width();
        Stream::new(number(&recipe["seed"])).bytes(length, mask)
    }
}

/// A JSON text.
pub fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// A number, as such or as decimal text.
pub fn number(value: &Value) -> u64 {
    match value {
        Value::String(digits) => digits.parse().expect("a decimal number"),
        other => other.as_u64().expect("a number"),
    }
}

/// A list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// Changes as pairs of index and decimal shift.
pub fn shifts(value: &Value) -> impl Iterator<Item = (u64, i64)> {
    list(value).iter().map(|pair| {
        let shift = text(&pair[1]).parse().expect("a decimal shift");
        (number(&pair[0]), shift)
    })
}

/// Changes of a piece.
pub fn changes(value: &Value) -> Changes {
    Changes::from_pairs(shifts(value).map(|(i, d)| (i as u32, d)))
        .expect("vectors list changes in order")
}

/// Bytes from hex.
pub fn unhex(digits: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "hex has two digits for each byte");
    pairs
        .iter()
        .map(|[high, low]| digit(*high) << 4 | digit(*low))
        .collect()
}

/// Bytes as hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
