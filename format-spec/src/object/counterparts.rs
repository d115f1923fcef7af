//! Which tensor of one version stands for which of another (SPEC.md §8, "Counterparts").

use super::{Schema, Snapshot, TensorSpec, TensorView};
use crate::name::TreePath;
use std::collections::HashMap;

/// The tensors of one version, found by those of another.
#[derive(Debug)]
pub struct Counterparts<'a> {
    by_place: HashMap<(&'a str, &'a str), TensorView<'a>>,
    /// Names that one tensor has in each of the two versions.
    by_name: HashMap<&'a str, TensorView<'a>>,
}

impl<'a> Counterparts<'a> {
    /// Look up tensors of `held` for those of `wanted`.
    pub fn new(held: &'a Snapshot, wanted: &Schema) -> Self {
        let mut wanted_names: HashMap<&str, u32> = HashMap::new();
        for spec in wanted.tensors() {
            *wanted_names.entry(&spec.name).or_default() += 1;
        }
        let mut by_name: HashMap<&str, Option<TensorView<'_>>> = HashMap::new();
        for view in held.tensors() {
            by_name
                .entry(&view.spec.name)
                .and_modify(|twice| *twice = None)
                .or_insert(Some(view));
        }
        Self {
            by_place: held.tensors_by_name(),
            by_name: (by_name.into_iter())
                .filter(|(name, _)| wanted_names.get(name) == Some(&1))
                .filter_map(|(name, view)| Some((name, view?)))
                .collect(),
        }
    }

    /// The tensor that stands for `spec` of weight file `path`: the one of the same path and name, or else of the same
    /// name where that is unique. Its class and length may be others.
    pub fn of(&self, path: &TreePath, spec: &TensorSpec) -> Option<TensorView<'a>> {
        let place = (path.as_str(), spec.name.as_str());
        let found = self.by_place.get(&place);
        found.or_else(|| self.by_name.get(place.1)).copied()
    }

    /// The same, if it has the same class and element count, so that a patch can lead from one to the other.
    pub fn patchable(&self, path: &TreePath, spec: &TensorSpec) -> Option<TensorView<'a>> {
        let alike = |view: &TensorView<'_>| {
            (view.spec.class, view.spec.elements()) == (spec.class, spec.elements())
        };
        self.of(path, spec).filter(alike)
    }
}
