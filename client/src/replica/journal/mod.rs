//! The journal: everything that a pull is about to write, durable before the first byte of the replica changes.
//!
//! It holds absolute new words, not shifts, so that replaying it from any point of a crash, any number of
//! times, gives the same files. Words are little-endian, integers too:
//!
//! ```text
//! offset  size
//! 0       8     magic  89 44 4A 4C 0D 0A 1A 0A   (\x89 "DJL" \r \n \x1a \n)
//! 8       1     format version, 2
//! 9             records, the first of them the target
//!         8     number of records
//!         32    BLAKE3 of everything before
//!
//! record: u64 length of what follows | u8 kind | body
//!
//! kind        body
//! 1 target    bytes[32] commit id | varint length, commit | varint length, tree | varint length, schema |
//!             string repository | string revision | u8 whether a path follows | string path
//! 2 words     u64 tensor | u64 piece | u32 n | n x u32 index within the piece | n x new word
//! 3 bytes     u32 weight file | u64 offset in the file | the bytes
//! 4 remove    string path
//! 5 rename    u32 number of a staged file, which has its permissions already | string path
//! 6 void      u64 tensor: its words are not to be written, its file turned out to hold them already
//! ```
//!
//! Tensors and weight files go by their place in the target tree. A journal that ends early, or whose hash is wrong, was
//! never complete: nothing of it was written, and it is discarded.

mod read;
mod write;

pub(super) use read::{Journal, discard};
pub(super) use write::JournalWriter;

use super::state::Labels;
use deltaic_format::name::TreePath;
use deltaic_format::object::Snapshot;
use std::collections::{HashMap, HashSet};

/// Name of the journal in `.deltaic`.
pub(super) const JOURNAL: &str = "journal";

const MAGIC: [u8; 8] = *b"\x89DJL\r\n\x1a\n";
const VERSION: u8 = 2;
const HEADER_LEN: u64 = 9;
const TRAILER_LEN: u64 = 40;

const KIND_TARGET: u8 = 1;
const KIND_WORDS: u8 = 2;
const KIND_BYTES: u8 = 3;
const KIND_REMOVE: u8 = 4;
const KIND_RENAME: u8 = 5;
const KIND_VOID: u8 = 6;

/// What the files hold once the journal is applied.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub snapshot: Snapshot,
    pub labels: Labels,
}

/// How much a journal writes into files where they lie.
#[derive(Debug, Default)]
struct Volume {
    bytes: u64,
    /// What of it belongs to words of each tensor.
    words: HashMap<usize, u64>,
}

impl Volume {
    fn add_words(&mut self, tensor: usize, len: usize) {
        *self.words.entry(tensor).or_default() += len as u64;
        self.bytes += len as u64;
    }

    fn add_bytes(&mut self, len: usize) {
        self.bytes += len as u64;
    }

    /// Bytes that are written, the words of `void` tensors aside.
    fn without(&self, void: &HashSet<usize>) -> u64 {
        let words = void.iter().filter_map(|tensor| self.words.get(tensor));
        self.bytes - words.sum::<u64>()
    }
}

/// One step of the way to the target.
#[derive(Debug)]
pub(super) enum Record<'a> {
    /// New words of some elements of a piece of a tensor.
    Words {
        tensor: usize,
        piece: u64,
        /// A little-endian `u32` per word: its element's index within the piece, ascending.
        indexes: &'a [u8],
        words: &'a [u8],
    },
    /// New bytes of a weight file.
    Bytes {
        file: usize,
        offset: u64,
        bytes: &'a [u8],
    },
    /// A file that the target does not have.
    Remove { path: TreePath },
    /// A staged file that takes its place in the tree.
    Rename { staged: usize, path: TreePath },
    /// A tensor whose words are not to be written.
    Void { tensor: usize },
}
