//! Fetches on the wire: requests, chunks, and tokens to go on by.

use super::{commit_id, id_bytes, optional_commit_id, proto};
use crate::error::{FormatError, Result};
use crate::fetch::{
    AnswerKind, Delivery, FetchRequest, HeldContents, Position, RequestDigest, Span, WishRun,
};
use crate::ids::TensorId;
use crate::name::RepoName;
use crate::object::MAX_TENSORS;
use crate::slice::Slice;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Name of the kind in errors.
const WHAT: &str = "fetch request";

/// Members of one patch set at most (SPEC.md §6).
const MAX_SPANS: usize = 1 << 20;

impl From<&FetchRequest> for proto::FetchRequest {
    /// Without a place to go on at.
    fn from(request: &FetchRequest) -> Self {
        let slice = |(&tensor, slice): (&usize, &Slice)| proto::Slice {
            tensor: tensor as u64,
            ranges: (slice.ranges().iter())
                .map(|range| proto::Range {
                    start: range.start,
                    end: range.end,
                })
                .collect(),
        };
        Self {
            repo: request.repo.to_string(),
            want: id_bytes(&request.want),
            held: request.held.as_ref().map(id_bytes).unwrap_or_default(),
            wishes: request.wishes.iter().map(run_to_wire).collect(),
            slices: request.slices.iter().map(slice).collect(),
            codings: Vec::new(),
            resume: Bytes::new(),
        }
    }
}

fn run_to_wire(run: &WishRun) -> proto::WishRun {
    use proto::wish_run::Held;
    let (held, contents) = match &run.held {
        HeldContents::Nothing => (Held::Nothing, Vec::new()),
        HeldContents::AsVersion => (Held::AsVersion, Vec::new()),
        HeldContents::Listed(ids) => {
            let bytes = ids.iter().flat_map(|id| id.0).collect();
            (Held::Listed, bytes)
        }
    };
    proto::WishRun {
        first: run.tensors.start as u64,
        count: run.tensors.len() as u64,
        held: held.into(),
        contents: contents.into(),
    }
}

fn run_from_wire(run: &proto::WishRun) -> Result<WishRun> {
    use proto::wish_run::Held;
    let place = |at: u64| usize::try_from(at).ok();
    let end = run.first.checked_add(run.count);
    let end = end.filter(|&end| end <= MAX_TENSORS);
    let (Some(start), Some(end)) = (place(run.first), end.and_then(place)) else {
        return Err(FormatError::invalid(WHAT, "a run of too many tensors"));
    };
    let held = match Held::try_from(run.held) {
        Ok(Held::Nothing) => HeldContents::Nothing,
        Ok(Held::AsVersion) => HeldContents::AsVersion,
        Ok(Held::Listed) => {
            let (ids, rest) = run.contents.as_chunks::<32>();
            if !rest.is_empty() {
                return Err(FormatError::invalid(WHAT, "a part of an id"));
            }
            HeldContents::Listed(ids.iter().map(|&id| TensorId(id)).collect())
        }
        Ok(Held::Unspecified) | Err(_) => {
            let why = format!("an unknown way to hold, {}", run.held);
            return Err(FormatError::invalid(WHAT, why));
        }
    };
    Ok(WishRun {
        tensors: start..end,
        held,
    })
}

impl TryFrom<&proto::FetchRequest> for FetchRequest {
    type Error = FormatError;

    fn try_from(request: &proto::FetchRequest) -> Result<Self> {
        let mut slices = BTreeMap::new();
        for slice in &request.slices {
            let tensor = usize::try_from(slice.tensor)
                .map_err(|_| FormatError::invalid(WHAT, "a slice of no tensor"))?;
            let ranges = slice.ranges.iter().map(|range| range.start..range.end);
            if slices
                .insert(tensor, Slice::new(ranges.collect())?)
                .is_some()
            {
                let why = format!("two slices of tensor {tensor}");
                return Err(FormatError::invalid(WHAT, why));
            }
        }
        Ok(Self {
            repo: RepoName::new(request.repo.as_str())?,
            want: commit_id(&request.want)?,
            held: optional_commit_id(&request.held)?,
            wishes: (request.wishes.iter())
                .map(run_from_wire)
                .collect::<Result<_>>()?,
            slices,
        })
    }
}

/// Names a place in the answer to one request: opaque to whoever keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The request.
    pub request: RequestDigest,
    /// Where its answer goes on.
    pub position: Position,
}

