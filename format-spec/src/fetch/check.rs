//! Whether an answer can be one to the request it was made for: in the order of the answer, of the elements that there are, and
//! in no more bytes than they can take. What the elements are is proven elsewhere.

use super::{AnswerKind, Chunk, Delivery, FetchRequest, HeldContents, Position, Span};
use crate::error::{FormatError, Result};
use crate::object::Snapshot;
use std::collections::HashMap;

/// Name of the kind in errors.
const WHAT: &str = "answer to a fetch";

/// No encoding takes more bytes than so many times the elements' own, and these for each span and each delivery.
const EXPANSION: u64 = 4;
const SPAN_BYTES: u64 = 64;
const DELIVERY_OVERHEAD: u64 = 4096;

/// A tensor, or a slice of one, that was asked for.
#[derive(Debug, Clone, Copy)]
struct Wished {
    tensor: usize,
    elements: u64,
    /// Bytes of an element.
    width: u64,
    /// Whether something is held that could be patched.
    held: bool,
}

/// Follows an answer as it comes.
///
/// An answer that passes is finite: each element comes once at most, and in a bounded number of bytes.
#[derive(Debug)]
pub struct AnswerCheck {
    /// In the order of the answer.
    wished: Vec<Wished>,
    /// Places in that order, by tensor.
    places: HashMap<usize, u64>,
    /// What comes next at the earliest.
    at: Position,
}

impl AnswerCheck {
    /// Follow the answer to `request`, which wants `want`, from `from` on.
    ///
    /// # Errors
    ///
    /// If the version does not have what the request asks for.
    pub fn new(want: &Snapshot, request: &FetchRequest, from: Position) -> Result<Self> {
        if request.want != want.id {
            return Err(FormatError::invalid(WHAT, "it is for another version"));
        }
        let views = want.tensors();
        let mut wished = Vec::new();
        for run in &request.wishes {
            for tensor in run.tensors.clone() {
                let view = views.get(tensor).ok_or_else(|| {
                    let why = format!("the version has no tensor number {tensor}");
                    FormatError::invalid(WHAT, why)
                })?;
                let elements = match request.slices.get(&tensor) {
                    Some(slice) => slice.of(view.spec)?.elements(),
                    None => view.spec.elements(),
                };
                let one = Wished {
                    tensor,
                    elements,
                    width: view.spec.class.width() as u64,
                    held: run.held != HeldContents::Nothing,
                };
                wished.push((view.spec.class.number(), one));
            }
        }
        wished.sort_by_key(|(class, one)| (*class, one.tensor));
        let wished: Vec<Wished> = wished.into_iter().map(|(_, one)| one).collect();
        let places = (wished.iter().zip(0u64..)).map(|(one, place)| (one.tensor, place));
        Ok(Self {
            places: places.collect(),
            at: from,
            wished,
        })
    }

    /// Take the next chunk.
    ///
    /// # Errors
    ///
    /// If it cannot be the next one; what comes after it is worth nothing then.
    pub fn take(&mut self, chunk: &Chunk) -> Result<()> {
        let (kind, spans) = match &chunk.delivery {
            Delivery::Patches { members, .. } => (AnswerKind::Patches, &members[..]),
            Delivery::Content { span, .. } => (AnswerKind::Content, std::slice::from_ref(span)),
        };
        let mut most = DELIVERY_OVERHEAD;
        for span in spans {
            let width = self.span(span, kind)?;
            // Pieces are small, and no message has very many spans.
            most = most.saturating_add(EXPANSION * width * span.elements + SPAN_BYTES);
        }
        let bytes = chunk.delivery.len();
        if bytes > most {
            let why = format!("{bytes} bytes for what takes at most {most}");
            return Err(FormatError::invalid(WHAT, why));
        }
        self.go_on(chunk.next)
    }

    /// The answer has ended.
    ///
    /// # Errors
    ///
    /// If it ended in the midst of a content.
    pub fn finish(&self) -> Result<()> {
        self.leave()
    }

    /// Take a span; returns the width of its elements.
    fn span(&mut self, span: &Span, kind: AnswerKind) -> Result<u64> {
        let &Span { tensor, first, .. } = span;
        let invalid = |why: String| FormatError::invalid(WHAT, why);
        let Some(&place) = self.places.get(&tensor) else {
            return Err(invalid(format!("tensor {tensor} was not asked for")));
        };
        let one = self.wished[place as usize];
        if place < self.at.wish || (place == self.at.wish && first < self.at.element) {
            let why =
                format!("element {first} and on of tensor {tensor} came twice or out of order");
            return Err(invalid(why));
        }
        if !span.is_of(one.elements) {
            let (count, all) = (span.elements, one.elements);
            let why = format!(
                "tensor {tensor} has {all} elements, and no span of {count} from {first} on"
            );
            return Err(invalid(why));
        }
        if kind == AnswerKind::Patches && !one.held {
            let why = format!("a patch of tensor {tensor} came, of which nothing is held");
            return Err(invalid(why));
        }
        if place > self.at.wish {
            self.leave()?;
            self.at = Position {
                wish: place,
                ..Position::default()
            };
        }
        if self.at.kind.is_some_and(|begun| begun != kind) {
            let why = format!("tensor {tensor} came by patches and by content");
            return Err(invalid(why));
        }
        if kind == AnswerKind::Content && first != self.at.element {
            let why = format!("tensor {tensor} came with a gap before element {first}");
            return Err(invalid(why));
        }
        self.at = match span.end() == one.elements {
            true => Position {
                wish: place + 1,
                ..Position::default()
            },
            false => Position {
                wish: place,
                element: span.end(),
                kind: Some(kind),
            },
        };
        Ok(one.width)
    }

