//! `deltaic doctor`: whether this machine and its store are fit for work.

use crate::folders::free_space;
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::settings::Place;
use crate::units;
use clap::Args;
use deltaic_format::answers::VerifyOptions;
use deltaic_format::progress::Progress;
use deltaic_gpu::{DeviceInfo, GpuError};
use deltaic_store::{Store, StoreError};
use serde::Serialize;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Less free disk space than this deserves a warning.
const LITTLE_SPACE: u64 = 10 << 30;

/// How long to look at what the store holds.
const LONGEST_LOOK: Duration = Duration::from_secs(3);

/// Check this machine and the store or server: processor, CUDA, config file, disk space, file system, whether the store opens or the server answers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic doctor
  deltaic --store /data/store doctor --json
  deltaic --endpoint http://host:7421 doctor  whether the server answers")]
pub struct DoctorArgs {}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
}

impl Check {
    fn new(name: &'static str, status: Status, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            name,
            status,
            detail,
        }
    }

    fn of(name: &'static str, result: Result<String, String>) -> Self {
        match result {
            Ok(detail) => Self::new(name, Status::Ok, detail),
            Err(detail) => Self::new(name, Status::Fail, detail),
        }
    }
}

#[derive(Serialize)]
struct Diagnosis {
    ok: bool,
    version: &'static str,
    checks: Vec<Check>,
}

impl Answer for Diagnosis {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        for check in &self.checks {
            let status = match check.status {
                Status::Ok => page.paint.green("ok  "),
                Status::Warn => page.paint.yellow("warn"),
                Status::Fail => page.paint.red("fail"),
            };
            page.line(&format!("{status}  {:<12}{}", check.name, check.detail))?;
        }
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If the answer cannot be written.
pub fn run(_args: &DoctorArgs, session: &Session) -> Result<ExitCode> {
    let mut checks = vec![
        Check::new("version", Status::Ok, env!("CARGO_PKG_VERSION")),
        processor(),
        cuda(),
    ];
    checks.push(config(session));
    checks.extend(place_checks(session));
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    session.answer(&Diagnosis {
        ok,
        version: env!("CARGO_PKG_VERSION"),
        checks,
    })?;
    Ok(ExitCode::from(if ok { 0 } else { Kind::Error.code() }))
}

fn config(session: &Session) -> Check {
    match &session.settings.config {
        Ok(None) => Check::new("config file", Status::Ok, "none, which is fine"),
        Ok(Some(path)) => Check::new("config file", Status::Ok, path.display().to_string()),
        Err(failure) => {
            let detail = format!("{}; {}", failure.message, failure.hint);
            Check::new("config file", Status::Fail, detail)
        }
    }
}

fn processor() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = units::plural(cores as u64, "core", "cores");
    match vector_units() {
        units if units.is_empty() => Check::new(
            "processor",
            Status::Warn,
            format!(
                "{cores}, without the vector instructions that hashing and comparing are fast with"
            ),
        ),
        units => Check::new(
            "processor",
            Status::Ok,
            format!("{cores}, {}", units.join(" ")),
        ),
    }
}

fn cuda() -> Check {
    let device = |device: &DeviceInfo| format!("{}, {}", device.name, units::bytes(device.memory));
    match deltaic_gpu::probe() {
        Ok(devices) if devices.is_empty() => Check::new(
            "cuda",
            Status::Warn,
            "there is a driver but no device: the CPU path serves",
        ),
        Ok(devices) => {
            let devices: Vec<String> = devices.iter().map(device).collect();
            Check::new("cuda", Status::Ok, devices.join("; "))
        }
        // A machine without one is a normal machine.
        Err(error @ GpuError::NoDriver) => {
            Check::new("cuda", Status::Ok, format!("{error}: the CPU path serves"))
        }
        Err(error) => Check::new(
            "cuda",
            Status::Warn,
            format!("{error}: the CPU path serves"),
        ),
    }
}

#[cfg(target_arch = "x86_64")]
fn vector_units() -> Vec<&'static str> {
    let units = [
        ("sse4.1", is_x86_feature_detected!("sse4.1")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
    ];
    units
        .into_iter()
        .filter(|unit| unit.1)
        .map(|unit| unit.0)
        .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_units() -> Vec<&'static str> {
    if cfg!(target_feature = "neon") {
        vec!["neon"]
    } else {
        Vec::new()
    }
}

/// The store, or the server in its place.
fn place_checks(session: &Session) -> Vec<Check> {
    match session.settings.place() {
        Ok(Place::Servers(urls)) => vec![server_check(&urls, session)],
        Ok(Place::Store(dir)) => store_checks(&dir),
        Err(failure) => {
            let detail = format!("{}; {}", failure.message, failure.hint);
            vec![Check::new("store", Status::Warn, detail)]
        }
    }
}