impl ResumeToken {
    /// Its 49 bytes: the request's digest, the wish, the element (little-endian), and the kind of answer.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(49);
        bytes.extend(self.request.0);
        bytes.extend(self.position.wish.to_le_bytes());
        bytes.extend(self.position.element.to_le_bytes());
        bytes.push(match self.position.kind {
            None => 0,
            Some(AnswerKind::Patches) => 1,
            Some(AnswerKind::Content) => 2,
        });
        bytes.into()
    }

    /// The token with these bytes.
    ///
    /// # Errors
    ///
    /// If they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = crate::bytes::ByteReader::new("resume token", bytes);
        let token = Self {
            request: RequestDigest(reader.array()?),
            position: Position {
                wish: reader.u64()?,
                element: reader.u64()?,
                kind: match reader.u8()? {
                    0 => None,
                    1 => Some(AnswerKind::Patches),
                    2 => Some(AnswerKind::Content),
                    _ => return Err(FormatError::invalid("resume token", "unknown kind")),
                },
            },
        };
        reader.finish()?;
        Ok(token)
    }
}

impl From<&Span> for proto::Span {
    fn from(span: &Span) -> Self {
        Self {
            tensor: span.tensor as u64,
            first: span.first,
            elements: span.elements,
        }
    }
}

/// The CRC-32 of a chunk: its bytes, what they are, where they belong, and where to go on. Bytes at another place would be as
/// wrong as other bytes.
fn chunk_checksum(chunk: &proto::Chunk) -> u32 {
    use proto::chunk::What;
    let mut checksum = crc32fast::Hasher::new();
    let kind = match &chunk.what {
        Some(What::Patches(bytes)) => {
            checksum.update(bytes);
            1
        }
        Some(What::Content(bytes)) => {
            checksum.update(bytes);
            2
        }
        None => 0,
    };
    checksum.update(&[kind]);
    for span in &chunk.spans {
        for number in [span.tensor, span.first, span.elements] {
            checksum.update(&number.to_le_bytes());
        }
    }
    checksum.update(&chunk.resume);
    checksum.finalize()
}

fn file_part_checksum(offset: u64, part: &proto::GetFileResponse) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&part.data);
    checksum.update(&offset.to_le_bytes());
    checksum.update(&[u8::from(part.complete)]);
    checksum.finalize()
}

/// The part of a file from `offset` on as a message.
pub fn file_part(offset: u64, data: Bytes, complete: bool) -> proto::GetFileResponse {
    let mut part = proto::GetFileResponse {
        data,
        complete,
        crc32: 0,
    };
    part.crc32 = file_part_checksum(offset, &part);
    part
}

/// The bytes of the part of a file from `offset` on, which is as it was sent, and whether the file ends with them.
///
/// # Errors
///
/// [`FormatError::Checksum`] if it is not.
pub fn file_part_from_wire(offset: u64, part: proto::GetFileResponse) -> Result<(Bytes, bool)> {
    match file_part_checksum(offset, &part) == part.crc32 {
        true => Ok((part.data, part.complete)),
        false => Err(FormatError::Checksum {
            what: "part of a file",
        }),
    }
}

/// A delivery as a message, with `resume` to go on by after it.
pub fn chunk_to_wire(delivery: &Delivery, resume: Bytes) -> proto::Chunk {
    use proto::chunk::What;
    let (spans, what) = match delivery {
        Delivery::Patches { members, bytes } => (
            members.iter().map(proto::Span::from).collect(),
            What::Patches(bytes.clone()),
        ),
        Delivery::Content { span, bytes } => {
            (vec![proto::Span::from(span)], What::Content(bytes.clone()))
        }
    };
    let mut chunk = proto::Chunk {
        spans,
        what: Some(what),
        crc32: 0,
        resume,
    };
    chunk.crc32 = chunk_checksum(&chunk);
    chunk
}

