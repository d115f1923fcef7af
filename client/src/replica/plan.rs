//! What a pull has to do, decided before anything is fetched or written.

use super::folder::Folder;
use super::inspect::Inspection;
use super::state::Held;
use crate::disk::is_blocked;
use crate::error::Result;
use crate::handles::Handles;
use deltaic_format::ids::FileId;
use deltaic_format::name::TreePath;
use deltaic_format::object::{Counterparts, Snapshot, TensorView};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// The version that is held, as far as it is there: what a pull builds on.
#[derive(Debug)]
pub(super) struct Base<'a> {
    pub folder: &'a Folder,
    pub held: &'a Held,
    pub inspection: &'a Inspection,
    pub tensors: Vec<TensorView<'a>>,
    handles: Handles,
}

impl<'a> Base<'a> {
    pub(super) fn new(folder: &'a Folder, held: &'a Held, inspection: &'a Inspection) -> Self {
        Self {
            folder,
            held,
            inspection,
            tensors: held.snapshot.tensors(),
            handles: Handles::default(),
        }
    }

    /// The open weight file that held tensor `tensor` lies in.
    pub(super) fn file_of(&self, tensor: usize) -> Result<(Arc<File>, PathBuf)> {
        let view = &self.tensors[tensor];
        let location = self.folder.locate(view.path)?;
        let open = || Ok(self.folder.open(view.path, false)?.0);
        Ok((self.handles.get(view.file, open)?, location))
    }
}

/// How a wanted tensor gets its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing to do: it is there, has no bytes, or lies outside of what is pulled.
    Keep,
    /// Its content is that of this held tensor, which has its name.
    Carry(usize),
    /// Its content is that of this held tensor, which has another name.
    Copy(usize),
    /// A patch for the content of this held tensor, or whatever the source finds cheaper.
    Patch(usize),
    /// The whole content, from a seed or the source.
    Fetch,
}

/// How a weight file that changes is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilePlan {
    /// Whether it is changed where it lies, not written anew beside it.
    pub in_place: bool,
    /// Whether its header is written.
    pub header: bool,
}

/// Everything that a pull has to do.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    /// The wanted tensors.
    pub tensors: Vec<TensorView<'a>>,
    /// One per wanted tensor.
    pub actions: Vec<Action>,
    /// The weight files that are written, by their number.
    pub weight_files: BTreeMap<usize, FilePlan>,
    /// The other files that are written, by their number.
    pub files: Vec<usize>,
    /// The files that go away.
    pub removed: BTreeSet<TreePath>,
    /// Every file that the folder holds afterwards.
    pub paths: BTreeSet<TreePath>,
    /// Tensors that are not to change.
    pub unchanged: u64,
}

/// Whether `path` is, or lies in, the part of a tree that is pulled.
pub(super) fn is_selected(path: &TreePath, only: Option<&TreePath>) -> bool {
    only.is_none_or(|only| path.lies_in(only))
}

/// The files of `want` that a replica of `only` holds.
pub(super) fn selected_paths(want: &Snapshot, only: Option<&TreePath>) -> BTreeSet<TreePath> {
    let weights = want.schema.files.iter().map(|file| &file.path);
    let others = want.files().iter().map(|file| &file.path);
    weights
        .chain(others)
        .filter(|path| is_selected(path, only))
        .cloned()
        .collect()
}

impl<'a> Plan<'a> {
    /// Plan the way from `base` to the part `only` of `want`.
    pub(super) fn new(
        base: Option<&Base<'_>>,
        want: &'a Snapshot,
        only: Option<&TreePath>,
    ) -> Self {
        let paths = selected_paths(want, only);
        let mut plan = Self {
            tensors: want.tensors(),
            actions: Vec::with_capacity(want.tree.tensors.len()),
            weight_files: BTreeMap::new(),
            files: Vec::new(),
            removed: base
                .into_iter()
                .flat_map(|base| base.held.files.keys())
                .filter(|path| !paths.contains(*path))
                .cloned()
                .collect(),
            paths,
            unchanged: 0,
        };
        let matcher = base.map(|base| Matcher::new(base, want));
        for number in 0..want.schema.files.len() {
            plan.add_weight_file(want, matcher.as_ref(), number);
        }
        for (number, entry) in want.files().iter().enumerate() {
            let is_there = base.is_some_and(|base| {
                let held = base.held.snapshot.files();
                let found = held.binary_search_by(|file| file.path.cmp(&entry.path));
                found.is_ok_and(|at| base.inspection.files[at] && held[at] == *entry)
            });
            if plan.paths.contains(&entry.path) && !is_there {
                plan.files.push(number);
            }
        }
        plan
    }

    /// Whether the files are as wanted already.
    pub(super) fn is_empty(&self) -> bool {
        self.weight_files.is_empty() && self.files.is_empty() && self.removed.is_empty()
    }

