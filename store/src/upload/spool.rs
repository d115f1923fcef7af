//! The spool of an upload: what came of it, in a file.
//!
//! ```text
//! 8   magic  89 44 55 50 0D 0A 1A 0A   (\x89 "DUP" \r \n \x1a \n)
//! 1   format version, 1
//!     string repository | string branch | u8 number of parents, 0 or 1 | bytes[32] parent
//!     records, one after the other:
//! 4     u32 length of the payload, at most 16 MiB
//! 4     u32 CRC-32 of the payload
//!       payload (see `record`)
//! ```
//!
//! A spool is never fsynced: nothing that is visible depends on it, and whatever of it is used is proven again. So a crash may leave it
//! with a tail that is torn or was never written. Opening it checks record by record, and it goes on after the last of those that are whole:
//! the sender sends again from there. While the process lives that wrote it, nobody else writes to it, and it goes on where it was left (`Mark`)
//! without being read.

use super::record::{self, Head, Record};
use super::refused;
use crate::error::{Result, StoreError};
use crate::folder::Folder;
use deltaic_format::FormatError;
use deltaic_format::bytes::put_string;
use deltaic_format::upload::{ObjectKind, UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::wire::MAX_MESSAGE_BYTES;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"\x89DUP\r\n\x1a\n";
const VERSION: u8 = 1;

/// Length and checksum before a payload.
const FRAME: usize = 8;

/// What is read of a record at first, to know what it is.
const HEAD_BYTES: usize = 4096;

const READ_BUFFER: usize = 1 << 20;

/// No schema, tree or commit is longer.
const MAX_OBJECT_BYTES: u64 = 512 << 20;

const ENDING: &str = "spool";

/// An open spool.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    /// Where the first record begins.
    begin: u64,
    /// Where the next record goes.
    end: u64,
    held: Held,
}

/// How a spool was left: what is known of its records, and what the file was like then.
#[derive(Debug)]
pub(super) struct Mark {
    held: Held,
    stat: Stat,
}

/// A file as long as nobody has written to it.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stat {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

/// What is known of all records.
#[derive(Debug, Clone, Default)]
struct Held {
    items: u64,
    position: Option<UploadPosition>,
    /// Bytes of schema, tree and commit.
    objects: [u64; 3],
}

/// Where a record lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    offset: u64,
    /// Length of its payload.
    len: u32,
}

/// The upload whose spool a file of the folder is, by its name.
pub(super) fn id_of(path: &Path) -> Option<UploadId> {
    let is_spool = path.extension().is_some_and(|ending| ending == ENDING);
    let name = path.file_stem().filter(|_| is_spool)?.to_str()?;
    let hash = blake3::Hash::from_hex(name).ok()?;
    Some(UploadId(*hash.as_bytes()))
}

fn path_of(folder: &Folder, id: UploadId) -> PathBuf {
    let name = blake3::Hash::from_bytes(id.0).to_hex();
    folder.uploads().join(format!("{name}.{ENDING}"))
}

/// Remove the spool of an upload, which nobody has open, if there is one.
pub(super) fn remove(folder: &Folder, id: UploadId) {
    // What cannot be removed now is swept later.
    let _ = fs::remove_file(path_of(folder, id));
}

fn header_of(target: &UploadTarget) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.push(VERSION);
    put_string(&mut header, target.repo.as_str());
    put_string(&mut header, target.branch.as_str());
    header.push(u8::from(target.parent.is_some()));
    header.extend(target.parent.iter().flat_map(|parent| parent.0));
    header
}

