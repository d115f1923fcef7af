//! `deltaic export`: the committed files again, byte for byte.

use crate::folders::{REPLICA_RECORDS, must_be_empty};
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::units;
use clap::Args;
use deltaic_format::revision::RevisionSpec;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Write the files of a version to a folder, byte for byte as they were committed.
///
/// The folder is an ordinary checkpoint. To follow a branch use `deltaic pull`, which patches in place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic export acme/policy@v42 -o ckpt/               all files of v42
  deltaic export acme/policy@best:config.json -o ckpt/  one file of a tag")]
pub struct ExportArgs {
    /// Repository, revision and, where only part of it is wanted, a file or folder.
    #[arg(value_name = "REPO[@REV][:PATH]", value_parser = crate::arguments::revision)]
    revision: RevisionSpec,
    /// Folder to write to, which is made if it is not there.
    #[arg(short, long, value_name = "DIR", value_parser = crate::arguments::folder())]
    output: PathBuf,
    /// Write even if the folder is not empty; files of the same name are replaced.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Exported {
    repo: String,
    version: u64,
    commit: String,
    dir: String,
    files: u64,
    bytes: u64,
    seconds: f64,
}

impl Answer for Exported {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let name = format!("{} v{} {}", self.repo, self.version, &self.commit[..12]);
        let files = units::plural(self.files, "file", "files");
        let bytes = units::bytes(self.bytes);
        let time = units::seconds(self.seconds);
        let name = page.paint.yellow(&name);
        page.line(&format!(
            "{name} · {files}, {bytes} to {} in {time}",
            self.dir
        ))
    }

    fn print_quietly(&self, _page: &mut Page<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such revision or path, or the files cannot be written.
pub fn run(args: &ExportArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let repositories = session.repositories()?;
    let RevisionSpec { repo, path, .. } = &args.revision;
    let snapshot = session.snapshot_of(&repositories, &args.revision)?;
    must_be_free(&args.output, args.force, &args.revision)?;
    let outcome = deltaic_client::export(
        &repositories.source(repo),
        &snapshot,
        path.as_ref(),
        &args.output,
        &session.progress,
    )?;
    session.answer(&Exported {
        repo: repo.to_string(),
        version: snapshot.commit.version.0,
        commit: snapshot.id.to_string(),
        dir: args.output.display().to_string(),
        files: outcome.files,
        bytes: outcome.bytes,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Fail if there is something in the folder that an export would harm, or might.
fn must_be_free(dir: &Path, force: bool, revision: &RevisionSpec) -> Result<()> {
    if dir.join(REPLICA_RECORDS).exists() {
        let message = format!("{} is a replica", dir.display());
        return Err(Failure::new(Kind::Conflict, message)
            .hint(format!(
                "name another folder, or move the replica to the version with `deltaic pull {revision} -o {}`",
                dir.display()
            )));
    }
    if force {
        return Ok(());
    }
    must_be_empty(
        dir,
        "name another folder, or replace files of the same name with --force",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_never_written_to() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let revision: RevisionSpec = "a".parse().expect("a revision");
        assert!(must_be_free(dir.path(), false, &revision).is_ok());
        std::fs::create_dir(dir.path().join(REPLICA_RECORDS))?;
        for force in [false, true] {
            let failure = must_be_free(dir.path(), force, &revision).expect_err("it is a replica");
            assert_eq!(failure.kind, Kind::Conflict);
            assert!(failure.hint.contains("pull"));
        }
        Ok(())
    }
}