    fn add_weight_file(&mut self, want: &Snapshot, matcher: Option<&Matcher<'_>>, number: usize) {
        let (spec, entry) = (&want.schema.files[number], &want.tree.weight_files[number]);
        let first = self.actions.len();
        if !self.paths.contains(&spec.path) {
            self.actions
                .resize(first + spec.tensors.len(), Action::Keep);
            return;
        }
        let held = matcher.and_then(|m| m.same_layout(want, number));
        let mut in_place = held.is_some();
        let header = held.is_none_or(|(held_entry, good)| !good || held_entry != entry.header);
        let views = &self.tensors[first..first + spec.tensors.len()];
        let mut actions = actions(matcher, views, in_place);
        // What replaces a tensor whole is written to the journal first, then to the file: where that is most of it,
        // one more file is less to write.
        if in_place && 2 * replaced_bytes(views, &actions) > spec.data_len() {
            in_place = false;
            actions = self::actions(matcher, views, in_place);
        }
        let stays = |action: &&Action| matches!(action, Action::Keep | Action::Carry(_));
        self.unchanged += actions.iter().filter(stays).count() as u64;
        self.actions.extend(actions);
        let changes = self.actions[first..].iter().any(|a| *a != Action::Keep);
        if !in_place || header || changes {
            let plan = FilePlan {
                in_place,
                header: header || !in_place,
            };
            self.weight_files.insert(number, plan);
        }
    }
}

/// How each of `views`, the tensors of a weight file, gets its content.
fn actions(matcher: Option<&Matcher<'_>>, views: &[TensorView<'_>], in_place: bool) -> Vec<Action> {
    let action = |view: &TensorView<'_>| match matcher {
        _ if view.spec.byte_len() == 0 => Action::Keep,
        Some(matcher) => matcher.action(view, in_place),
        None => Action::Fetch,
    };
    views.iter().map(action).collect()
}

/// Bytes of the tensors that are replaced whole.
fn replaced_bytes(views: &[TensorView<'_>], actions: &[Action]) -> u64 {
    let whole = |action: &Action| matches!(action, Action::Copy(_) | Action::Fetch);
    let replaced = views
        .iter()
        .zip(actions)
        .filter(|(_, action)| whole(action));
    replaced.map(|(view, _)| view.spec.byte_len()).sum()
}

/// Finds wanted contents in what is held.
struct Matcher<'a> {
    base: &'a Base<'a>,
    counterparts: Counterparts<'a>,
    by_id: HashMap<[u8; 32], usize>,
    files: HashMap<&'a str, usize>,
}

impl<'a> Matcher<'a> {
    fn new(base: &'a Base<'a>, want: &Snapshot) -> Self {
        let good = |view: &&TensorView<'_>| base.inspection.tensors[view.index];
        let held = || base.tensors.iter().filter(good);
        let schema = &base.held.snapshot.schema;
        Self {
            base,
            counterparts: Counterparts::new(&base.held.snapshot, &want.schema),
            by_id: held().map(|v| (v.entry.id.0, v.index)).collect(),
            files: (schema.files.iter().enumerate())
                .map(|(number, file)| (file.path.as_str(), number))
                .collect(),
        }
    }

    /// If the held file of the same path has all tensors of wanted weight file `number` where that one has them, and may
    /// be changed where it lies: the id of its header, and whether that is there.
    fn same_layout(&self, want: &Snapshot, number: usize) -> Option<(FileId, bool)> {
        let (spec, entry) = (&want.schema.files[number], &want.tree.weight_files[number]);
        let held = *self.files.get(spec.path.as_str())?;
        let snapshot = &self.base.held.snapshot;
        let held_entry = &snapshot.tree.weight_files[held];
        let same = self.base.inspection.weight_files[held]
            && held_entry.header_len == entry.header_len
            && snapshot.schema.files[held].tensors == spec.tensors
            && self.base.folder.may_patch(&spec.path);
        same.then(|| (held_entry.header, self.base.inspection.headers[held]))
    }

    fn action(&self, view: &TensorView<'_>, in_place: bool) -> Action {
        let named = (self.counterparts.of(view.path, view.spec))
            .map(|held| &self.base.tensors[held.index])
            .filter(|held| self.base.inspection.tensors[held.index]);
        if let Some(held) = named
            && held.path == view.path
            && held.entry.id == view.entry.id
        {
            return match in_place {
                true => Action::Keep,
                false => Action::Carry(held.index),
            };
        }
        if let Some(&held) = self.by_id.get(&view.entry.id.0) {
            return Action::Copy(held);
        }
        let same_kind = |held: &&TensorView<'_>| {
            held.spec.class == view.spec.class && held.spec.byte_len() == view.spec.byte_len()
        };
        (named.filter(same_kind)).map_or(Action::Fetch, |held| Action::Patch(held.index))
    }
}

/// Check that nothing foreign lies where the plan writes. What a repair may overwrite is returned, the rest is an error.
pub(super) fn find_obstacles(
    folder: &Folder,
    plan: &Plan<'_>,
    held: Option<&Held>,
    want: &Snapshot,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let staged = (plan.weight_files.iter()).filter(|(_, file)| !file.in_place);
    let weights = staged.map(|(number, _)| &want.schema.files[*number].path);
    for path in weights.chain(plan.files.iter().map(|number| &want.files()[*number].path)) {
        let tracked = held.is_some_and(|held| held.files.contains_key(path));
        if is_blocked(folder.root(), path, &plan.removed)? && !tracked {
            found.push(format!("{path}, which the last pull did not write"));
        }
    }
    Ok(found)
}
