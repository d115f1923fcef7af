//! How many bytes the patches of a version take, grouped in sets as a store groups them. Tests hold the figures
//! against bounds, benchmarks print them.

use crate::checkpoints::TensorContent;
use crate::weights::{self, Density, Stream, Update};
use deltaic_format::ElementClass;
use deltaic_format::Result;
use deltaic_format::patch::{Changes, Patch, piece_len};
use deltaic_format::patch_set::{ClosedSet, SetBuilder};
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

/// Gathers members in sets of each class, as a store does.
#[derive(Debug, Default)]
pub struct SetGrouper {
    open: BTreeMap<ElementClass, SetBuilder<u32>>,
    sizes: SetSizes,
}

impl SetGrouper {
    /// Add the changes of a piece of `elements` elements.
    ///
    /// # Errors
    ///
    /// If a set cannot be encoded.
    pub fn add(&mut self, class: ElementClass, elements: u32, changes: Changes) -> Result<()> {
        let open = (self.open.entry(class)).or_insert_with(|| SetBuilder::new(class));
        if open.is_full_for(elements) {
            self.sizes.count(open.close()?);
        }
        open.push(elements, changes, elements);
        Ok(())
    }

    /// Encode what is left, and say what all sets take.
    ///
    /// # Errors
    ///
    /// If a set cannot be encoded.
    pub fn finish(mut self) -> Result<SetSizes> {
        for open in self.open.values_mut() {
            self.sizes.count(open.close()?);
        }
        Ok(self.sizes)
    }
}

impl SetSizes {
    fn count(&mut self, set: Option<ClosedSet<u32>>) {
        let Some(set) = set else { return };
        self.sets += 1;
        self.members += set.members.len() as u64;
        self.elements += set.members.iter().map(|m| u64::from(m.1)).sum::<u64>();
        self.changed += set.members.iter().map(|m| m.0.len()).sum::<u64>();
        self.bytes += set.encoded.bytes.len() as u64;
        self.overhead += set.encoded.overhead;
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
