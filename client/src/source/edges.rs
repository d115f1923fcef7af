//! Patches that nobody else composed: each version's own are fetched, compared with the ids that its commit names, and
//! added up here.
//!
//! The way from the version that is held leads along first parents, down to the first common one and up from there. Tensors
//! go it in groups, so that memory stays bounded: by the changes of the tensors of a group, and those of a tensor by
//! half of its elements, from where on its content is cheaper. What has no patches all the way comes whole.

use super::{Ask, Source};
use crate::arrival::{bad, decode_patches};
use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use deltaic_format::ElementClass;
use deltaic_format::fetch::{Delivery, SPAN_ELEMENTS, Span, TensorWish};
use deltaic_format::ids::{CommitId, PatchId, SchemaId, TensorId};
use deltaic_format::object::{
    CanonicalObject, Counterparts, FileEntry, Schema, Snapshot, TensorSpec, TensorView,
};
use deltaic_format::patch::{BLOCK_ELEMENTS, Changes, PIECE_ELEMENTS, PatchHasher, compose};
use deltaic_format::patch_set::SetBuilder;
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// Longer ways are not gone: what they lead to comes whole.
const MAX_STEPS: usize = 1024;

/// What is remembered of a way takes so many bytes at most; what longer ones lead to comes whole.
const WAY_BYTES: u64 = 512 << 20;

/// Elements of a group, unless a single tensor has more.
const GROUP_ELEMENTS: u64 = 1 << 26;

/// As many changes are held of a tensor, however few elements it has.
const FEW_CHANGES: u64 = 1 << 16;

/// Blocks of [`Changes`] in a span of [`SPAN_ELEMENTS`].
const SPAN_BLOCKS: u32 = (SPAN_ELEMENTS / BLOCK_ELEMENTS) as u32;

/// Changes of a tensor, by the number of their span of [`SPAN_ELEMENTS`], from whose first element they count.
type Spans = BTreeMap<u64, Changes>;

/// Two neighbours on the way.
struct Step {
    parent: Rc<Snapshot>,
    child: Rc<Snapshot>,
    /// Whether the way leads from the child to its parent.
    back: bool,
}

/// The versions on a way, as far as there is room for them. Most have the schema of their neighbours, which is kept once.
struct Way {
    schemas: HashMap<SchemaId, Arc<Schema>>,
    /// Bytes that there is room for.
    left: u64,
}

impl Way {
    /// A way that leads from `held` to `want`.
    fn new(held: &Snapshot, want: &Snapshot) -> Self {
        let ends = [held, want];
        let schemas = ends.map(|end| (end.tree.schema, Arc::clone(&end.schema)));
        Self {
            schemas: HashMap::from(schemas),
            left: WAY_BYTES,
        }
    }

    /// Keep a version, whose schema is the one that its tree names; `None` if there is no room.
    fn keep(&mut self, mut snapshot: Snapshot) -> Option<Rc<Snapshot>> {
        let mut bytes = bytes_of(&snapshot);
        let known = self.schemas.entry(snapshot.tree.schema);
        snapshot.schema = match known {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(new) => {
                bytes += bytes_of_schema(&snapshot.schema);
                Arc::clone(new.insert(snapshot.schema))
            }
        };
        self.left = self.left.checked_sub(bytes)?;
        Some(Rc::new(snapshot))
    }
}

/// Bytes of memory that a version takes beside its schema, about.
fn bytes_of(snapshot: &Snapshot) -> u64 {
    let Snapshot { commit, tree, .. } = snapshot;
    let meta = commit
        .meta
        .iter()
        .map(|(key, value)| key.len() + value.len());
    let files = tree.files.iter();
    let files = files.map(|file| size_of::<FileEntry>() + file.path.as_str().len());
    let bytes = size_of::<Snapshot>()
        + commit.message.len()
        + meta.sum::<usize>()
        + size_of_val(&tree.tensors[..])
        + size_of_val(&tree.weight_files[..])
        + files.sum::<usize>();
    bytes as u64
}

fn bytes_of_schema(schema: &Schema) -> u64 {
    let tensor = |spec: &TensorSpec| {
        size_of::<TensorSpec>() + spec.name.len() + size_of_val(&spec.shape[..])
    };
    schema.tensors().map(tensor).sum::<usize>() as u64
}

/// The edge of one tensor at one step.
#[derive(Clone, Copy)]
struct Leg {
    /// Its place in the child's tree.
    tensor: usize,
    from: TensorId,
    patch: PatchId,
}

