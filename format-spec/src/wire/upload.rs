//! Uploads on the wire.

use super::{chunk_from_wire, chunk_to_wire, file_id, id, id_bytes, optional_commit_id, proto};
use crate::error::{FormatError, Result};
use crate::name::{BranchName, RepoName};
use crate::upload::{
    MAX_POSITION_BYTES, ObjectKind, UploadId, UploadItem, UploadPosition, UploadTarget,
};
use bytes::Bytes;

impl From<&UploadTarget> for proto::UploadBegin {
    fn from(target: &UploadTarget) -> Self {
        let mut begin = Self {
            repo: target.repo.to_string(),
            branch: target.branch.to_string(),
            upload: Bytes::copy_from_slice(&target.id.0),
            parent: target.parent.as_ref().map(id_bytes).unwrap_or_default(),
            commit: target.commit.as_ref().map(id_bytes).unwrap_or_default(),
            crc32: 0,
        };
        begin.crc32 = begin_checksum(&begin);
        begin
    }
}

/// The CRC-32 of everything that the beginning of an upload says.
fn begin_checksum(begin: &proto::UploadBegin) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    for field in [
        begin.repo.as_bytes(),
        begin.branch.as_bytes(),
        &begin.upload,
        &begin.parent,
        &begin.commit,
    ] {
        checksum.update(&(field.len() as u64).to_le_bytes());
        checksum.update(field);
    }
    checksum.finalize()
}

impl TryFrom<&proto::UploadBegin> for UploadTarget {
    type Error = FormatError;

    /// [`FormatError::Checksum`] if it was changed on its way.
    fn try_from(begin: &proto::UploadBegin) -> Result<Self> {
        if begin_checksum(begin) != begin.crc32 {
            return Err(FormatError::Checksum {
                what: "beginning of an upload",
            });
        }
        Ok(Self {
            repo: RepoName::new(begin.repo.as_str())?,
            branch: BranchName::new(begin.branch.as_str())?,
            id: UploadId(id("upload", &begin.upload)?),
            parent: optional_commit_id(&begin.parent)?,
            commit: optional_commit_id(&begin.commit)?,
        })
    }
}

/// An item as a message.
pub fn item_to_wire(position: UploadPosition, item: &UploadItem) -> proto::UploadItem {
    use proto::upload_item::What;
    let what = match item {
        UploadItem::Object { kind, bytes } => {
            let part = match kind {
                ObjectKind::Schema => What::Schema,
                ObjectKind::Tree => What::Tree,
                ObjectKind::Commit => What::Commit,
            };
            part(bytes.clone())
        }
        UploadItem::File {
            file,
            offset,
            bytes,
        } => What::File(proto::FilePart {
            file: id_bytes(file),
            offset: *offset,
            data: bytes.clone(),
        }),
        UploadItem::Delivery(delivery) => What::Chunk(chunk_to_wire(delivery, Bytes::new())),
    };
    let mut item = proto::UploadItem {
        position,
        what: Some(what),
        crc32: 0,
    };
    item.crc32 = item_checksum(&item);
    item
}

/// The CRC-32 of an item: what it is, where it belongs, and where to go on after it. The bytes of a chunk are counted in by the
/// chunk's own.
fn item_checksum(item: &proto::UploadItem) -> u32 {
    use proto::upload_item::What;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&(item.position.len() as u64).to_le_bytes());
    checksum.update(&item.position);
    let mut object = |field: u8, bytes: &Bytes| {
        checksum.update(&[field]);
        checksum.update(bytes);
    };
    match &item.what {
        None => {}
        Some(What::Schema(bytes)) => object(2, bytes),
        Some(What::Tree(bytes)) => object(3, bytes),
        Some(What::Commit(bytes)) => object(4, bytes),
        Some(What::File(part)) => {
            checksum.update(&[5]);
            checksum.update(&(part.file.len() as u64).to_le_bytes());
            checksum.update(&part.file);
            checksum.update(&part.offset.to_le_bytes());
            checksum.update(&part.data);
        }
        Some(What::Chunk(chunk)) => {
            checksum.update(&[6]);
            checksum.update(&chunk.crc32.to_le_bytes());
        }
    }
    checksum.finalize()
}

