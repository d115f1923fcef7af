//! Cutting an answer into chunks: members of patch sets and parts of contents, each about [`DELIVERY_BYTES`] long.

use super::{AnswerKind, Chunk, DELIVERY_BYTES, Delivery, Position, SPAN_ELEMENTS, Span};
use crate::base::encode_base;
use crate::dtype::ElementClass;
use crate::error::Result;
use crate::patch::{BLOCK_ELEMENTS, Changes, PIECE_ELEMENTS, piece_len};
use crate::patch_set::SetBuilder;
use bytes::Bytes;

/// Memory blocks of a span.
const SPAN_BLOCKS: u32 = (SPAN_ELEMENTS / BLOCK_ELEMENTS) as u32;

/// A tensor, or the slice of one, that is being answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// Number of its wish, in the order of the answer.
    pub wish: u64,
    /// The tensor's place among the tensors of the wanted tree.
    pub tensor: usize,
    /// What its elements are.
    pub class: ElementClass,
    /// How many it has.
    pub elements: u64,
}

impl Answered {
    /// Where the answer goes on after element `end` of it.
    fn after(&self, end: u64, kind: AnswerKind) -> Position {
        match end >= self.elements {
            true => Position {
                wish: self.wish + 1,
                ..Position::default()
            },
            false => Position {
                wish: self.wish,
                element: end,
                kind: Some(kind),
            },
        }
    }
}

/// Makes chunks of what is given to it in the order of the answer.
#[derive(Debug, Default)]
pub struct Packer {
    set: Option<OpenSet>,
    chunks: Vec<Chunk>,
}

/// A patch set that is not full yet.
#[derive(Debug)]
struct OpenSet {
    class: ElementClass,
    builder: SetBuilder<Span>,
    /// Bytes that it takes, as estimated.
    bytes: u64,
    /// Where the answer goes on after its last member.
    next: Position,
}

impl Packer {
    /// Add the changes of `span` of a tensor, counted from the span's first element.
    ///
    /// # Errors
    ///
    /// If the changes do not fit the span.
    pub fn patch(&mut self, answered: &Answered, span: Span, changes: Changes) -> Result<()> {
        let class = answered.class;
        let spans = span.elements.div_ceil(SPAN_ELEMENTS);
        let parts = estimate(class, &changes)
            .div_ceil(DELIVERY_BYTES)
            .min(spans);
        if parts <= 1 {
            return self.member(answered, span, changes);
        }
        let each = spans.div_ceil(parts);
        for first in (0..spans).step_by(each as usize) {
            let blocks = first as u32 * SPAN_BLOCKS..(first + each) as u32 * SPAN_BLOCKS;
            let offset = first * SPAN_ELEMENTS;
            let part = Span {
                first: span.first + offset,
                elements: (each * SPAN_ELEMENTS).min(span.elements - offset),
                ..span
            };
            self.member(answered, part, changes.cut(blocks))?;
        }
        Ok(())
    }

    fn member(&mut self, answered: &Answered, span: Span, changes: Changes) -> Result<()> {
        let bytes = estimate(answered.class, &changes);
        let full = self.set.as_ref().is_some_and(|set| {
            set.class != answered.class
                || set.bytes + bytes > DELIVERY_BYTES
                || set.builder.is_full_for(span.elements as u32)
        });
        if full {
            self.close()?;
        }
        let set = self.set.get_or_insert_with(|| OpenSet {
            class: answered.class,
            builder: SetBuilder::new(answered.class),
            bytes: 0,
            next: Position::default(),
        });
        set.builder.push(span.elements as u32, changes, span);
        set.bytes += bytes;
        set.next = answered.after(span.end(), AnswerKind::Patches);
        Ok(())
    }

    /// Add the content of `span` of a tensor.
    ///
    /// # Errors
    ///
    /// If what was added before cannot be encoded.
    pub fn content(&mut self, answered: &Answered, span: Span, content: &[u8]) -> Result<()> {
        let width = answered.class.width();
        let each = spans_of_content(answered.class) * SPAN_ELEMENTS as usize * width;
        let mut first = span.first;
        for part in content.chunks(each) {
            let elements = (part.len() / width) as u64;
            let part_span = Span {
                first,
                elements,
                ..span
            };
            let base = encode_base(answered.class, part);
            self.base(answered, part_span, base.into())?;
            first += elements;
        }
        Ok(())
    }

    /// Add the content of `span` of a tensor, encoded as a base already.
    ///
    /// # Errors
    ///
    /// If what was added before cannot be encoded.
    pub fn base(&mut self, answered: &Answered, span: Span, bytes: Bytes) -> Result<()> {
        self.close()?;
        self.chunks.push(Chunk {
            delivery: Delivery::Content { span, bytes },
            next: answered.after(span.end(), AnswerKind::Content),
        });
        Ok(())
    }