/// A wanted tensor whose patches are known all the way: its legs by the number of the step.
struct Route<'a> {
    view: TensorView<'a>,
    legs: BTreeMap<usize, Leg>,
}

/// An edge as far as it came.
struct Edge<'a> {
    view: TensorView<'a>,
    patch: PatchId,
    next: u64,
    changed: u64,
    hasher: PatchHasher,
    /// `None` once it is clear that the content is cheaper.
    spans: Option<Spans>,
}

/// A source whose patches are composed here.
pub(crate) struct EdgesSource<'a> {
    source: &'a dyn Source,
    progress: &'a dyn Progress,
}

impl<'a> EdgesSource<'a> {
    /// Compose what `source` sends.
    pub(crate) fn new(source: &'a dyn Source, progress: &'a dyn Progress) -> Self {
        Self { source, progress }
    }

    /// As [`Source::fetch`]; `count` is told of the bytes that come.
    pub(crate) fn fetch(
        &self,
        ask: &Ask<'_>,
        count: &mut dyn FnMut(u64),
        receive: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let steps = match ask.held {
            Some(held) => self.steps(held, ask.want)?,
            None => None,
        };
        let routes = match (&steps, ask.held) {
            (Some(steps), Some(held)) => routes(ask, held, steps),
            _ => Vec::new(),
        };
        let steps = steps.unwrap_or_default();
        let routed: HashSet<usize> = routes.iter().map(|route| route.view.index).collect();
        let wished = ask.wishes.iter().map(|wish| wish.tensor);
        let mut whole: Vec<usize> = wished.filter(|tensor| !routed.contains(tensor)).collect();
        let mut rest = &routes[..];
        while !rest.is_empty() {
            let (group, after) = rest.split_at(group_len(rest));
            rest = after;
            whole.extend(self.fetch_group(group, &steps, count, receive)?);
        }
        whole.sort_unstable();
        self.fetch_whole(ask.want, &whole, count, receive)
    }

    /// The way from `held` to `want`; `None` if there is none, or none that is worth going.
    fn steps(&self, held: &Snapshot, want: &Snapshot) -> Result<Option<Vec<Step>>> {
        let (mut down, mut up) = (Vec::new(), Vec::new());
        let (mut low, mut high) = (Rc::new(held.clone()), Rc::new(want.clone()));
        let mut way = Way::new(held, want);
        while low.id != high.id {
            check_cancelled(self.progress)?;
            if down.len() + up.len() == MAX_STEPS {
                return Ok(None);
            }
            // Versions count from the root, so the younger one is not the common one.
            let back = low.commit.version > high.commit.version;
            let (side, steps) = match back {
                true => (&mut low, &mut down),
                false => (&mut high, &mut up),
            };
            let Some(&parent) = side.commit.parents.first() else {
                return Ok(None);
            };
            let Some(parent) = self.snapshot(parent)? else {
                return Ok(None);
            };
            let Some(parent) = way.keep(parent) else {
                return Ok(None);
            };
            let child = std::mem::replace(side, Rc::clone(&parent));
            steps.push(Step {
                parent,
                child,
                back,
            });
        }
        up.reverse();
        down.extend(up);
        Ok(Some(down))
    }

    /// A version, which is the one of this id; `None` if the source does not have it.
    fn snapshot(&self, id: CommitId) -> Result<Option<Snapshot>> {
        let snapshot = match self.source.snapshot(id) {
            Err(ClientError::Refused(Refusal::NotFound { .. })) => return Ok(None),
            snapshot => snapshot?,
        };
        let (commit, tree) = (&snapshot.commit, &snapshot.tree);
        let named = (id, commit.tree, tree.schema);
        if (commit.id(), tree.id(), snapshot.schema.id()) != named {
            let object = format!("commit {}", id.short());
            return Err(ClientError::delivery(object, "it is not what its id names"));
        }
        Ok(Some(snapshot))
    }

