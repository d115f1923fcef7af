//! SIGINT and SIGTERM: the first asks for an orderly end, the second ends the program at once.

use crate::report::Kind;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks at whether the user has asked to stop.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Whether the user has asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listen to the signals from now on.
    ///
    /// # Errors
    ///
    /// If the system refuses the handlers.
    pub fn listen() -> io::Result<Self> {
        let interrupt = Self::default();
        let code = i32::from(Kind::Interrupted.code());
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in this order: the flag is not yet set when the first signal looks at it.
            flag::register_conditional_shutdown(signal, code, interrupt.asked.clone())?;
            flag::register(signal, interrupt.asked.clone())?;
        }
        Ok(interrupt)
    }

    /// Whether the user has asked to stop.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Wait until the user asks to stop.
    pub async fn wait(&self) {
        // A signal's handler may do little more than set a flag.
        while !self.asked() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
}
