//! Reading a journal: complete or nothing.

use super::{
    HEADER_LEN, JOURNAL, KIND_BYTES, KIND_REMOVE, KIND_RENAME, KIND_TARGET, KIND_VOID, KIND_WORDS,
    MAGIC, Record, TRAILER_LEN, Target, VERSION, Volume,
};
use crate::disk::{open, open_if_there, remove_if_there};
use crate::error::{At, ClientError, Result};
use crate::parts::PART_LEN;
use crate::replica::folder::Folder;
use crate::replica::state::{Held, Labels, snapshot_from};
use deltaic_format::FormatError;
use deltaic_format::bytes::ByteReader;
use deltaic_format::ids::CommitId;
use deltaic_format::name::TreePath;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

const WHAT: &str = "journal";

/// A complete journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    target: Target,
    void: HashSet<usize>,
    bytes: u64,
}

impl Journal {
    pub(super) fn new(
        path: PathBuf,
        target: Target,
        void: HashSet<usize>,
        volume: &Volume,
    ) -> Self {
        let bytes = volume.without(&void);
        Self {
            path,
            target,
            void,
            bytes,
        }
    }

    /// The journal of `folder`, if there is a complete one.
    pub(crate) fn open(folder: &Folder) -> Result<Option<Self>> {
        let path = folder.internal(JOURNAL);
        let Some(file) = open_if_there(&path, false)? else {
            return Ok(None);
        };
        let Some(version) = complete_version(file).at(&path)? else {
            return Ok(None);
        };
        if version != VERSION {
            let what = format!("it has format {version}, this build reads format {VERSION}");
            return Err(ClientError::corrupt(path.display(), what));
        }
        let mut target = None;
        let (mut void, mut volume) = (HashSet::new(), Volume::default());
        for_each_record(&path, |kind, body| {
            if kind == KIND_TARGET {
                target = Some(read_target(body)?);
                return Ok(());
            }
            match read_record(kind, body)? {
                Record::Void { tensor } => drop(void.insert(tensor)),
                Record::Words { tensor, words, .. } => volume.add_words(tensor, words.len()),
                Record::Bytes { bytes, .. } => volume.add_bytes(bytes.len()),
                Record::Remove { .. } | Record::Rename { .. } => {}
            }
            Ok(())
        })?;
        let Some(target) = target else {
            return Err(ClientError::corrupt(path.display(), "it has no target"));
        };
        Ok(Some(Self::new(path, target, void, &volume)))
    }

    /// Where it leads.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Bytes that it writes into files where they lie.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Give every step, in order, to `each`.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        for_each_record(&self.path, |kind, body| {
            if kind == KIND_TARGET {
                return Ok(());
            }
            match read_record(kind, body)? {
                Record::Void { .. } => Ok(()),
                Record::Words { tensor, .. } if self.void.contains(&tensor) => Ok(()),
                record => each(record).map_err(Failure::Step),
            }
        })
    }
}

/// Delete the journal of `folder`, complete or not, with what it staged and what was reserved for its target.
pub(crate) fn discard(folder: &Folder) -> Result<()> {
    remove_if_there(&folder.internal(JOURNAL))?;
    // The journal is gone for good before what it names is.
    folder.sync()?;
    Held::unreserve(folder)?;
    folder.clear_staged()
}

/// The format version of a complete journal; `None` if it is not complete.
fn complete_version(mut file: File) -> std::io::Result<Option<u8>> {
    let len = file.metadata()?.len();
    let Some(hashed) = len
        .checked_sub(32)
        .filter(|_| len >= HEADER_LEN + TRAILER_LEN)
    else {
        return Ok(None);
    };
    let mut header = [0; HEADER_LEN as usize];
    file.read_exact(&mut header)?;
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; PART_LEN.min(hashed) as usize];
    let mut left = hashed;
    while left > 0 {
        let part = &mut buffer[..PART_LEN.min(left) as usize];
        file.read_exact(part)?;
        hasher.update(part);
        left -= part.len() as u64;
    }
    let mut hash = [0; 32];
    file.read_exact(&mut hash)?;
    let complete = header.starts_with(&MAGIC) && *hasher.finalize().as_bytes() == hash;
    Ok(complete.then_some(header[MAGIC.len()]))
}