    /// End the set that is open.
    ///
    /// # Errors
    ///
    /// If it cannot be encoded.
    pub fn close(&mut self) -> Result<()> {
        let Some(mut set) = self.set.take() else {
            return Ok(());
        };
        if let Some(closed) = set.builder.close()? {
            let members = closed.members.iter().map(|(_, span)| *span).collect();
            self.chunks.push(Chunk {
                delivery: Delivery::Patches {
                    members,
                    bytes: closed.encoded.bytes.into(),
                },
                next: set.next,
            });
        }
        Ok(())
    }

    /// The chunks that are complete.
    pub fn take(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Bytes of the complete chunks, and about those of the open set.
    pub fn bytes(&self) -> u64 {
        let complete: u64 = self.chunks.iter().map(|chunk| chunk.delivery.len()).sum();
        complete + self.set.as_ref().map_or(0, |set| set.bytes)
    }
}

/// Spans of a content that one delivery carries.
pub fn spans_of_content(class: ElementClass) -> usize {
    let span = SPAN_ELEMENTS * class.width() as u64;
    (DELIVERY_BYTES / span).max(1) as usize
}

/// The span of a whole piece of a tensor.
pub fn piece_span(answered: &Answered, piece: u64) -> Span {
    Span {
        tensor: answered.tensor,
        first: piece * PIECE_ELEMENTS,
        elements: piece_len(answered.elements, piece),
    }
}

/// About how many bytes changes take: a position and half a word each, as dense ones of wide elements do.
fn estimate(class: ElementClass, changes: &Changes) -> u64 {
    changes.len() * (class.width() as u64 + 2) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::decode_base_of;
    use crate::patch_set::PatchSetReader;

    fn answered(elements: u64, class: ElementClass) -> Answered {
        Answered {
            wish: 4,
            tensor: 9,
            class,
            elements,
        }
    }

    #[test]
    fn dense_pieces_are_cut_at_spans_and_add_up() {
        let answered = answered(PIECE_ELEMENTS + 7, ElementClass::F32);
        let changes = Changes::from_pairs((0..PIECE_ELEMENTS as u32).step_by(2).map(|i| (i, 3)))
            .expect("ascending");
        let mut packer = Packer::default();
        let span = piece_span(&answered, 0);
        packer
            .patch(&answered, span, changes.clone())
            .expect("fits");
        packer.close().expect("fits");
        let chunks = packer.take();
        assert!(chunks.len() > 1);
        let mut found = Vec::new();
        let mut end = 0;
        for chunk in &chunks {
            let Delivery::Patches { members, bytes } = &chunk.delivery else {
                panic!("{chunk:?}");
            };
            let reader = PatchSetReader::new(bytes).expect("a patch set");
            for (span, changes) in members.iter().zip(reader.all().expect("changes")) {
                assert!(span.is_of(answered.elements), "{span:?}");
                assert_eq!(span.first, end);
                end = span.end();
                let first = span.first as u32;
                found.extend(changes.iter().map(|(i, shift)| (first + i, shift)));
            }
            let expected = Position {
                wish: 4,
                element: end,
                kind: Some(AnswerKind::Patches),
            };
            assert_eq!(chunk.next, expected);
        }
        assert!(changes.iter().eq(found));
    }

    #[test]
    fn contents_are_cut_at_spans_and_end_with_their_tensor() {
        let answered = answered(3 * SPAN_ELEMENTS + 5, ElementClass::BF16);
        let content: Vec<u8> = (0..answered.elements * 2)
            .map(|i| (i % 251) as u8)
            .collect();
        let mut packer = Packer::default();
        let span = piece_span(&answered, 0);
        packer.content(&answered, span, &content).expect("encodes");
        let chunks = packer.take();
        assert_eq!(chunks.len(), 2);
        let mut joined = Vec::new();
        for chunk in &chunks {
            let Delivery::Content { span, bytes } = &chunk.delivery else {
                panic!("{chunk:?}");
            };
            assert!(span.is_of(answered.elements));
            let mut part = Vec::new();
            decode_base_of(answered.class, span.elements, bytes, &mut part).expect("decodes");
            joined.extend(part);
        }
        assert_eq!(joined, content);
        let next_tensor = Position {
            wish: 5,
            ..Position::default()
        };
        assert_eq!(chunks[1].next, next_tensor);
    }

    #[test]
    fn small_tensors_share_a_set_until_another_class_or_a_content_comes() {
        let mut packer = Packer::default();
        let change = || Changes::from_pairs([(1, 1)]).expect("valid");
        for (wish, class) in [
            (0, ElementClass::BF16),
            (1, ElementClass::BF16),
            (2, ElementClass::F32),
        ] {
            let answered = Answered {
                wish,
                tensor: wish as usize,
                class,
                elements: 8,
            };
            let span = piece_span(&answered, 0);
            packer.patch(&answered, span, change()).expect("fits");
        }
        let last = Answered {
            wish: 3,
            ..answered(2, ElementClass::U8)
        };
        packer
            .content(&last, piece_span(&last, 0), &[1, 2])
            .expect("encodes");
        let nexts: Vec<u64> = packer.take().iter().map(|chunk| chunk.next.wish).collect();
        assert_eq!(nexts, [2, 3, 4]);
    }
}