/// The delivery in a message, all of which is as it was sent.
///
/// # Errors
///
/// [`FormatError::Checksum`] if it is not, another if it is none.
pub fn chunk_from_wire(chunk: proto::Chunk) -> Result<Delivery> {
    use proto::chunk::What;
    let invalid = |why: &str| FormatError::invalid("chunk", why);
    if chunk_checksum(&chunk) != chunk.crc32 {
        return Err(FormatError::Checksum { what: "chunk" });
    }
    if chunk.spans.len() > MAX_SPANS {
        return Err(invalid("it has too many spans"));
    }
    let span = |span: &proto::Span| {
        Ok(Span {
            tensor: usize::try_from(span.tensor).map_err(|_| invalid("a span of no tensor"))?,
            first: span.first,
            elements: span.elements,
        })
    };
    let spans = chunk.spans.iter().map(span).collect::<Result<Vec<_>>>()?;
    let delivery = match (chunk.what, &spans[..]) {
        (Some(What::Patches(bytes)), [_, ..]) => Delivery::Patches {
            members: spans.into(),
            bytes,
        },
        (Some(What::Content(bytes)), &[span]) => Delivery::Content { span, bytes },
        (None, _) => return Err(invalid("it is empty")),
        (Some(_), _) => return Err(invalid("it has the wrong number of spans")),
    };
    if delivery.is_empty() {
        return Err(invalid("it is empty"));
    }
    Ok(delivery)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CommitId;

    fn request() -> FetchRequest {
        FetchRequest {
            repo: RepoName::new("acme/policy").expect("valid"),
            want: CommitId([1; 32]),
            held: Some(CommitId([2; 32])),
            wishes: vec![
                WishRun {
                    tensors: 0..2,
                    held: HeldContents::AsVersion,
                },
                WishRun {
                    tensors: 3..5,
                    held: HeldContents::Listed(vec![TensorId([3; 32]), TensorId([4; 32])]),
                },
                WishRun {
                    tensors: 5..6,
                    held: HeldContents::Nothing,
                },
            ],
            slices: BTreeMap::from([(4, Slice::new(vec![0..2, 1..3]).expect("valid"))]),
        }
    }

    #[test]
    fn requests_come_back_as_they_were_sent() {
        let request = request();
        let wire = proto::FetchRequest::from(&request);
        let back = FetchRequest::try_from(&wire).expect("valid");
        assert_eq!(back, request);
        assert_eq!(back.digest(), request.digest());
        let mut other = request;
        other.wishes[2].held = HeldContents::Listed(vec![TensorId([5; 32])]);
        assert_ne!(back.digest(), other.digest());
    }

    #[test]
    fn bad_requests_are_refused() {
        let good = proto::FetchRequest::from(&request());
        let refused = |change: fn(&mut proto::FetchRequest)| {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(FetchRequest::try_from(&bad).is_err(), "{bad:?}");
        };
        refused(|r| r.want = Bytes::from_static(b"short"));
        refused(|r| r.repo = "../etc".into());
        refused(|r| r.wishes[1].contents = Bytes::from_static(b"odd"));
        refused(|r| r.wishes[1].held = 77);
        refused(|r| r.wishes[1].held = 0);
        refused(|r| r.wishes[0].count = u64::MAX);
        refused(|r| r.slices.push(r.slices[0].clone()));
        refused(|r| r.slices[0].ranges[0].end = 0);
    }

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        let token = ResumeToken {
            request: request().digest(),
            position: Position {
                wish: 7,
                element: 1 << 18,
                kind: Some(AnswerKind::Content),
            },
        };
        let bytes = token.to_bytes();
        assert_eq!(ResumeToken::from_bytes(&bytes), Ok(token));
        assert!(ResumeToken::from_bytes(&bytes[1..]).is_err());
        let mut unknown = bytes.to_vec();
        unknown[48] = 9;
        assert!(ResumeToken::from_bytes(&unknown).is_err());
    }

    #[test]
    fn a_chunk_that_changed_on_its_way_is_noticed() {
        let span = Span {
            tensor: 3,
            first: 0,
            elements: 9,
        };
        let delivery = Delivery::Content {
            span,
            bytes: Bytes::from_static(b"123456789"),
        };
        let wire = chunk_to_wire(&delivery, Bytes::from_static(b"on"));
        let mut checked = b"123456789\x02".to_vec();
        checked.extend([3, 0, 9].map(u64::to_le_bytes).concat());
        checked.extend(b"on");
        assert_eq!(wire.crc32, crc32fast::hash(&checked));
        assert_eq!(chunk_from_wire(wire.clone()), Ok(delivery));
        for change in [
            |c: &mut proto::Chunk| c.crc32 ^= 1,
            |c: &mut proto::Chunk| c.what = None,
            |c: &mut proto::Chunk| c.spans.clear(),
            |c: &mut proto::Chunk| c.spans.push(c.spans[0]),
            |c: &mut proto::Chunk| c.spans[0].tensor = 2,
            |c: &mut proto::Chunk| c.spans[0].first = 1 << 18,
            |c: &mut proto::Chunk| c.spans[0].elements = 8,
            |c: &mut proto::Chunk| c.resume = Bytes::from_static(b"off"),
            |c: &mut proto::Chunk| {
                c.what = Some(proto::chunk::What::Patches(Bytes::from_static(
                    b"123456789",
                )));
            },
            |c: &mut proto::Chunk| c.what = Some(proto::chunk::What::Content(Bytes::new())),
        ] {
            let mut bad = wire.clone();
            change(&mut bad);
            let damage = FormatError::Checksum { what: "chunk" };
            assert_eq!(chunk_from_wire(bad.clone()), Err(damage), "{bad:?}");
        }
        // What was sent like that is none.
        for change in [
            |c: &mut proto::Chunk| c.what = None,
            |c: &mut proto::Chunk| c.spans.clear(),
            |c: &mut proto::Chunk| c.spans.push(c.spans[0]),
            |c: &mut proto::Chunk| c.what = Some(proto::chunk::What::Content(Bytes::new())),
        ] {
            let mut bad = wire.clone();
            change(&mut bad);
            bad.crc32 = chunk_checksum(&bad);
            let refused = chunk_from_wire(bad);
            assert!(
                matches!(refused, Err(FormatError::Invalid { .. })),
                "{refused:?}"
            );
        }
    }
}
