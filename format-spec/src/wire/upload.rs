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
        Self {
            repo: target.repo.to_string(),
            branch: target.branch.to_string(),
            upload: Bytes::copy_from_slice(&target.id.0),
            parent: target.parent.as_ref().map(id_bytes).unwrap_or_default(),
            commit: target.commit.as_ref().map(id_bytes).unwrap_or_default(),
        }
    }
}

impl TryFrom<&proto::UploadBegin> for UploadTarget {
    type Error = FormatError;

    fn try_from(begin: &proto::UploadBegin) -> Result<Self> {
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
    proto::UploadItem {
        position,
        what: Some(what),
    }
}

/// The item in a message, and its position.
///
/// # Errors
///
/// If it is none, or was changed on its way.
pub fn item_from_wire(item: proto::UploadItem) -> Result<(UploadPosition, UploadItem)> {
    use proto::upload_item::What;
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
