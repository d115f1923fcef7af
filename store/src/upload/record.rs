//! What a spool's records hold: an item, and where the sender goes on after it.
//!
//! ```text
//! varint length, position      at most 128 bytes
//! u8 kind                      1 schema, 2 tree, 3 commit, 4 file, 5 patches, 6 content
//!   4: bytes[32] id | varint offset
//!   5: varint S | S x span     span: varint tensor | varint first element | varint elements
//!   6: span
//! the item's bytes, to the end
//! ```

use crate::error::{Result, StoreError};
use deltaic_format::FormatError;
use deltaic_format::bytes::{ByteReader, put_varint};
use deltaic_format::fetch::{Delivery, Span};
use deltaic_format::ids::FileId;
use deltaic_format::upload::{MAX_POSITION_BYTES, ObjectKind, UploadItem};

/// Name of the format in errors.
const WHAT: &str = "upload record";

/// Spans of one record at most: members of one patch set (SPEC.md §6).
const MAX_SPANS: u64 = 1 << 20;

const SCHEMA: u8 = 1;
const TREE: u8 = 2;
const COMMIT: u8 = 3;
const FILE: u8 = 4;
const PATCHES: u8 = 5;
const CONTENT: u8 = 6;

/// What an item is, apart from its bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    Object(ObjectKind),
    File { file: FileId, offset: u64 },
    Patches(Vec<Span>),
    Content(Span),
}

/// A record as it was read.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) position: &'a [u8],
    pub(super) head: Head,
    pub(super) data: &'a [u8],
}

/// Everything of a record that comes before the item's bytes, which are returned beside it.
pub(super) fn encode<'a>(position: &[u8], item: &'a UploadItem) -> Result<(Vec<u8>, &'a [u8])> {
    if position.len() > MAX_POSITION_BYTES {
        return Err(StoreError::Invalid {
            what: format!("an upload's position of {} bytes", position.len()),
        });
    }
    let mut head = Vec::with_capacity(64 + position.len());
    put_varint(&mut head, position.len() as u64);
    head.extend_from_slice(position);
    let data = match item {
        UploadItem::Object { kind, bytes } => {
            head.push(match kind {
                ObjectKind::Schema => SCHEMA,
                ObjectKind::Tree => TREE,
                ObjectKind::Commit => COMMIT,
            });
            bytes
        }
        UploadItem::File {
            file,
            offset,
            bytes,
        } => {
            head.push(FILE);
            head.extend(file.0);
            put_varint(&mut head, *offset);
            bytes
        }
        UploadItem::Delivery(Delivery::Patches { members, bytes }) => {
            if members.is_empty() || members.len() as u64 > MAX_SPANS {
                return Err(StoreError::Invalid {
                    what: format!("a delivery of {} spans", members.len()),
                });
            }
            head.push(PATCHES);
            put_varint(&mut head, members.len() as u64);
            members.iter().for_each(|span| put_span(&mut head, span));
            bytes
        }
        UploadItem::Delivery(Delivery::Content { span, bytes }) => {
            head.push(CONTENT);
            put_span(&mut head, span);
            bytes
        }
    };
    Ok((head, data))
}

/// Read a record, or of one that is cut short the part that comes before the item's bytes.
pub(super) fn decode(payload: &[u8]) -> Result<Record<'_>, FormatError> {
    let mut reader = ByteReader::new(WHAT, payload);
    let position = reader.count("length of a position", MAX_POSITION_BYTES as u64, 1)?;
    let position = reader.bytes(position)?;
    let head = match reader.u8()? {
        SCHEMA => Head::Object(ObjectKind::Schema),
        TREE => Head::Object(ObjectKind::Tree),
        COMMIT => Head::Object(ObjectKind::Commit),
        FILE => Head::File {
            file: FileId(reader.array()?),
            offset: reader.varint()?,
        },
        PATCHES => {
            let count = reader.count("number of spans", MAX_SPANS, 3)?;
            let spans = (0..count).map(|_| get_span(&mut reader));
            Head::Patches(spans.collect::<Result<_, _>>()?)
        }
        CONTENT => Head::Content(get_span(&mut reader)?),
        other => {
            return Err(FormatError::Invalid {
                what: WHAT,
                why: format!("an unknown kind {other}"),
            });
        }
    };
    let data = reader.bytes(reader.left())?;
    Ok(Record {
        position,
        head,
        data,
    })
}

fn put_span(out: &mut Vec<u8>, span: &Span) {
    put_varint(out, span.tensor as u64);
    put_varint(out, span.first);
    put_varint(out, span.elements);
}

fn get_span(reader: &mut ByteReader<'_>) -> Result<Span, FormatError> {
    Ok(Span {
        tensor: reader.varint_up_to("number of a tensor", u64::from(u32::MAX))? as usize,
        first: reader.varint()?,
        elements: reader.varint()?,
    })
}
