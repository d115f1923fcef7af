//! Schema: names, dtypes, shapes and order of all tensors; shared by the versions that have the same.

use super::{CanonicalObject, MAX_FILES, MAX_STRING, MAX_TENSORS};
use crate::bytes::{ByteReader, put_string, put_varint};
use crate::dtype::{Dtype, ElementClass};
use crate::error::{FormatError, Result};
use crate::ids::SchemaId;
use crate::name::TreePath;
use std::collections::HashSet;

const WHAT: &str = "schema";
const MAX_RANK: u64 = 16;
const MAX_ELEMENTS: u64 = 1 << 48;
/// What all tensors together stay below.
const MAX_BYTES: u64 = 1 << 63;

/// What a tensor is, apart from its content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Name in its weight file.
    pub name: String,
    /// Dtype in its weight file.
    pub dtype: Dtype,
    /// Class in which its elements are ordered.
    pub class: ElementClass,
    /// Dimensions; none for a scalar.
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// A tensor with the class that follows from dtype and name.
    ///
    /// # Errors
    ///
    /// If its byte length overflows, is no whole number, or exceeds the caps.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>) -> Result<Self> {
        let name = name.into();
        let class = dtype.class_of(&name);
        let spec = Self {
            name,
            dtype,
            class,
            shape,
        };
        spec.check()?;
        Ok(spec)
    }

    /// Length of its content in bytes.
    pub fn byte_len(&self) -> u64 {
        self.bits().unwrap_or(0) / 8
    }

    /// Bits of all values together, unless that overflows; a zero dimension makes it 0 whatever the others are.
    fn bits(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut dims = self.shape.iter();
        dims.try_fold(self.dtype.bits(), |bits, &dim| bits.checked_mul(dim))
    }

    /// Number of elements (words of its class).
    pub fn elements(&self) -> u64 {
        self.byte_len() / self.class.width() as u64
    }

    fn check(&self) -> Result<()> {
        let fail = |why: &str| {
            let Self {
                name, dtype, shape, ..
            } = self;
            Err(FormatError::invalid(
                WHAT,
                format!("tensor {name:?} ({dtype} {shape:?}) {why}"),
            ))
        };
        if self.name.len() as u64 > MAX_STRING || self.shape.len() as u64 > MAX_RANK {
            return fail("has a name of more than 4,096 bytes or more than 16 dimensions");
        }
        match self.bits() {
            None => fail("is larger than any file"),
            Some(bits) if !bits.is_multiple_of(8) => fail("does not fill whole bytes"),
            Some(bits) if !(bits / 8).is_multiple_of(self.class.width() as u64) => {
                fail("does not fill whole elements of its class")
            }
            Some(_) if self.elements() > MAX_ELEMENTS => fail("has more than 2^48 elements"),
            Some(_) if !self.dtype.may_be_read_as(self.class) => {
                fail("is of a class that its dtype cannot be read as")
            }
            Some(_) => Ok(()),
        }
    }
}

/// One weight file's tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightFileSpec {
    /// Where the file lies in the tree.
    pub path: TreePath,
    /// Its tensors in the order of their data.
    pub tensors: Vec<TensorSpec>,
}

impl WeightFileSpec {
    /// Length of all its tensors together, in bytes.
    pub fn data_len(&self) -> u64 {
        self.tensors.iter().map(TensorSpec::byte_len).sum()
    }
}

/// Names, dtypes, shapes and order of all tensors of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Schema {
    /// The weight files, ascending by path.
    pub files: Vec<WeightFileSpec>,
}

impl Schema {
    /// All tensors, in the order of a tree's entries.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.files.iter().map(|file| file.tensors.len()).sum()
    }
}

impl CanonicalObject for Schema {
    const WHAT: &'static str = WHAT;
    const CONTEXT: &'static str = "deltaic 2026-11-30 schema v1";
    type Id = SchemaId;

    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.files.len() as u64);
        for file in &self.files {
            put_string(out, file.path.as_str());
            put_varint(out, file.tensors.len() as u64);
            for tensor in &file.tensors {
                put_string(out, &tensor.name);
                out.extend([tensor.dtype as u8, tensor.class.number()]);
                put_varint(out, tensor.shape.len() as u64);
                tensor.shape.iter().for_each(|&dim| put_varint(out, dim));
            }
        }
    }

    fn get(reader: &mut ByteReader<'_>) -> Result<Self> {
        let count = reader.count("number of weight files", MAX_FILES, 2)?;
        let mut files: Vec<WeightFileSpec> = Vec::with_capacity(count);
        let mut tensors_left = MAX_TENSORS;
        for _ in 0..count {
            let path = TreePath::new(reader.string("path", MAX_STRING)?)?;
            if files.last().is_some_and(|last| last.path >= path) {
                return Err(FormatError::invalid(WHAT, "weight files are not in order"));
            }
            let count = reader.count("number of tensors", tensors_left, 4)?;
            tensors_left -= count as u64;
            let tensors: Vec<TensorSpec> = (0..count)
                .map(|_| get_tensor(reader))
                .collect::<Result<_>>()?;
            let mut names = HashSet::with_capacity(count);
            if let Some(twice) = tensors.iter().find(|t| !names.insert(t.name.as_str())) {
                let why = format!("tensor {:?} is named twice in {path}", twice.name);
                return Err(FormatError::invalid(WHAT, why));
            }
            files.push(WeightFileSpec { path, tensors });
        }
        let schema = Self { files };
        // Offsets and sums of lengths, which all fit 64 bits from here on.
        let bytes = (schema.tensors()).try_fold(0, |sum: u64, t| sum.checked_add(t.byte_len()));
        if bytes.is_none_or(|bytes| bytes >= MAX_BYTES) {
            return Err(FormatError::invalid(
                WHAT,
                "its tensors take 2^63 bytes or more",
            ));
        }
        Ok(schema)
    }

    fn id_from(hash: [u8; 32]) -> SchemaId {
        SchemaId(hash)
    }
}

fn get_tensor(reader: &mut ByteReader<'_>) -> Result<TensorSpec> {
    let name = reader.string("tensor name", MAX_STRING)?;
    let dtype = Dtype::from_code(reader.u8()?)?;
    let class = ElementClass::from_number(WHAT, reader.u8()?)?;
    let rank = reader.count("number of dimensions", MAX_RANK, 1)?;
    let shape = (0..rank).map(|_| reader.varint()).collect::<Result<_>>()?;
    let spec = TensorSpec {
        name,
        dtype,
        class,
        shape,
    };
    spec.check()?;
    Ok(spec)
}
