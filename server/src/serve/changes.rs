//! Word of changed refs, for those who follow branches.

use tokio::sync::watch;

/// Counts changes of refs in this process; clones share the count.
#[derive(Debug, Clone)]
pub struct Changes {
    count: watch::Sender<u64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            count: watch::Sender::new(0),
        }
    }
}

impl Changes {
    /// Say that a ref was changed, after it was.
    pub fn made(&self) {
        self.count
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Be told of changes from now on.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        let mut receiver = self.count.subscribe();
        receiver.mark_unchanged();
        receiver
    }
}
