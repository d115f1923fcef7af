//! How many bytes the patches of a version take, grouped in sets as a store groups them. Tests hold the figures
//! against bounds, benchmarks print them.

use crate::checkpoints::TensorContent;
use crate::weights::{self, Density, Stream, Update};
use deltaic_format::ElementClass;
use deltaic_format::Result;
use deltaic_format::patch::{Changes, Patch, piece_len};
use deltaic_format::patch_set::{self, MAX_ENCODED_ELEMENTS};
use std::collections::BTreeMap;

/// What patch sets take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetSizes {
    /// Number of sets.
    pub sets: u64,
    /// Members of all of them.
    pub members: u64,
    /// Elements of all members.
    pub elements: u64,
    /// Changed elements.
    pub changed: u64,
    /// Bytes of all sets.
    pub bytes: u64,
    /// Bytes of them that are headers and directories.
    pub overhead: u64,
}

/// A set is closed once it holds this many members or changes, as a store does it.
const MAX_MEMBERS: usize = 4096;
const MAX_CHANGES: u64 = 1 << 20;

/// Gathers members and encodes a set for each class once it is large enough.
#[derive(Debug, Default)]
pub struct SetGrouper {
    open: BTreeMap<ElementClass, OpenSet>,
    sizes: SetSizes,
}

#[derive(Debug, Default)]
struct OpenSet {
    elements: u64,
    changes: u64,
    members: Vec<(u32, Changes)>,
}

impl OpenSet {
    fn is_full_for(&self, elements: u32) -> bool {
        self.elements + u64::from(elements) > MAX_ENCODED_ELEMENTS
            || self.changes >= MAX_CHANGES
            || self.members.len() >= MAX_MEMBERS
    }
}

impl SetGrouper {
    /// Add the changes of a piece of `elements` elements.
    ///
    /// # Errors
    ///
    /// If a set cannot be encoded.
    pub fn add(&mut self, class: ElementClass, elements: u32, changes: Changes) -> Result<()> {
        let open = self.open.entry(class).or_default();
        if open.is_full_for(elements) {
            let full = std::mem::take(open);
            self.close(class, &full)?;
        }
        let open = self.open.entry(class).or_default();
        open.elements += u64::from(elements);
        open.changes += changes.len();
        open.members.push((elements, changes));
        Ok(())
    }

    fn close(&mut self, class: ElementClass, set: &OpenSet) -> Result<()> {
        let members: Vec<_> = set.members.iter().map(|(n, c)| (*n, c)).collect();
        let encoded = patch_set::encode(class, &members)?;
        self.sizes.sets += 1;
        self.sizes.members += members.len() as u64;
        self.sizes.elements += set.elements;
        self.sizes.changed += set.changes;
        self.sizes.bytes += encoded.bytes.len() as u64;
        self.sizes.overhead += encoded.overhead;
        Ok(())
    }

    /// Encode what is left, and say what all sets take.
    ///
    /// # Errors
    ///
    /// If a set cannot be encoded.
    pub fn finish(mut self) -> Result<SetSizes> {
        for (class, set) in std::mem::take(&mut self.open) {
            self.close(class, &set)?;
        }
        Ok(self.sizes)
    }
}

/// What changed between two versions, and what the patches take.
#[derive(Debug, Clone, Default)]
pub struct StepSizes {
    /// The patch of every tensor, in the order of the tree, by name.
    pub patches: Vec<(String, Patch)>,
    /// The encoded sets.
    pub sets: SetSizes,
}

impl StepSizes {
    /// The patches from one version to another with the same tensors.
    ///
    /// # Errors
    ///
    /// If the tensors' lengths differ.
    pub fn between(old: &[TensorContent], new: &[TensorContent]) -> Result<Self> {
        let patches = (old.iter().zip(new))
            .map(|(old, new)| {
                let patch = Patch::diff(new.spec.class, &old.content, &new.content)?;
                Ok((new.spec.name.clone(), patch))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut grouper = SetGrouper::default();
        for (_, patch) in patches.iter().filter(|(_, patch)| patch.changed() > 0) {
            for (piece, changes) in patch.pieces.iter().enumerate() {
                let elements = piece_len(patch.elements, piece as u64) as u32;
                grouper.add(patch.class, elements, changes.clone())?;
            }
        }
        Ok(Self {
            patches,
            sets: grouper.finish()?,
        })
    }

    /// All shifts, tensor by tensor.
    pub fn shifts(&self) -> impl Iterator<Item = i64> {
        let pieces = self.patches.iter().flat_map(|(_, patch)| &patch.pieces);
        pieces.flat_map(|changes| changes.iter().map(|(_, shift)| shift))
    }
}

/// A mixture-of-experts model after one step: `tensors` tensors, three FP8 weights of 65,536 elements to one F32
/// scale tensor, 0.013 % of the weights changed.
///
/// # Errors
///
/// If a set cannot be encoded.
pub fn mixture_of_experts(tensors: u64) -> Result<SetSizes> {
    const WEIGHT_ELEMENTS: u32 = 64 * 1024;
    const SCALE_ELEMENTS: u32 = 8;
    const SHARE: f64 = 0.00013;
    let mut grouper = SetGrouper::default();
    let mut stream = Stream::new(91_000);
    for tensor in 0..tensors {
        let (class, elements, density) = match tensor % 4 {
            3 => (ElementClass::F32, SCALE_ELEMENTS, Density::Share(0.05)),
            _ => (ElementClass::F8E4M3, WEIGHT_ELEMENTS, Density::Share(SHARE)),
        };
        let changes = weights::changes(class, elements, density, Update::Step, stream.number());
        // A tensor that did not change has no patch.
        if !changes.is_empty() {
            grouper.add(class, elements, changes)?;
        }
    }
    grouper.finish()
}
