//! Where an upload goes on, and the objects that every upload sends.

use deltaic_format::FormatError;
use deltaic_format::bytes::ByteReader;
use deltaic_format::fetch::{AnswerKind, Position};
use deltaic_format::object::{CanonicalObject, Snapshot};
use deltaic_format::upload::{ObjectKind, UploadItem, UploadPosition};
use deltaic_format::wire::PART_BYTES;

/// Name of the kind in errors.
const WHAT: &str = "upload position";

/// A place in an upload, after what comes before it: schema, files, deliveries, tree, commit, in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Nothing is sent.
    #[default]
    Start,
    /// The schema, up to a byte.
    Schema(u64),
    /// Of the files that are sent, this one up to a byte.
    Files {
        /// Its number among them.
        file: u64,
        /// The byte.
        end: u64,
    },
    /// The deliveries, up to a position.
    Deliveries(Position),
    /// The tree, up to a byte.
    Tree(u64),
    /// The commit, up to a byte.
    Commit(u64),
}

impl Stage {
    /// As an upload carries it: the stage's number, and two numbers and a kind that say where in it.
    pub(crate) fn to_bytes(self) -> UploadPosition {
        let kind = |kind| match kind {
            None => 0,
            Some(AnswerKind::Patches) => 1,
            Some(AnswerKind::Content) => 2,
        };
        let (number, first, second, kind) = match self {
            Self::Start => (0u8, 0, 0, 0u8),
            Self::Schema(end) => (1, end, 0, 0),
            Self::Files { file, end } => (2, file, end, 0),
            Self::Deliveries(at) => (3, at.wish, at.element, kind(at.kind)),
            Self::Tree(end) => (4, end, 0, 0),
            Self::Commit(end) => (5, end, 0, 0),
        };
        let mut bytes = vec![number];
        bytes.extend(first.to_le_bytes());
        bytes.extend(second.to_le_bytes());
        bytes.push(kind);
        bytes.into()
    }

    /// The stage with these bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = ByteReader::new(WHAT, bytes);
        let (number, first, second, kind) =
            (reader.u8()?, reader.u64()?, reader.u64()?, reader.u8()?);
        reader.finish()?;
        let unknown = || FormatError::Invalid {
            what: WHAT,
            why: "it is none of this build's".to_owned(),
        };
        Ok(match (number, kind) {
            (0, 0) => Self::Start,
            (1, 0) => Self::Schema(first),
            (2, 0) => Self::Files {
                file: first,
                end: second,
            },
            (3, _) => Self::Deliveries(Position {
                wish: first,
                element: second,
                kind: match kind {
                    0 => None,
                    1 => Some(AnswerKind::Patches),
                    2 => Some(AnswerKind::Content),
                    _ => return Err(unknown()),
                },
            }),
            (4, 0) => Self::Tree(first),
            (5, 0) => Self::Commit(first),
            _ => return Err(unknown()),
        })
    }
}

/// The parts of an object that come after `after`.
pub(crate) fn parts_of(
    kind: ObjectKind,
    object: Vec<u8>,
    after: Stage,
) -> Vec<(Stage, UploadItem)> {
    let object = bytes::Bytes::from(object);
    let stage = match kind {
        ObjectKind::Schema => Stage::Schema,
        ObjectKind::Tree => Stage::Tree,
        ObjectKind::Commit => Stage::Commit,
    };
    let part = |start: usize| {
        let end = (start + PART_BYTES).min(object.len());
        let item = UploadItem::Object {
            kind,
            bytes: object.slice(start..end),
        };
        (stage(end as u64), item)
    };
    let parts = (0..object.len()).step_by(PART_BYTES).map(part);
    parts.filter(|(at, _)| *at > after).collect()
}

/// The objects of a version, in parts, those that come after `after`.
pub(crate) fn object_items(version: &Snapshot, after: Stage) -> Vec<(Stage, UploadItem)> {
    [
        (ObjectKind::Schema, version.schema.to_bytes()),
        (ObjectKind::Tree, version.tree.to_bytes()),
        (ObjectKind::Commit, version.commit.to_bytes()),
    ]
    .into_iter()
    .flat_map(|(kind, object)| parts_of(kind, object, after))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_come_in_the_order_of_an_upload_and_back_from_their_bytes() {
        let at = |wish, element, kind| {
            Stage::Deliveries(Position {
                wish,
                element,
                kind,
            })
        };
        let stages = [
            Stage::Start,
            Stage::Schema(5),
            Stage::Schema(1 << 20),
            Stage::Files { file: 0, end: 9 },
            Stage::Files { file: 1, end: 3 },
            at(0, 0, None),
            at(0, 1 << 18, Some(AnswerKind::Patches)),
            at(0, 2 << 18, Some(AnswerKind::Content)),
            at(1, 0, None),
            Stage::Tree(7),
            Stage::Commit(7),
        ];
        assert!(stages.is_sorted());
        for stage in stages {
            let bytes = stage.to_bytes();
            assert_eq!(Stage::from_bytes(&bytes), Ok(stage));
            assert!(bytes.len() <= deltaic_format::upload::MAX_POSITION_BYTES);
        }
        assert!(Stage::from_bytes(b"\x09").is_err());
        assert!(Stage::from_bytes(&[9; 18]).is_err());
    }
}
