//! Ids: hashes of logical content, one type per kind of object (SPEC.md §3).

use crate::error::{FormatError, Result};
use std::fmt;
use std::str::FromStr;

macro_rules! id_types {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The 32 bytes of the id.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The first 12 hex digits, for people.
            pub fn short(&self) -> String {
                self.to_string()[..12].to_owned()
            }
        }

        impl AsRef<[u8; 32]> for $name {
            fn as_ref(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }

        impl FromStr for $name {
            type Err = FormatError;

            fn from_str(text: &str) -> Result<Self> {
                match blake3::Hash::from_hex(text) {
                    Ok(hash) => Ok(Self(*hash.as_bytes())),
                    Err(_) => Err(FormatError::invalid($what, "an id is 64 hex digits")),
                }
            }
        }
    )*};
}

id_types! {
    /// Plain BLAKE3 of a tensor's bytes.
    TensorId, "tensor id";
    /// Plain BLAKE3 of a file's bytes.
    FileId, "file id";
    /// Id of a [`Schema`](crate::object::Schema).
    SchemaId, "schema id";
    /// Id of a [`Tree`](crate::object::Tree).
    TreeId, "tree id";
    /// Id of a [`Commit`](crate::object::Commit).
    CommitId, "commit id";
    /// Id of a [`RefRecord`](crate::object::RefRecord).
    RefRecordId, "ref record id";
    /// Id of a patch, the same for every coding of it.
    PatchId, "patch id";
}

impl TensorId {
    /// Hash a tensor's whole content.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

impl FileId {
    /// Hash a file's whole content.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

/// Id of no bytes at all: tensors with a zero dimension, empty files.
pub const EMPTY_CONTENT: [u8; 32] = [
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49,
    0x9b, 0xcb, 0x25, 0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_what_b3sum_prints() {
        // `printf abc | b3sum`, from the BLAKE3 project's test of the empty and three-byte inputs.
        assert_eq!(
            TensorId::of(b"abc").to_string(),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
        assert_eq!(TensorId::of(b"").0, EMPTY_CONTENT);
        let id = FileId::of(b"abc");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("6437".parse::<FileId>().is_err());
    }
}
