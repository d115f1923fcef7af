//! How long operations tell their caller where they stand, and how it stops them.

/// Receives progress from libraries, which never print. Called from several threads.
pub trait Progress: Send + Sync {
    /// A phase begins, such as `"reading"`; `total` is its work in bytes where that is known.
    fn phase(&self, name: &'static str, total: Option<u64>);

    /// `bytes` more of the current phase are done.
    fn advance(&self, bytes: u64);

    /// Whether the caller wants to stop; asked between bounded pieces of work.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Takes no notice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _name: &'static str, _total: Option<u64>) {}

    fn advance(&self, _bytes: u64) {}
}
