//! A bounded number of open files, so that thousands of shards stay below the system's limit.

use crate::error::Result;
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

const MAX_OPEN: usize = 256;

/// Open files by a number that the owner gives them.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<usize, Arc<File>>>,
}

impl Handles {
    /// File `key`, opened by `open` unless it is open already.
    pub(crate) fn get(&self, key: usize, open: impl FnOnce() -> Result<File>) -> Result<Arc<File>> {
        let mut files = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&key) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(open()?);
        if files.len() >= MAX_OPEN
            && let Some(&other) = files.keys().next()
        {
            files.remove(&other);
        }
        files.insert(key, Arc::clone(&file));
        Ok(file)
    }

    /// Close all of them.
    pub(crate) fn clear(&self) {
        let mut files = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        files.clear();
    }
}