/// Why going through a journal stopped.
enum Failure {
    /// A record breaks the format.
    Record(String),
    /// The step failed.
    Step(ClientError),
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        Self::Record(error.to_string())
    }
}

/// Give kind and body of every record to `each`.
fn for_each_record(
    path: &Path,
    mut each: impl FnMut(u8, &[u8]) -> Result<(), Failure>,
) -> Result<()> {
    let damaged = |what: String| ClientError::corrupt(path.display(), what);
    let file = open(path, false)?;
    let len = file.metadata().at(path)?.len();
    let mut left = (len.checked_sub(HEADER_LEN + TRAILER_LEN))
        .ok_or_else(|| damaged("it ends early".into()))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.seek(SeekFrom::Start(HEADER_LEN)).at(path)?;
    let mut body = Vec::new();
    let mut records = 0u64;
    while left > 0 {
        let mut length = [0; 8];
        reader.read_exact(&mut length).at(path)?;
        let length = u64::from_le_bytes(length);
        left = (left
            .checked_sub(8)
            .and_then(|left| left.checked_sub(length)))
        .filter(|_| length > 0)
        .ok_or_else(|| damaged(format!("record {records} is longer than the journal")))?;
        body.resize(length as usize, 0);
        reader.read_exact(&mut body).at(path)?;
        each(body[0], &body[1..]).map_err(|failure| match failure {
            Failure::Record(what) => damaged(format!("record {records}: {what}")),
            Failure::Step(error) => error,
        })?;
        records += 1;
    }
    let mut announced = [0; 8];
    reader.read_exact(&mut announced).at(path)?;
    if u64::from_le_bytes(announced) != records {
        return Err(damaged(
            "it does not have as many records as it says".into(),
        ));
    }
    Ok(())
}

fn read_target(body: &[u8]) -> Result<Target, Failure> {
    let mut reader = ByteReader::new(WHAT, body);
    let id = CommitId(reader.array()?);
    let mut object = || -> Result<&[u8], Failure> {
        let length = reader.count("length of an object", u64::MAX, 1)?;
        Ok(reader.bytes(length)?)
    };
    let (commit, tree, schema) = (object()?, object()?, object()?);
    let snapshot = snapshot_from(id, commit, tree, schema)
        .map_err(|(name, what)| Failure::Record(format!("{name}: {what}")))?;
    let repo = reader.string("repository", u64::MAX)?;
    let revision = reader.string("revision", u64::MAX)?;
    let has_path = reader.u8()? == 1;
    let path = reader.string("path", u64::MAX)?;
    let path = has_path.then(|| TreePath::new(path)).transpose()?;
    reader.finish()?;
    let labels = Labels {
        repo,
        revision,
        path,
    };
    Ok(Target { snapshot, labels })
}

fn read_record(kind: u8, body: &[u8]) -> Result<Record<'_>, Failure> {
    let mut reader = ByteReader::new(WHAT, body);
    let path = |reader: &mut ByteReader<'_>| TreePath::new(reader.string("path", u64::MAX)?);
    let record = match kind {
        KIND_WORDS => {
            let (tensor, piece) = (reader.u64()? as usize, reader.u64()?);
            let count = reader.u32()? as usize;
            let indexes = reader.bytes(4 * count)?;
            let words = reader.bytes(reader.left())?;
            if count == 0 || !words.len().is_multiple_of(count) {
                return Err(Failure::Record("words and indexes do not match".into()));
            }
            Record::Words {
                tensor,
                piece,
                indexes,
                words,
            }
        }
        KIND_BYTES => Record::Bytes {
            file: reader.u32()? as usize,
            offset: reader.u64()?,
            bytes: reader.bytes(reader.left())?,
        },
        KIND_REMOVE => Record::Remove {
            path: path(&mut reader)?,
        },
        KIND_RENAME => Record::Rename {
            staged: reader.u32()? as usize,
            path: path(&mut reader)?,
        },
        KIND_VOID => Record::Void {
            tensor: reader.u64()? as usize,
        },
        _ => return Err(Failure::Record(format!("unknown kind {kind}"))),
    };
    reader.finish()?;
    Ok(record)
}
