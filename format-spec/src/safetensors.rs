//! Safetensors headers, read from untrusted bytes: every way in which one can be wrong is its own error.
//!
//! A file is `u64 header length | header (JSON) | data`. The `safetensors` package refuses headers over 100 MB and
//! data with holes; so do we, and we also refuse duplicate names, which it does not see.

use crate::dtype::Dtype;
use crate::error::FormatError;
use crate::object::TensorSpec;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Largest header, as in the `safetensors` package.
pub const MAX_HEADER_LEN: u64 = 100_000_000;

/// Bytes before the header: its length.
pub const LENGTH_PREFIX: u64 = 8;

/// What is wrong with a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The file is too short to hold what its beginning announces.
    #[error("the file ends within its header: {needed} bytes announced, {found} there")]
    HeaderTruncated {
        /// Bytes that prefix and header take.
        needed: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The announced header is over the limit.
    #[error("its header claims {found} bytes, more than the limit of {MAX_HEADER_LEN}")]
    HeaderTooLarge {
        /// The announced length.
        found: u64,
    },
    /// The header is no JSON object of tensors.
    #[error("its header is not valid: {why}")]
    HeaderInvalid {
        /// What the parser said.
        why: String,
    },
    /// Two tensors have one name.
    #[error("tensor {name:?} is named twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A dtype that safetensors does not have.
    #[error("tensor {name:?} has the unknown dtype {dtype:?}")]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// Shape times dtype overflows or fills no whole bytes.
    #[error(transparent)]
    Shape(#[from] FormatError),
    /// The end offset lies before the begin offset.
    #[error("tensor {name:?} ends at {end}, before it begins at {begin}")]
    ReversedOffsets {
        /// The tensor.
        name: String,
        /// Begin offset in the data.
        begin: u64,
        /// End offset in the data.
        end: u64,
    },
    /// The offsets span another length than dtype and shape ask for.
    #[error("tensor {name:?} spans {span} bytes, but its dtype and shape take {expected}")]
    WrongSpan {
        /// The tensor.
        name: String,
        /// Bytes between its offsets.
        span: u64,
        /// Bytes of dtype × shape.
        expected: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {name:?} begins at {begin}, within the tensor before it, which ends at {end}")]
    Overlap {
        /// The later tensor.
        name: String,
        /// Where it begins.
        begin: u64,
        /// Where the earlier one ends.
        end: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("{bytes} bytes before tensor {name:?} belong to no tensor")]
    Hole {
        /// The tensor after the hole.
        name: String,
        /// Length of the hole.
        bytes: u64,
    },
    /// The data ends early.
    #[error("the file is truncated: its tensors take {expected} bytes, {found} are there")]
    DataTruncated {
        /// Bytes that the tensors take.
        expected: u64,
        /// Bytes after the header.
        found: u64,
    },
    /// Bytes after the last tensor.
    #[error("{bytes} bytes too many after the last tensor")]
    TrailingBytes {
        /// How many.
        bytes: u64,
    },
}

/// Tensors of a file, in the order of their data, which they fill without holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The tensors.
    pub tensors: Vec<TensorSpec>,
    /// Length of their data.
    pub data_len: u64,
}

/// Length of the header, from a file's first 8 bytes and its length.
///
/// # Errors
///
/// If the header is over the limit or longer than the file.
pub fn header_len(prefix: [u8; 8], file_len: u64) -> Result<u64, SafetensorsError> {
    let found = u64::from_le_bytes(prefix);
    if found > MAX_HEADER_LEN {
        return Err(SafetensorsError::HeaderTooLarge { found });
    }
    if LENGTH_PREFIX + found > file_len {
        return Err(SafetensorsError::HeaderTruncated {
            needed: LENGTH_PREFIX + found,
            found: file_len,
        });
    }
    Ok(found)
}

/// Read a header; `data_len` is the number of bytes after it.
///
/// # Errors
///
/// As the variants of [`SafetensorsError`] say.
pub fn parse_header(header: &[u8], data_len: u64) -> Result<Layout, SafetensorsError> {
    if header.first() != Some(&b'{') {
        return Err(SafetensorsError::HeaderInvalid {
            why: "it does not begin with {".to_owned(),
        });
    }
    let Entries(mut entries) = serde_json::from_slice(header)
        .map_err(|e| SafetensorsError::HeaderInvalid { why: e.to_string() })?;
    let mut names = HashSet::with_capacity(entries.len());
    for (name, _) in &entries {
        if !names.insert(name.as_str()) {
            return Err(SafetensorsError::DuplicateName { name: name.clone() });
        }
    }
    for (name, entry) in &entries {
        let [begin, end] = entry.data_offsets;
        if end < begin {
            return Err(SafetensorsError::ReversedOffsets {
                name: name.clone(),
                begin,
                end,
            });
        }
    }
    entries.sort_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
    let mut tensors = Vec::with_capacity(entries.len());
    let mut cursor = 0;
    for (name, entry) in entries {
        tensors.push(check_entry(name, entry, &mut cursor)?);
    }
    if cursor > data_len {
        return Err(SafetensorsError::DataTruncated {
            expected: cursor,
            found: data_len,
        });
    }
    if cursor < data_len {
        return Err(SafetensorsError::TrailingBytes {
            bytes: data_len - cursor,
        });
    }
    Ok(Layout { tensors, data_len })
}

/// Check one tensor, which must begin at `cursor`, and move the cursor to its end.
fn check_entry(
    name: String,
    entry: Entry,
    cursor: &mut u64,
) -> Result<TensorSpec, SafetensorsError> {
    let [begin, end] = entry.data_offsets;
    let Some(dtype) = Dtype::from_name(&entry.dtype) else {
        return Err(SafetensorsError::UnknownDtype {
            name,
            dtype: entry.dtype,
        });
    };
    let spec = TensorSpec::new(name, dtype, entry.shape)?;
    let name = || spec.name.clone();
    if end - begin != spec.byte_len() {
        return Err(SafetensorsError::WrongSpan {
            name: name(),
            span: end - begin,
            expected: spec.byte_len(),
        });
    }
    if begin < *cursor {
        return Err(SafetensorsError::Overlap {
            name: name(),
            begin,
            end: *cursor,
        });
    }
    if begin > *cursor {
        return Err(SafetensorsError::Hole {
            name: name(),
            bytes: begin - *cursor,
        });
    }
    *cursor = end;
    Ok(spec)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's members in order, duplicates and all; `__metadata__` is checked and left out.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry per tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        entries.push((name, map.next_value()?));
                        continue;
                    }
                    let _: Option<Metadata> = map.next_value()?;
                    if std::mem::replace(&mut metadata, true) {
                        return Err(A::Error::custom("__metadata__ stands there twice"));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// `__metadata__`: texts by key, no key twice. What they say stays in the verbatim header.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut keys = HashSet::new();
                while let Some((key, _)) = map.next_entry::<String, String>()? {
                    if let Some(twice) = keys.replace(key) {
                        let why = format!("__metadata__ has the key {twice:?} twice");
                        return Err(A::Error::custom(why));
                    }
                }
                Ok(Metadata)
            }
        }

        deserializer.deserialize_map(MetadataVisitor)
    }
}