impl Spool {
    /// The spool of `target`, as far as it is whole, or a new one. One that is as it was `left` is not read.
    pub(super) fn open(folder: &Folder, target: &UploadTarget, left: Option<Mark>) -> Result<Self> {
        let uploads = folder.uploads();
        fs::create_dir_all(&uploads).map_err(|e| StoreError::io(&uploads, e))?;
        let path = path_of(folder, target.id);
        let header = header_of(target);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| StoreError::io(&path, e))?;
        let mut spool = Self {
            path,
            file,
            begin: header.len() as u64,
            end: header.len() as u64,
            held: Held::default(),
        };
        let stat = Stat::of(&spool.file).map_err(|e| spool.io(e))?;
        if spool.begins_with(&header) {
            match left {
                Some(left) if left.stat == stat => (spool.end, spool.held) = (stat.len, left.held),
                _ => spool.recover(stat.len),
            }
            if spool.end < stat.len {
                spool.cut()?;
            }
            return Ok(spool);
        }
        // Another target's, or none at all.
        let begun = (spool.file.set_len(0)).and_then(|()| spool.file.write_all_at(&header, 0));
        match begun {
            Ok(()) => Ok(spool),
            Err(e) => {
                spool.remove();
                Err(spool.io(e))
            }
        }
    }

    /// How it is left, if nothing but whole records was written.
    pub(super) fn mark(&self) -> Option<Mark> {
        let stat = Stat::of(&self.file).ok()?;
        (stat.len == self.end).then(|| Mark {
            held: self.held.clone(),
            stat,
        })
    }

    fn io(&self, error: std::io::Error) -> StoreError {
        StoreError::io(&self.path, error)
    }

    fn begins_with(&self, header: &[u8]) -> bool {
        let mut found = vec![0; header.len()];
        self.file.read_exact_at(&mut found, 0).is_ok() && found == header
    }

    /// Check records from the beginning, up to the first that is not whole.
    fn recover(&mut self, len: u64) {
        let mut payload = Vec::new();
        let mut reader = BufReader::with_capacity(READ_BUFFER, At(&self.file, self.begin));
        while let Some(record) = next_record(&mut reader, len - self.end, &mut payload) {
            if self.held.add(&record).is_err() {
                break;
            }
            self.end += (FRAME + payload.len()) as u64;
        }
    }

    /// Drop everything after the last record.
    fn cut(&self) -> Result<()> {
        self.file.set_len(self.end).map_err(|e| self.io(e))
    }

    pub(super) fn position(&self) -> Option<&UploadPosition> {
        self.held.position.as_ref()
    }

    pub(super) fn items(&self) -> u64 {
        self.held.items
    }

    /// Bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.begin
    }

    /// Add a record; on error the spool is as it was.
    pub(super) fn append(&mut self, position: UploadPosition, item: &UploadItem) -> Result<()> {
        let (head, data) = record::encode(&position, item)?;
        let len = head.len() + data.len();
        if len > MAX_MESSAGE_BYTES {
            return Err(StoreError::Invalid {
                what: format!("an upload's item of {len} bytes, more than a message has"),
            });
        }
        self.held.check_object(item)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head);
        crc.update(data);
        let mut first = Vec::with_capacity(FRAME + head.len());
        first.extend((len as u32).to_le_bytes());
        first.extend(crc.finalize().to_le_bytes());
        first.extend(head);
        let written = (self.file.write_all_at(&first, self.end))
            .and_then(|()| self.file.write_all_at(data, self.end + first.len() as u64));
        if let Err(error) = written {
            // If this fails as well, the next record or opening the spool anew drops the rest of this one.
            let _ = self.cut();
            return Err(self.io(error));
        }
        self.end += (FRAME + len) as u64;
        if let UploadItem::Object { kind, bytes } = item {
            self.held.objects[number(*kind)] += bytes.len() as u64;
        }
        self.held.items += 1;
        self.held.position = Some(position);
        Ok(())
    }

    /// Give each record to `receive`, in order: of deliveries and files only what they are, their bytes being left out.
    pub(super) fn each(
        &self,
        mut receive: impl FnMut(Place, Head, Body<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut offset = self.begin;
        let mut payload = Vec::new();
        while offset < self.end {
            let mut frame = [0; FRAME];
            self.read_at(&mut frame, offset)?;
            let place = Place {
                offset,
                len: payload_len(frame),
            };
            let next = offset + FRAME as u64 + u64::from(place.len);
            if place.len as usize > MAX_MESSAGE_BYTES || next > self.end {
                return Err(self.damaged("a record is longer than it was"));
            }
            self.read_head(place, &mut payload)?;
            let record = record::decode(&payload).map_err(|e| self.damaged(e))?;
            let before = payload.len() - record.data.len();
            let body = Body {
                len: u64::from(place.len) - before as u64,
                bytes: record.data,
            };
            receive(place, record.head, body)?;
            offset = next;
        }
        Ok(())
    }

    /// Read as much of a record as says what it is, and all of an object.
    fn read_head(&self, place: Place, payload: &mut Vec<u8>) -> Result<()> {
        let short = (place.len as usize).min(HEAD_BYTES);
        payload.resize(short, 0);
        self.read_at(payload, place.offset + FRAME as u64)?;
        let enough = match record::decode(payload) {
            Ok(record) => !matches!(record.head, Head::Object(_)),
            Err(FormatError::Truncated { .. }) => false,
            Err(error) => return Err(self.damaged(error)),
        };
        if !enough {
            *payload = self.payload(place)?;
        }
        Ok(())
    }

    /// A record's payload, checked.
    fn payload(&self, place: Place) -> Result<Vec<u8>> {
        let mut frame = [0; FRAME];
        self.read_at(&mut frame, place.offset)?;
        let mut payload = vec![0; place.len as usize];
        self.read_at(&mut payload, place.offset + FRAME as u64)?;
        if payload_len(frame) != place.len || crc32fast::hash(&payload) != checksum(frame) {
            return Err(self.damaged("a record does not have its checksum"));
        }
        Ok(payload)
    }

    /// Read a record and give its item's bytes to `use_it`.
    pub(super) fn read<T>(
        &self,
        place: Place,
        use_it: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let payload = self.payload(place)?;
        let record = record::decode(&payload).map_err(|e| self.damaged(e))?;
        use_it(record.data)
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        match self.file.read_exact_at(out, offset) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("it is truncated")),
            other => other.map_err(|e| self.io(e)),
        }
    }

    fn damaged(&self, what: impl ToString) -> StoreError {
        StoreError::corrupt(format!("the upload {}", self.path.display()), what)
    }

    /// Remove the file.
    pub(super) fn remove(&self) {
        // What cannot be removed now is swept later.
        let _ = fs::remove_file(&self.path);
    }
}

