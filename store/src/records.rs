//! Rows of the database: what is stored of a content and of an edge, and how their keys are written.

use deltaic_format::bytes::{ByteReader, put_varint};
use deltaic_format::ids::{FileId, PatchId, TensorId};
use deltaic_format::patch::piece_count;
use deltaic_format::{ElementClass, FormatError, Moments};

/// A content: what every row about tensors is keyed by, since the class decides what bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContentKey {
    pub(crate) class: ElementClass,
    pub(crate) id: TensorId,
}

pub(crate) const CONTENT_KEY_LEN: usize = 33;

impl ContentKey {
    pub(crate) fn new(class: ElementClass, id: TensorId) -> Self {
        Self { class, id }
    }

    /// A file's content is kept as bytes.
    pub(crate) fn file(id: FileId) -> Self {
        Self::new(ElementClass::U8, TensorId(id.0))
    }

    pub(crate) fn to_bytes(self) -> [u8; CONTENT_KEY_LEN] {
        let mut key = [self.class.number(); CONTENT_KEY_LEN];
        key[1..].copy_from_slice(self.id.as_bytes());
        key
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = ByteReader::new("content key", bytes);
        let class = ElementClass::from_number("content key", reader.u8()?)?;
        let id = TensorId(reader.array()?);
        reader.finish()?;
        Ok(Self { class, id })
    }
}

impl std::fmt::Display for ContentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "content {} ({})", self.id, self.class)
    }
}

/// Where a base lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseLocation {
    /// Hash and name of the pack file.
    pub(crate) pack: [u8; 32],
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What is known of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentRecord {
    pub(crate) elements: u64,
    pub(crate) moments: Moments,
    /// Bytes of it as a base: exact if it has one, else those of the base that its first edge came from.
    pub(crate) whole_bytes: u64,
    /// How it is reached.
    pub(crate) origin: Origin,
}

/// How a content is reached: this way there always is, others may be cheaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It has a base of its own.
    Base(BaseLocation),
    /// By the edge from this content, which is in the store too.
    Edge(TensorId),
}

impl Origin {
    pub(crate) fn base(self) -> Option<BaseLocation> {
        match self {
            Self::Base(base) => Some(base),
            Self::Edge(_) => None,
        }
    }
}

/// Most elements of a content.
const MAX_ELEMENTS: u64 = 1 << 48;
/// No length on disk reaches this, so that sums of them never overflow.
const MAX_BYTES: u64 = 1 << 56;

impl ContentRecord {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(80);
        put_varint(&mut out, self.elements);
        out.extend(self.moments.l.to_le_bytes());
        out.extend(self.moments.q.to_le_bytes());
        put_varint(&mut out, self.whole_bytes);
        match self.origin {
            Origin::Base(base) => {
                out.push(0);
                out.extend(base.pack);
                put_varint(&mut out, base.offset);
                put_varint(&mut out, base.len);
            }
            Origin::Edge(from) => {
                out.push(1);
                out.extend(from.0);
            }
        }
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        const WHAT: &str = "content record";
        let mut reader = ByteReader::new(WHAT, bytes);
        let elements = reader.varint_up_to("elements", MAX_ELEMENTS)?;
        let moments = Moments {
            l: reader.u64()?,
            q: reader.u64()?,
        };
        let whole_bytes = reader.varint_up_to("bytes", MAX_BYTES)?;
        let origin = match reader.u8()? {
            0 => Origin::Base(BaseLocation {
                pack: reader.array()?,
                offset: reader.varint_up_to("offset", MAX_BYTES)?,
                len: reader.varint_up_to("bytes", MAX_BYTES)?,
            }),
            1 => Origin::Edge(TensorId(reader.array()?)),
            _ => {
                return Err(FormatError::Invalid {
                    what: WHAT,
                    why: "an unknown origin".to_owned(),
                });
            }
        };
        reader.finish()?;
        Ok(Self {
            elements,
            moments,
            whole_bytes,
            origin,
        })
    }
}

/// Where the changes of one piece lie: member `member` of patch set `set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceLocation {
    pub(crate) piece: u64,
    pub(crate) set: u64,
    pub(crate) member: u32,
}