/// The item in a message, and its position.
///
/// # Errors
///
/// [`FormatError::Checksum`] if it was changed on its way, another if it is none.
pub fn item_from_wire(item: proto::UploadItem) -> Result<(UploadPosition, UploadItem)> {
    use proto::upload_item::What;
    if item_checksum(&item) != item.crc32 {
        return Err(FormatError::Checksum {
            what: "upload item",
        });
    }
    if item.position.len() > MAX_POSITION_BYTES {
        return Err(FormatError::Limit {
            what: "upload position",
            field: "length",
            found: item.position.len() as u64,
            limit: MAX_POSITION_BYTES as u64,
        });
    }
    let object = |kind, bytes| UploadItem::Object { kind, bytes };
    let what = match item.what {
        Some(What::Schema(bytes)) => object(ObjectKind::Schema, bytes),
        Some(What::Tree(bytes)) => object(ObjectKind::Tree, bytes),
        Some(What::Commit(bytes)) => object(ObjectKind::Commit, bytes),
        Some(What::File(part)) => UploadItem::File {
            file: file_id(&part.file)?,
            offset: part.offset,
            bytes: part.data,
        },
        Some(What::Chunk(chunk)) => UploadItem::Delivery(chunk_from_wire(chunk)?),
        None => {
            return Err(FormatError::invalid(
                "upload item",
                "it is empty, or of a kind that this build does not know",
            ));
        }
    };
    Ok((item.position, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::{Delivery, Span};
    use crate::ids::FileId;
    use proto::upload_item::What;

    fn items() -> [UploadItem; 3] {
        let span = Span {
            tensor: 3,
            first: 0,
            elements: 9,
        };
        let bytes = Bytes::from_static(b"123456789");
        [
            UploadItem::Object {
                kind: ObjectKind::Tree,
                bytes: bytes.clone(),
            },
            UploadItem::File {
                file: FileId([7; 32]),
                offset: 5,
                bytes: bytes.clone(),
            },
            UploadItem::Delivery(Delivery::Content { span, bytes }),
        ]
    }

    /// Items that differ from `item` in one place each.
    fn damaged(item: &proto::UploadItem) -> Vec<proto::UploadItem> {
        let all = [
            |i: &mut proto::UploadItem| i.crc32 ^= 1,
            |i: &mut proto::UploadItem| i.position = Bytes::from_static(b"off"),
            |i: &mut proto::UploadItem| i.what = None,
            |i: &mut proto::UploadItem| {
                i.what = Some(What::Schema(Bytes::from_static(b"123456789")));
            },
            |i: &mut proto::UploadItem| match &mut i.what {
                Some(What::Tree(bytes)) => *bytes = Bytes::from_static(b"12345678"),
                Some(What::File(part)) => part.offset += 1,
                Some(What::Chunk(chunk)) => chunk.spans[0].tensor += 1,
                _ => panic!("no such item"),
            },
            |i: &mut proto::UploadItem| match &mut i.what {
                Some(What::Tree(bytes)) => i.what = Some(What::Commit(bytes.clone())),
                Some(What::File(part)) => part.file = Bytes::from_static(&[8; 32]),
                Some(What::Chunk(chunk)) => chunk.crc32 ^= 1,
                _ => panic!("no such item"),
            },
        ];
        let changed = all.iter().map(|change| {
            let mut bad = item.clone();
            change(&mut bad);
            bad
        });
        changed.collect()
    }

    #[test]
    fn items_come_back_and_damage_to_any_part_of_them_is_told_apart() {
        for item in items() {
            let position = Bytes::from_static(b"on");
            let wire = item_to_wire(position.clone(), &item);
            assert_eq!(item_from_wire(wire.clone()), Ok((position, item)));
            for bad in damaged(&wire) {
                let refused = item_from_wire(bad);
                assert!(
                    matches!(refused, Err(FormatError::Checksum { .. })),
                    "{refused:?}"
                );
            }
        }
    }

    #[test]
    fn a_beginning_comes_back_and_damage_to_any_part_of_it_is_noticed() {
        let target = UploadTarget {
            repo: RepoName::new("acme/policy").expect("valid"),
            branch: BranchName::new("main").expect("valid"),
            id: UploadId([3; 32]),
            parent: None,
            commit: Some(crate::ids::CommitId([4; 32])),
        };
        let good = proto::UploadBegin::from(&target);
        assert_eq!(UploadTarget::try_from(&good), Ok(target));
        for change in [
            |b: &mut proto::UploadBegin| b.repo = "acie/policy".into(),
            |b: &mut proto::UploadBegin| b.branch = "maim".into(),
            |b: &mut proto::UploadBegin| b.upload = Bytes::from_static(&[2; 32]),
            |b: &mut proto::UploadBegin| b.parent = b.commit.clone(),
            |b: &mut proto::UploadBegin| b.commit = Bytes::new(),
            |b: &mut proto::UploadBegin| b.crc32 ^= 1,
        ] {
            let mut bad = good.clone();
            change(&mut bad);
            let refused = UploadTarget::try_from(&bad);
            assert!(matches!(refused, Err(FormatError::Checksum { .. })));
        }
    }

    #[test]
    fn what_was_sent_as_no_item_is_no_damage() {
        let mut nothing = item_to_wire(Bytes::new(), &items()[0]);
        nothing.what = None;
        nothing.crc32 = item_checksum(&nothing);
        let mut far = item_to_wire(Bytes::new(), &items()[0]);
        far.position = vec![0; MAX_POSITION_BYTES + 1].into();
        far.crc32 = item_checksum(&far);
        for bad in [nothing, far] {
            let refused = item_from_wire(bad);
            assert!(
                !matches!(refused, Ok(_) | Err(FormatError::Checksum { .. })),
                "{refused:?}"
            );
        }
    }
}