/// Whether a server answers.
fn server_check(urls: &str, session: &Session) -> Check {
    let repos = (session.repositories())
        .and_then(|repositories| Ok(repositories.repos()?.len()))
        .map(|repos| units::plural(repos as u64, "repository", "repositories"));
    match repos {
        Ok(repos) => Check::new(
            "endpoint",
            Status::Ok,
            format!("{urls} answers, with {repos}"),
        ),
        Err(failure) => {
            let detail = format!("{}; {}", failure.message, failure.hint);
            Check::new("endpoint", Status::Fail, detail)
        }
    }
}

fn store_checks(dir: &Path) -> Vec<Check> {
    // Whether somebody works with it is part of the answer: nothing to wait for.
    let opened = Store::open(dir).map_err(Failure::from);
    let contents = opened.as_ref().ok().map(contents_check);
    let store = opened.and_then(|store| Ok(store.repos()?.len()));
    let shown = dir.display();
    let opens = match &store {
        Ok(repos) => {
            let repos = units::plural(*repos as u64, "repository", "repositories");
            Check::new("store", Status::Ok, format!("{shown} opens, with {repos}"))
        }
        // Somebody works with it, which is what it is for.
        Err(failure) if failure.kind == Kind::Unavailable => {
            Check::new("store", Status::Warn, &*failure.message)
        }
        Err(failure) => Check::new("store", Status::Fail, &*failure.message),
    };
    let mut checks = vec![opens];
    checks.extend(contents);
    if dir.is_dir() {
        checks.push(disk_space(dir));
        checks.push(Check::of("file system", file_system(dir)));
    }
    checks
}

/// Ends a check that takes too long for a first look.
struct Deadline(Instant);

impl Progress for Deadline {
    fn phase(&self, _: &'static str, _: Option<u64>) {}

    fn advance(&self, _: u64) {}

    fn cancelled(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Whether all that the store names is there, as far as that can be said in a few seconds.
fn contents_check(store: &Store) -> Check {
    let name = "contents";
    let deadline = Deadline(Instant::now() + LONGEST_LOOK);
    match store.verify(&VerifyOptions::default(), &deadline) {
        Ok(report) => match report.problems.as_slice() {
            [] => {
                let contents = units::plural(report.contents, "content", "contents");
                Check::new(
                    name,
                    Status::Ok,
                    format!("{contents} and the packs that hold them are there"),
                )
            }
            [first, ..] => {
                let count = units::plural(report.problems.len() as u64, "problem", "problems");
                let detail = format!(
                    "{count}, such as {}: {}; see all with `deltaic verify`",
                    first.object, first.what
                );
                Check::new(name, Status::Fail, detail)
            }
        },
        Err(StoreError::Interrupted) => Check::new(
            name,
            Status::Ok,
            "too many to look at here: `deltaic verify` checks them all",
        ),
        Err(error) => Check::new(name, Status::Fail, error.to_string()),
    }
}

fn disk_space(dir: &Path) -> Check {
    match free_space(dir) {
        Ok(free) if free < LITTLE_SPACE => Check::new(
            "disk space",
            Status::Warn,
            format!("only {} free", units::bytes(free)),
        ),
        Ok(free) => Check::new(
            "disk space",
            Status::Ok,
            format!("{} free", units::bytes(free)),
        ),
        Err(error) => Check::new("disk space", Status::Warn, error.to_string()),
    }
}

/// Whether files are written durably and locks exclude each other, which some network file systems only pretend.
fn file_system(dir: &Path) -> Result<String, String> {
    let in_words = |doing: &'static str| move |error: io::Error| format!("{doing}: {error}");
    let mut file = tempfile::Builder::new()
        .prefix(".doctor-")
        .tempfile_in(dir)
        .map_err(in_words("a file cannot be made"))?;
    file.write_all(b"written, synced and locked to see that this works")
        .and_then(|()| file.as_file().sync_all())
        .map_err(in_words("a file cannot be written and synced"))?;
    File::open(dir)
        .and_then(|folder| folder.sync_all())
        .map_err(in_words("the folder cannot be synced"))?;
    let other = File::open(file.path()).map_err(in_words("a file cannot be opened"))?;
    file.as_file()
        .lock()
        .map_err(in_words("a file cannot be locked"))?;
    match other.try_lock() {
        Err(TryLockError::WouldBlock) => Ok("syncs and locks work".to_owned()),
        Err(TryLockError::Error(error)) => Err(format!("a file cannot be locked: {error}")),
        Ok(()) => {
            Err("two holders can lock one file: use a file system with real locks".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_passes_and_is_left_empty() {
        let dir = tempfile::tempdir().expect("a folder for the test");
        assert!(file_system(dir.path()).is_ok());
        let mut left = std::fs::read_dir(dir.path()).expect("the folder is there");
        assert!(left.next().is_none());
    }

    #[test]
    fn a_missing_folder_fails_with_words() {
        let failure = file_system(Path::new("/nowhere/at/all")).expect_err("it is not there");
        assert!(failure.starts_with("a file cannot be made"));
    }
}