/// The item's bytes of a record: how many there are, and of an object which.
pub(super) struct Body<'a> {
    pub(super) len: u64,
    pub(super) bytes: &'a [u8],
}

fn payload_len(frame: [u8; FRAME]) -> u32 {
    let [a, b, c, d, ..] = frame;
    u32::from_le_bytes([a, b, c, d])
}

fn checksum(frame: [u8; FRAME]) -> u32 {
    let [.., a, b, c, d] = frame;
    u32::from_le_bytes([a, b, c, d])
}

/// The next record of `left` bytes, if it is whole.
fn next_record<'a>(
    reader: &mut impl Read,
    left: u64,
    payload: &'a mut Vec<u8>,
) -> Option<Record<'a>> {
    let rest = left.checked_sub(FRAME as u64)?;
    let mut frame = [0; FRAME];
    reader.read_exact(&mut frame).ok()?;
    let len = payload_len(frame) as usize;
    if len > MAX_MESSAGE_BYTES || len as u64 > rest {
        return None;
    }
    payload.resize(len, 0);
    reader.read_exact(payload).ok()?;
    if crc32fast::hash(payload) != checksum(frame) {
        return None;
    }
    record::decode(payload).ok()
}

/// A file read from an offset on.
struct At<'a>(&'a File, u64);

impl Read for At<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read_at(out, self.1)?;
        self.1 += read as u64;
        Ok(read)
    }
}

fn number(kind: ObjectKind) -> usize {
    match kind {
        ObjectKind::Schema => 0,
        ObjectKind::Tree => 1,
        ObjectKind::Commit => 2,
    }
}

impl Held {
    fn check_object(&self, item: &UploadItem) -> Result<()> {
        let UploadItem::Object { kind, bytes } = item else {
            return Ok(());
        };
        if self.objects[number(*kind)] + bytes.len() as u64 > MAX_OBJECT_BYTES {
            return Err(refused(format!("the {kind:?} is longer than any may be")));
        }
        Ok(())
    }

    /// Take note of a record that was read.
    fn add(&mut self, record: &Record<'_>) -> Result<()> {
        if let Head::Object(kind) = record.head {
            let held = &mut self.objects[number(kind)];
            *held += record.data.len() as u64;
            if *held > MAX_OBJECT_BYTES {
                return Err(refused("an object is longer than any may be"));
            }
        }
        self.items += 1;
        self.position = Some(UploadPosition::copy_from_slice(record.position));
        Ok(())
    }
}