    /// Fetch and compose the patches of some tensors, and hand them on. Those that are to come whole are returned.
    fn fetch_group(
        &self,
        group: &[Route<'_>],
        steps: &[Step],
        count: &mut dyn FnMut(u64),
        receive: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<Vec<usize>> {
        let mut sums: Vec<Option<Spans>> = vec![Some(Spans::new()); group.len()];
        for (number, step) in steps.iter().enumerate() {
            let legs: Vec<(usize, Leg)> = (group.iter().enumerate())
                .filter(|(route, _)| sums[*route].is_some())
                .filter_map(|(route, of)| Some((route, *of.legs.get(&number)?)))
                .collect();
            let mut edges = self.fetch_edges(step, &legs, count)?;
            for (route, leg) in legs {
                let edge = edges.remove(&leg.tensor);
                let view = &group[route].view;
                let sum = sums[route].take();
                if let (Some(sum), Some(edge)) = (sum, edge) {
                    sums[route] = add(view, sum, edge, step.back)?;
                }
            }
        }
        let (mut composed, mut whole) = (Vec::new(), Vec::new());
        for (route, sum) in group.iter().zip(sums) {
            match sum {
                Some(sum) => composed.push((route.view, sum)),
                None => whole.push(route.view.index),
            }
        }
        hand_on(composed, receive)?;
        Ok(whole)
    }

    /// Fetch the edges of one step, by their place in the child's tree; those that are missing are to come whole.
    fn fetch_edges(
        &self,
        step: &Step,
        legs: &[(usize, Leg)],
        count: &mut dyn FnMut(u64),
    ) -> Result<HashMap<usize, Spans>> {
        let views = step.child.tensors();
        let edge = |leg: &Leg| {
            let view = views[leg.tensor];
            let (class, elements) = (view.spec.class, view.spec.elements());
            let edge = Edge {
                view,
                patch: leg.patch,
                next: 0,
                changed: 0,
                hasher: PatchHasher::new(class, leg.from, view.entry.id, elements),
                spans: Some(Spans::new()),
            };
            (leg.tensor, edge)
        };
        let mut edges: HashMap<usize, Edge<'_>> = legs.iter().map(|(_, leg)| edge(leg)).collect();
        let wish = |(_, leg): &(usize, Leg)| TensorWish {
            tensor: leg.tensor,
            have: Some(leg.from),
        };
        let mut wishes: Vec<TensorWish> = legs.iter().map(wish).collect();
        wishes.sort_unstable_by_key(|wish| wish.tensor);
        if wishes.is_empty() {
            return Ok(HashMap::new());
        }
        let ask = Ask {
            want: &step.child,
            held: Some(&step.parent),
            wishes: &wishes,
        };
        self.source.fetch(&ask, &mut |delivery| {
            check_cancelled(self.progress)?;
            count(delivery.len());
            take(&mut edges, delivery)
        })?;
        let mut done = HashMap::new();
        for (tensor, edge) in edges {
            if let Some(spans) = edge.finish()? {
                done.insert(tensor, spans);
            }
        }
        Ok(done)
    }

    /// Fetch the contents of tensors.
    fn fetch_whole(
        &self,
        want: &Snapshot,
        tensors: &[usize],
        count: &mut dyn FnMut(u64),
        receive: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        if tensors.is_empty() {
            return Ok(());
        }
        let wishes: Vec<TensorWish> = (tensors.iter())
            .map(|&tensor| TensorWish { tensor, have: None })
            .collect();
        let ask = Ask {
            want,
            held: None,
            wishes: &wishes,
        };
        self.source.fetch(&ask, &mut |delivery| {
            count(delivery.len());
            match delivery {
                Delivery::Content { .. } => receive(delivery),
                // Whoever composed it is not trusted here.
                Delivery::Patches { .. } => {
                    let what = "a patch came where a content was asked for";
                    Err(ClientError::delivery("a tensor", what))
                }
            }
        })
    }
}

/// How many of `routes` make up the next group.
fn group_len(routes: &[Route<'_>]) -> usize {
    let mut elements = 0u64;
    let fits = |route: &&Route<'_>| {
        elements = elements.saturating_add(route.view.spec.elements());
        elements <= GROUP_ELEMENTS
    };
    routes.iter().take_while(fits).count().max(1)
}

/// The wished tensors whose patches all commits on the way name, by class and then by tensor.
fn routes<'a>(ask: &Ask<'a>, held: &Snapshot, steps: &[Step]) -> Vec<Route<'a>> {
    let wanted = ask.want.tensors();
    // Where each traced tensor is at the step that is looked at, from the wanted version backwards.
    let mut traced: Vec<(usize, TensorId, Route<'a>)> = (ask.wishes.iter())
        .filter_map(|wish| {
            let (view, legs) = (wanted[wish.tensor], BTreeMap::new());
            Some((wish.tensor, wish.have?, Route { view, legs }))
        })
        .collect();
    for (number, step) in steps.iter().enumerate().rev() {
        let (parents, children) = (step.parent.tensors(), step.child.tensors());
        let counterparts = Counterparts::new(&step.parent, &step.child.schema);
        let parent_of = |child: &TensorView<'_>| {
            let found = counterparts.patchable(child.path, child.spec)?;
            Some((found.index, child.index))
        };
        let pairs = children.iter().filter_map(parent_of);
        let pairs: HashMap<usize, usize> = match step.back {
            true => pairs.collect(),
            false => pairs.map(|(parent, child)| (child, parent)).collect(),
        };
        traced.retain_mut(|(at, _, route)| {
            let Some(&other) = pairs.get(at) else {
                return false;
            };
            let (parent, child) = match step.back {
                true => (*at, other),
                false => (other, *at),
            };
            *at = other;
            let (from, to) = (parents[parent].entry, children[child].entry);
            if from.id == to.id {
                return true;
            }
            let leg = to.patch.map(|patch| Leg {
                tensor: child,
                from: from.id,
                patch,
            });
            route.legs.extend(leg.map(|leg| (number, leg)));
            leg.is_some()
        });
    }
    let held = held.tensors();
    let is_held = |(at, have, _): &(usize, TensorId, Route<'a>)| held[*at].entry.id == *have;
    let traced = traced.into_iter().filter(is_held);
    let mut routes: Vec<Route<'a>> = traced.map(|(_, _, route)| route).collect();
    routes.sort_by_key(|route| (route.view.spec.class.number(), route.view.index));
    routes
}

/// Take a delivery of one step.
fn take(edges: &mut HashMap<usize, Edge<'_>>, delivery: Delivery) -> Result<()> {
    let not_asked = |tensor: usize| {
        let object = format!("tensor number {tensor}");
        ClientError::delivery(object, "it was not asked for")
    };
    let (members, bytes) = match delivery {
        Delivery::Patches { members, bytes } => (members, bytes),
        Delivery::Content { span, .. } => {
            let edge = edges.get_mut(&span.tensor);
            edge.ok_or_else(|| not_asked(span.tensor))?.spans = None;
            return Ok(());
        }
    };
    let decoded = decode_patches(&members, &bytes, |span| {
        let edge = edges.get(&span.tensor);
        Ok(edge.ok_or_else(|| not_asked(span.tensor))?.view)
    })?;
    for (view, span, changes) in decoded {
        if let Some(edge) = edges.get_mut(&view.index) {
            edge.add(span, changes)?;
        }
    }
    Ok(())
}

impl Edge<'_> {
    /// Add the changes of the next span.
    fn add(&mut self, span: Span, changes: Changes) -> Result<()> {
        if span.first < self.next {
            let what = format!("element {} and on came twice or out of order", span.first);
            return Err(bad(&self.view, what));
        }
        self.next = span.end();
        self.changed += changes.len();
        if self.changed > most_changes(&self.view) {
            self.spans = None;
        }
        let Some(spans) = &mut self.spans else {
            return Ok(());
        };
        let mut blocks = 0..SPAN_BLOCKS;
        for first in (span.first..span.end()).step_by(SPAN_ELEMENTS as usize) {
            let part = changes.cut(blocks.clone());
            if !part.is_empty() {
                spans.insert(first / SPAN_ELEMENTS, part);
            }
            blocks = blocks.end..blocks.end + SPAN_BLOCKS;
        }
        let moved = changes.moved_by((span.first % PIECE_ELEMENTS / BLOCK_ELEMENTS) as u32);
        self.hasher.piece(span.piece(), &moved);
        Ok(())
    }

