//! The versioned weight store, embedded: RocksDB for objects, edges and refs, pack files for bases.
//!
//! A [`Store`] is one folder, open in one process. Contents hang together in the *delta graph*: some have a base,
//! the others are reached from one along edges. Where to look:
//!
//! | question | module |
//! |---|---|
//! | what happens in a commit? | `commit` |
//! | how is the cheapest path found? | `graph` |
//! | how is a content read, its patches composed? | `contents` |
//! | how is "give me N, I hold M" answered? | `fetch` |
//! | how does a version come from elsewhere? | `upload` |
//! | which commits does a repository have? | `reach` |
//! | what lies where on disk? | `folder`, `packs`, `database`, `records` |

mod checkpoint;
mod commit;
mod compare;
mod contents;
mod database;
mod diff;
mod error;
mod fetch;
mod files;
mod folder;
mod graph;
mod packs;
mod reach;
mod records;
mod refs;
mod resolve;
mod stats;
mod store;
mod upload;
mod verify;

#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoint, PlainFile};
pub use error::{Result, StoreError};
pub use fetch::Fetch;
pub use files::FoundFile;
pub use store::Store;
pub use upload::Upload;
