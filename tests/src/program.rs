//! The `deltaic` program, as users run it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The variables that a run keeps of whoever runs the tests; everything else would leak into what is tested.
const KEPT: [&str; 4] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "RUST_BACKTRACE"];

/// Time between two looks at a run's memory. Only what it grows by in its last moments, shorter than this, can be missed.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// A built program.
#[derive(Debug, Clone)]
pub struct Program(PathBuf);

/// A run that has ended.
#[derive(Debug)]
pub struct Measured {
    /// What it printed, and its status.
    pub output: Output,
    /// The most memory that was resident at any time, in bytes: its own and mapped files.
    pub peak_bytes: u64,
}

impl Program {
    /// The program at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The program that was built beside the one that runs.
    ///
    /// # Errors
    ///
    /// Says how to build it if it is not there.
    pub fn beside_this_one() -> Result<Self, String> {
        let executable = std::env::current_exe().map_err(|error| error.to_string())?;
        let path = executable.with_file_name("deltaic");
        if path.is_file() {
            return Ok(Self(path));
        }
        Err(format!(
            "there is no program {}: run `cargo build --workspace` first",
            path.display()
        ))
    }

    /// A command that runs it in `home`, which is its home folder and working directory, without the settings of whoever
    /// runs the tests.
    pub fn command(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.0);
        command.env_clear().current_dir(home).env("HOME", home);
        for name in KEPT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// Run a command to its end, watching its memory.
///
/// The kernel's high-water mark is read from `/proc`, not from `wait4`: the latter counts what the parent of a new process had
/// resident, which a process that runs many tests has a lot of.
///
/// # Errors
///
/// If it cannot be started or waited for, or `/proc` does not tell.
pub fn measured(command: &mut Command) -> io::Result<Measured> {
    let child = (command.stdin(Stdio::null()).stdout(Stdio::piped()))
        .stderr(Stdio::piped())
        .spawn()?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut peak = 0;
            loop {
                peak = peak.max(high_water_mark(&status).unwrap_or_default());
                if end.recv_timeout(BETWEEN_LOOKS) != Err(RecvTimeoutError::Timeout) {
                    return peak;
                }
            }
        });
        let output = child.wait_with_output();
        drop(ended);
        let peak_bytes = watcher.join().expect("the watcher does not panic");
        if peak_bytes == 0 {
            return Err(io::Error::other("/proc does not tell a process's memory"));
        }
        Ok(Measured {
            output: output?,
            peak_bytes,
        })
    })
}

/// `VmHWM` of a process's status file, in bytes; `None` once it has ended.
fn high_water_mark(status: &Path) -> Option<u64> {
    amount(&fs::read_to_string(status).ok()?, "VmHWM:")
}

/// A line of a process's status file, in bytes.
fn amount(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes that a process has resident, and the most that it ever had; `None` once it has ended.
pub fn resident(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some((amount(&status, "VmRSS:")?, amount(&status, "VmHWM:")?))
}

/// Wait until a run shows what `seen` looks for; `false` if it ends before. The caller kills, stops or waits for it.
///
/// # Panics
///
/// If the system does not tell whether it has ended.
pub fn watch(child: &mut Child, mut seen: impl FnMut() -> bool) -> bool {
    // Bounded by the run's life: every command ends.
    loop {
        if seen() {
            return true;
        }
        if child.try_wait().expect("a child can be asked").is_some() {
            return false;
        }
        std::thread::yield_now();
    }
}
