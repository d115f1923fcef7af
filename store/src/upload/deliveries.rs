//! Where in the spool each tensor's patches or contents are.

use super::refused;
use super::spool::Place;
use crate::error::Result;
use deltaic_format::fetch::{AnswerKind, SPAN_ELEMENTS, Span};
use deltaic_format::object::{Schema, TensorSpec};
use deltaic_format::patch::PIECE_ELEMENTS;
use std::ops::Range;

/// Parts of all tensors at most: four trillion elements, or as many tensors as a schema has.
const MAX_PARTS: usize = 1 << 24;

/// The deliveries of an upload, by tensor.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    records: Vec<(Place, AnswerKind)>,
    /// By tensor, each tensor's ascending by element.
    parts: Vec<Part>,
    /// Per tensor, which parts are its.
    ranges: Vec<Range<u32>>,
}

/// A span of a tensor, and where it is. Kept small, for there may be many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    tensor: u32,
    /// Number of the first element, divided by [`SPAN_ELEMENTS`].
    block: u32,
    elements: u32,
    record: u32,
    /// Its place among the spans of the record.
    member: u32,
}

impl Part {
    fn first(&self) -> u64 {
        u64::from(self.block) * SPAN_ELEMENTS
    }

    fn end(&self) -> u64 {
        self.first() + u64::from(self.elements)
    }

    pub(super) fn elements(&self) -> u64 {
        u64::from(self.elements)
    }

    pub(super) fn record(&self) -> u32 {
        self.record
    }

    pub(super) fn member(&self) -> usize {
        self.member as usize
    }

    /// Its elements, counted from the beginning of its piece.
    pub(super) fn within_piece(&self) -> Range<usize> {
        let first = (self.first() % PIECE_ELEMENTS) as usize;
        first..first + self.elements as usize
    }
}

impl Deliveries {
    /// Take note of a delivery.
    pub(super) fn add(&mut self, place: Place, kind: AnswerKind, spans: &[Span]) -> Result<()> {
        if self.parts.len() + spans.len() > MAX_PARTS {
            return Err(refused("it comes in too many parts"));
        }
        let record = self.records.len() as u32;
        self.records.push((place, kind));
        for (member, span) in spans.iter().enumerate() {
            let part = Part::new(span, record, member as u32);
            self.parts.push(part.ok_or_else(|| {
                refused(format!(
                    "a delivery of elements {} to {} of tensor number {}, which is no span",
                    span.first,
                    span.end(),
                    span.tensor
                ))
            })?);
        }
        Ok(())
    }

    /// Bring them in order, once all have come: each tensor's must be spans of it, ascending, of one kind, and contents
    /// without a gap.
    pub(super) fn arrange(&mut self, schema: &Schema) -> Result<()> {
        // Stable: what came in the wrong order stays so, and is found.
        self.parts.sort_by_key(|part| part.tensor);
        let tensors = schema.tensor_count();
        if let Some(last) = self.parts.last().filter(|p| p.tensor as usize >= tensors) {
            return Err(refused(format!(
                "a delivery for tensor number {}, of {tensors}",
                last.tensor
            )));
        }
        let mut ranges = Vec::with_capacity(tensors);
        let mut begin = 0;
        for (tensor, spec) in schema.tensors().enumerate() {
            let own = self.parts[begin..].iter();
            let count = own
                .take_while(|part| part.tensor as usize == tensor)
                .count();
            let end = begin + count;
            self.check(spec, &self.parts[begin..end])
                .map_err(|what| refused(format!("tensor {:?}: {what}", spec.name)))?;
            ranges.push(begin as u32..end as u32);
            begin = end;
        }
        self.ranges = ranges;
        Ok(())
    }

    fn check(&self, spec: &TensorSpec, parts: &[Part]) -> Result<(), String> {
        let mut next = 0;
        let mut kind = None;
        for part in parts {
            let own = self.kind_of(part);
            let span = Span {
                tensor: part.tensor as usize,
                first: part.first(),
                elements: part.elements(),
            };
            let what = format!("what came for elements {} to {}", part.first(), part.end());
            if !span.is_of(spec.elements()) {
                return Err(format!("{what} is no span of its {}", spec.elements()));
            }
            if *kind.get_or_insert(own) != own {
                return Err("it came partly as patches and partly as content".to_owned());
            }
            if part.first() < next {
                return Err(format!("{what} is out of order"));
            }
            if own == AnswerKind::Content && part.first() > next {
                return Err(format!(
                    "nothing came for elements {next} to {}",
                    part.first()
                ));
            }
            next = part.end();
        }
        if kind == Some(AnswerKind::Content) && next < spec.elements() {
            let end = spec.elements();
            return Err(format!("nothing came for elements {next} to {end}"));
        }
        Ok(())
    }

    fn kind_of(&self, part: &Part) -> AnswerKind {
        self.records[part.record as usize].1
    }

    /// Where a record lies.
    pub(super) fn place(&self, record: u32) -> Place {
        self.records[record as usize].0
    }

    fn of(&self, tensor: usize) -> &[Part] {
        let range = &self.ranges[tensor];
        &self.parts[range.start as usize..range.end as usize]
    }

    /// How a tensor came, if anything of it did.
    pub(super) fn kind(&self, tensor: usize) -> Option<AnswerKind> {
        self.of(tensor).first().map(|part| self.kind_of(part))
    }

    /// What came of a piece of a tensor.
    pub(super) fn in_piece(&self, tensor: usize, piece: u64) -> &[Part] {
        let parts = self.of(tensor);
        let from = parts.partition_point(|part| part.first() / PIECE_ELEMENTS < piece);
        let len = parts[from..].partition_point(|part| part.first() / PIECE_ELEMENTS == piece);
        &parts[from..from + len]
    }
}

impl Part {
    /// The part of a span, if it can be one of any tensor.
    fn new(span: &Span, record: u32, member: u32) -> Option<Self> {
        if !span.first.is_multiple_of(SPAN_ELEMENTS) || span.elements > PIECE_ELEMENTS {
            return None;
        }
        Some(Self {
            tensor: span.tensor.try_into().ok()?,
            block: (span.first / SPAN_ELEMENTS).try_into().ok()?,
            elements: span.elements.try_into().ok()?,
            record,
            member,
        })
    }
}