    /// The changes, which are those that the commit names; `None` if the content is to come.
    fn finish(self) -> Result<Option<Spans>> {
        if self.spans.is_some() && self.hasher.finish() != self.patch {
            let what = "its patch is not the one that the commit names";
            return Err(bad(&self.view, what));
        }
        Ok(self.spans)
    }
}

/// With more changes than these, a tensor's content is cheaper.
fn most_changes(view: &TensorView<'_>) -> u64 {
    (view.spec.elements() / 2).max(FEW_CHANGES)
}

/// Add an edge to what came before it on the way; `None` if that becomes too much.
fn add(view: &TensorView<'_>, mut sum: Spans, edge: Spans, back: bool) -> Result<Option<Spans>> {
    for (number, mut changes) in edge {
        if back {
            changes.negate();
        }
        let before = sum.remove(&number);
        let after = match before {
            Some(before) => {
                compose(view.spec.class, &[&before, &changes]).map_err(|error| bad(view, error))?
            }
            None => changes,
        };
        if !after.is_empty() {
            sum.insert(number, after);
        }
    }
    let changed: u64 = sum.values().map(Changes::len).sum();
    Ok((changed <= most_changes(view)).then_some(sum))
}

/// Hand composed patches on, as deliveries.
fn hand_on(
    composed: Vec<(TensorView<'_>, Spans)>,
    receive: &mut dyn FnMut(Delivery) -> Result<()>,
) -> Result<()> {
    let mut open: Option<(ElementClass, SetBuilder<Span>)> = None;
    for (view, spans) in composed {
        let (class, total) = (view.spec.class, view.spec.elements());
        for (number, changes) in spans {
            let first = number * SPAN_ELEMENTS;
            let elements = (total - first).min(SPAN_ELEMENTS);
            let full = |(of, set): &(ElementClass, SetBuilder<Span>)| {
                *of != class || set.is_full_for(elements as u32)
            };
            if let Some((_, set)) = open.take_if(|open| full(open)) {
                close(set, receive)?;
            }
            let (_, set) = open.get_or_insert_with(|| (class, SetBuilder::new(class)));
            let span = Span {
                tensor: view.index,
                first,
                elements,
            };
            set.push(elements as u32, changes, span);
        }
    }
    open.map_or(Ok(()), |(_, set)| close(set, receive))
}

/// Hand on what a set has gathered.
fn close(mut set: SetBuilder<Span>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
    let closed = set.close();
    match closed.map_err(|error| ClientError::delivery("a composed patch", error))? {
        Some(closed) => receive(Delivery::Patches {
            members: closed.members.iter().map(|(_, span)| *span).collect(),
            bytes: closed.encoded.bytes.into(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::ids::FileId;
    use deltaic_format::name::TreePath;
    use deltaic_format::object::{Commit, TensorEntry, Tree, WeightFileEntry, WeightFileSpec};
    use deltaic_format::{Dtype, Moments, Version};

    /// A version of one tensor; each has a schema of its own in memory.
    fn snapshot(version: u64, name: &str) -> Snapshot {
        let spec = TensorSpec::new(name.to_owned(), Dtype::BF16, vec![8]).expect("valid");
        let schema = Schema {
            files: vec![WeightFileSpec {
                path: TreePath::new("model.safetensors").expect("valid"),
                tensors: vec![spec],
            }],
        };
        let tree = Tree {
            schema: schema.id(),
            weight_files: vec![WeightFileEntry {
                header: FileId([2; 32]),
                header_len: 8,
            }],
            tensors: vec![TensorEntry {
                id: TensorId([version as u8; 32]),
                moments: Moments::default(),
                patch: None,
            }],
            files: Vec::new(),
        };
        let commit = Commit {
            tree: tree.id(),
            parents: Vec::new(),
            version: Version(version),
            time_ms: 0,
            message: String::new(),
            meta: BTreeMap::new(),
        };
        Snapshot::new(commit.id(), commit, tree, Arc::new(schema)).expect("they agree")
    }

    #[test]
    fn versions_on_the_way_share_their_schema() {
        let (held, want) = (snapshot(0, "a"), snapshot(9, "b"));
        let mut way = Way::new(&held, &want);
        for (name, end) in [("a", &held), ("b", &want)] {
            let kept = way.keep(snapshot(1, name)).expect("there is room");
            assert!(Arc::ptr_eq(&kept.schema, &end.schema));
        }
        let other = way.keep(snapshot(2, "c")).expect("there is room");
        let again = way.keep(snapshot(3, "c")).expect("there is room");
        assert!(Arc::ptr_eq(&other.schema, &again.schema));
    }

    #[test]
    fn a_way_has_room_for_so_many_bytes() {
        let end = snapshot(0, "a");
        let mut way = Way::new(&end, &end);
        let each = bytes_of(&end);
        assert!(each >= 64, "{each}");
        way.left = 3 * each;
        for version in 1..4 {
            way.keep(snapshot(version, "a")).expect("there is room");
        }
        assert!(way.keep(snapshot(4, "a")).is_none());
    }
}