/// An edge: a stored patch between two contents of one class and length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EdgeRecord {
    pub(crate) patch: PatchId,
    pub(crate) changed: u64,
    /// What it takes as stored.
    pub(crate) bytes: u64,
    /// Its pieces that have changes, ascending.
    pub(crate) pieces: Vec<PieceLocation>,
}

impl EdgeRecord {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.patch.0.to_vec();
        put_varint(&mut out, self.changed);
        put_varint(&mut out, self.bytes);
        put_varint(&mut out, self.pieces.len() as u64);
        for location in &self.pieces {
            put_varint(&mut out, location.piece);
            put_varint(&mut out, location.set);
            put_varint(&mut out, u64::from(location.member));
        }
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        const WHAT: &str = "edge record";
        let mut reader = ByteReader::new(WHAT, bytes);
        let patch = PatchId(reader.array()?);
        let changed = reader.varint_up_to("changes", MAX_ELEMENTS)?;
        let edge_bytes = reader.varint_up_to("bytes", MAX_BYTES)?;
        let most = piece_count(MAX_ELEMENTS);
        let count = reader.count("number of pieces", most, 3)?;
        let mut pieces: Vec<PieceLocation> = Vec::with_capacity(count);
        for _ in 0..count {
            let location = PieceLocation {
                piece: reader.varint_up_to("piece", most - 1)?,
                set: reader.varint()?,
                member: reader.varint_up_to("member", u64::from(u32::MAX))? as u32,
            };
            if pieces
                .last()
                .is_some_and(|last| last.piece >= location.piece)
            {
                return Err(FormatError::Invalid {
                    what: WHAT,
                    why: "its pieces are not in order".to_owned(),
                });
            }
            pieces.push(location);
        }
        reader.finish()?;
        Ok(Self {
            patch,
            changed,
            bytes: edge_bytes,
            pieces,
        })
    }

    pub(crate) fn piece(&self, piece: u64) -> Option<PieceLocation> {
        let at = self.pieces.binary_search_by_key(&piece, |l| l.piece).ok()?;
        Some(self.pieces[at])
    }
}

/// Key of an edge: class, from, to.
pub(crate) fn edge_key(from: ContentKey, to: TensorId) -> [u8; CONTENT_KEY_LEN + 32] {
    let mut key = [0; CONTENT_KEY_LEN + 32];
    key[..CONTENT_KEY_LEN].copy_from_slice(&from.to_bytes());
    key[CONTENT_KEY_LEN..].copy_from_slice(to.as_bytes());
    key
}

/// The two contents of an edge's key.
pub(crate) fn edge_ends(key: &[u8]) -> Result<(ContentKey, TensorId), FormatError> {
    let mut reader = ByteReader::new("edge key", key);
    let from = ContentKey::from_bytes(reader.bytes(CONTENT_KEY_LEN)?)?;
    let to = TensorId(reader.array()?);
    reader.finish()?;
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back() {
        let moments = Moments { l: 7, q: u64::MAX };
        let base = BaseLocation {
            pack: [3; 32],
            offset: 1 << 40,
            len: 300,
        };
        for origin in [Origin::Base(base), Origin::Edge(TensorId([4; 32]))] {
            let record = ContentRecord {
                elements: 1 << 30,
                moments,
                whole_bytes: 12,
                origin,
            };
            let bytes = record.to_bytes();
            assert_eq!(ContentRecord::from_bytes(&bytes), Ok(record));
            for length in 0..bytes.len() {
                assert!(ContentRecord::from_bytes(&bytes[..length]).is_err());
            }
        }
        let location = PieceLocation {
            piece: 5,
            set: 1 << 33,
            member: 9,
        };
        let edge = EdgeRecord {
            patch: PatchId([8; 32]),
            changed: 77,
            bytes: 1000,
            pieces: vec![location],
        };
        let bytes = edge.to_bytes();
        assert_eq!(EdgeRecord::from_bytes(&bytes), Ok(edge.clone()));
        assert_eq!((edge.piece(5), edge.piece(4)), (Some(location), None));
        for length in 0..bytes.len() {
            assert!(EdgeRecord::from_bytes(&bytes[..length]).is_err());
        }
        let twice = EdgeRecord {
            pieces: vec![location, location],
            ..edge
        };
        assert!(EdgeRecord::from_bytes(&twice.to_bytes()).is_err());
    }
}