    /// What is being answered ends here.
    fn leave(&self) -> Result<()> {
        // A complete content has been left already; of patches those without changes may be missing.
        match (self.at.kind, self.wished.get(self.at.wish as usize)) {
            (Some(AnswerKind::Content), Some(one)) => {
                let why = format!("not all of tensor {} came", one.tensor);
                Err(FormatError::invalid(WHAT, why))
            }
            _ => Ok(()),
        }
    }

    /// Take where the answer says that it goes on.
    fn go_on(&mut self, next: Position) -> Result<()> {
        let wrong = || {
            let why = format!("it cannot go on at {next:?} after {:?}", self.at);
            FormatError::invalid(WHAT, why)
        };
        if next < self.at || next.wish > self.wished.len() as u64 {
            return Err(wrong());
        }
        let same = next.wish == self.at.wish;
        if !same {
            self.leave()?;
        }
        let fits = match (self.wished.get(next.wish as usize), next.kind) {
            (_, None) => next.element == 0,
            (None, Some(_)) => false,
            (Some(one), Some(AnswerKind::Patches)) => one.held && next.element < one.elements,
            (Some(_), Some(AnswerKind::Content)) => next == self.at,
        };
        if !fits || (same && next.kind != self.at.kind && self.at.kind.is_some()) {
            return Err(wrong());
        }
        self.at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;
    use crate::fetch::SPAN_ELEMENTS;
    use crate::ids::{CommitId, FileId, TensorId};
    use crate::name::{RepoName, TreePath};
    use crate::object::{
        CanonicalObject, Commit, Schema, TensorEntry, TensorSpec, Tree, WeightFileEntry,
        WeightFileSpec,
    };
    use crate::{Dtype, Moments};
    use bytes::Bytes;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const LONG: u64 = 2 * SPAN_ELEMENTS + 5;

    /// A version of three tensors: f32, bf16 of several spans, bf16.
    fn version() -> Snapshot {
        let spec =
            |name: &str, dtype, elements| TensorSpec::new(name.to_owned(), dtype, vec![elements]);
        let tensors = vec![
            spec("a", Dtype::F32, 8).expect("valid"),
            spec("b", Dtype::BF16, LONG).expect("valid"),
            spec("c", Dtype::BF16, 8).expect("valid"),
        ];
        let schema = Schema {
            files: vec![WeightFileSpec {
                path: TreePath::new("model.safetensors").expect("valid"),
                tensors,
            }],
        };
        let entry = TensorEntry {
            id: TensorId([1; 32]),
            moments: Moments::default(),
            patch: None,
        };
        let tree = Tree {
            schema: schema.id(),
            weight_files: vec![WeightFileEntry {
                header: FileId([2; 32]),
                header_len: 8,
            }],
            tensors: vec![entry; 3],
            files: Vec::new(),
        };
        let commit = Commit {
            tree: tree.id(),
            parents: Vec::new(),
            version: Version(0),
            time_ms: 0,
            message: String::new(),
            meta: BTreeMap::new(),
        };
        Snapshot::new(commit.id(), commit, tree, Arc::new(schema)).expect("they agree")
    }

    fn check(held: bool) -> AnswerCheck {
        let version = version();
        let repo = RepoName::new("acme/policy").expect("valid");
        let mut request = FetchRequest::all(repo, &version, None);
        if held {
            request.held = Some(CommitId([9; 32]));
            request.wishes[0].held = HeldContents::AsVersion;
        }
        AnswerCheck::new(&version, &request, Position::default()).expect("it has them")
    }

    fn at(wish: u64, element: u64, kind: Option<AnswerKind>) -> Position {
        Position {
            wish,
            element,
            kind,
        }
    }

    const CONTENT: Option<AnswerKind> = Some(AnswerKind::Content);
    const PATCHES: Option<AnswerKind> = Some(AnswerKind::Patches);

    fn span(tensor: usize, first: u64, elements: u64) -> Span {
        Span {
            tensor,
            first,
            elements,
        }
    }

    fn content(span: Span, next: Position) -> Chunk {
        let bytes = Bytes::from_static(b"base");
        let delivery = Delivery::Content { span, bytes };
        Chunk { delivery, next }
    }

    fn patches(members: &[Span], next: Position) -> Chunk {
        let bytes = Bytes::from_static(b"set");
        let members = members.into();
        let delivery = Delivery::Patches { members, bytes };
        Chunk { delivery, next }
    }

    /// The tensors by their places in the answer.
    fn order() -> [usize; 3] {
        let check = check(false);
        let order: Vec<usize> = check.wished.iter().map(|one| one.tensor).collect();
        assert!(order == [0, 1, 2] || order == [1, 2, 0], "{order:?}");
        order.try_into().expect("three")
    }

    #[test]
    fn an_answer_in_order_passes_and_ends() {
        let long = order().iter().position(|&t| t == 1).expect("one") as u64;
        let mut check = check(true);
        for (place, tensor) in order().into_iter().enumerate() {
            let after = at(place as u64 + 1, 0, None);
            if tensor == 1 {
                let go_on = at(long, SPAN_ELEMENTS, CONTENT);
                let first = content(span(1, 0, SPAN_ELEMENTS), go_on);
                check.take(&first).expect("in order");
                check.finish().expect_err("some of it is missing");
                let rest = span(1, SPAN_ELEMENTS, LONG - SPAN_ELEMENTS);
                check.take(&content(rest, after)).expect("in order");
            } else {
                let chunk = patches(&[span(tensor, 0, 8)], after);
                check.take(&chunk).expect("in order");
            }
        }
        check.finish().expect("all of it came");
    }

    #[test]
    fn what_no_answer_has_is_refused() {
        let [first, second, _] = order();
        let long = order().iter().position(|&t| t == 1).expect("one") as u64;
        let after_long = at(long + 1, 0, None);
        let refused = |held, chunks: &[Chunk], why: &str| {
            let mut check = check(held);
            let (last, before) = chunks.split_last().expect("some");
            for chunk in before {
                check.take(chunk).expect("in order");
            }
            let error = check.take(last).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        };
        let small = |tensor| match tensor {
            1 => span(1, 0, LONG),
            other => span(other, 0, 8),
        };
        let end = at(3, 0, None);
        refused(true, &[content(span(7, 0, 8), end)], "not asked for");
        refused(true, &[content(span(0, 0, 9), end)], "no span of 9");
        let far = span(1, 1 << 40, SPAN_ELEMENTS);
        refused(true, &[patches(&[far], end)], "no span of");
        refused(true, &[patches(&[span(1, 3, 5)], end)], "no span of");
        refused(false, &[patches(&[small(first)], end)], "nothing is held");
        let twice = patches(&[small(first), small(first)], end);
        refused(true, &[twice], "twice or out of order");
        let back = patches(&[small(second), small(first)], end);
        refused(true, &[back], "twice or out of order");
        let gap = content(span(1, SPAN_ELEMENTS, LONG - SPAN_ELEMENTS), after_long);
        refused(true, &[gap], "gap");
        let begun = content(span(1, 0, SPAN_ELEMENTS), at(long, SPAN_ELEMENTS, CONTENT));
        let mixed = span(1, SPAN_ELEMENTS, LONG - SPAN_ELEMENTS);
        refused(
            true,
            &[begun.clone(), patches(&[mixed], after_long)],
            "by patches and by",
        );
        let left = content(span(1, 0, SPAN_ELEMENTS), after_long);
        refused(true, &[left], "not all of tensor 1");
        for next in [
            at(4, 0, None),
            at(long, 0, None),
            at(long, SPAN_ELEMENTS, PATCHES),
            at(long, 2 * SPAN_ELEMENTS, CONTENT),
            at(u64::MAX, 0, None),
        ] {
            let mut chunk = begun.clone();
            chunk.next = next;
            refused(true, &[chunk], "");
        }
    }

    #[test]
    fn more_bytes_than_elements_can_take_are_refused() {
        let mut check = check(false);
        let mut chunk = content(span(0, 0, 8), at(3, 0, None));
        chunk.next = at(
            order().iter().position(|&t| t == 0).expect("one") as u64 + 1,
            0,
            None,
        );
        let Delivery::Content { bytes, .. } = &mut chunk.delivery else {
            panic!("a content");
        };
        *bytes = vec![0; 64 << 10].into();
        let error = check.take(&chunk).expect_err("too long").to_string();
        assert!(error.contains("65536 bytes"), "{error}");
    }

    #[test]
    fn an_answer_goes_on_where_it_is_told_to() {
        let long = order().iter().position(|&t| t == 1).expect("one") as u64;
        let version = version();
        let repo = RepoName::new("acme/policy").expect("valid");
        let request = FetchRequest::all(repo, &version, None);
        let from = at(long, SPAN_ELEMENTS, CONTENT);
        let check = || AnswerCheck::new(&version, &request, from).expect("it has them");
        let after = at(long + 1, 0, None);
        let rest = content(span(1, SPAN_ELEMENTS, LONG - SPAN_ELEMENTS), after);
        check().take(&rest).expect("in order");
        let again = content(span(1, 0, LONG), after);
        check().take(&again).expect_err("it came already");
    }
}
