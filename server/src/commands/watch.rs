//! `deltaic watch`: new versions of a branch as they are made.

use crate::arguments::BranchSpec;
use crate::following::{Following, newest};
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::units;
use crate::versions::{VersionName, name_of, summary};
use clap::Args;
use deltaic_client::Entry;
use deltaic_format::revision::Selector;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time between two looks at a command that runs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Tell of each new version of a branch, and run a command for it, until stopped.
///
/// No version is left out and none comes twice, however often the server is lost and found again. With --json there is
/// one document per line.
///
/// The command runs in `sh -c`, one after the other, with DELTAIC_REPO, DELTAIC_BRANCH, DELTAIC_VERSION (such as 42) and
/// DELTAIC_COMMIT in its environment. If it fails, a warning says so, and the watch goes on.
/// Whoever stops the watch stops a command that runs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic watch acme/policy                        new versions of main
  deltaic watch acme/policy@dev --after v41        those after v41, then new ones
  deltaic watch acme/policy --exec './reload.sh'   run a command for each
  deltaic watch acme/policy --json | while read -r version; do …; done")]
pub struct WatchArgs {
    /// Repository and branch, such as acme/policy@main; the branch is main if not named.
    #[arg(value_name = "REPO[@BRANCH]")]
    target: BranchSpec,
    /// Run this for each version.
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Begin with the versions after this one; vN is that version of the branch [default: the newest one now].
    #[arg(long, value_name = "REV")]
    after: Option<Selector>,
}

/// A version that was made.
#[derive(Serialize)]
struct Seen {
    #[serde(flatten)]
    name: VersionName,
    message: String,
    meta: BTreeMap<String, String>,
    time: String,
    #[serde(skip)]
    time_ms: i64,
}

impl Seen {
    fn new(target: &BranchSpec, (id, commit): Entry) -> Self {
        Self {
            name: name_of(&target.repo, Some(target.branch.clone()), id, &commit),
            time: units::rfc3339(commit.time_ms),
            time_ms: commit.time_ms,
            message: commit.message,
            meta: commit.meta,
        }
    }
}

impl Answer for Seen {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let name = page.paint.yellow(&self.name.to_string());
        let time = page.paint.dim(&units::local_time(self.time_ms));
        let line = format!("{name}  {time}  {}", summary(&self.message, &self.meta));
        page.line(line.trim_end())
    }

    fn print_quietly(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&self.name.commit.to_string())
    }
}

/// Run the command until the user stops it.
///
/// # Errors
///
/// If there is no such branch or revision, or the branch goes away; that the user stopped it.
pub fn run(args: WatchArgs, session: &Session) -> Result<()> {
    let WatchArgs {
        target,
        exec,
        after,
    } = args;
    let after = {
        let repositories = session.repositories()?;
        let newest = newest(&repositories, &target.repo, &target.branch)?;
        match after {
            None => newest,
            Some(after) => {
                let after = after.within(&target.branch);
                session.resolve(&repositories, &target.repo, &after)?
            }
        }
    };
    let mut following = Following::new(session, &target.repo, &target.branch, after)?;
    loop {
        let seen = Seen::new(&target, following.next_version()?);
        session.next_answer(&seen)?;
        if let Some(command) = &exec {
            execute(command, &seen.name, session)?;
        }
        session.go_on()?;
    }
}

/// Run `command` for a version.
fn execute(command: &str, version: &VersionName, session: &Session) -> Result<()> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("DELTAIC_REPO", version.repo.as_str())
        .env("DELTAIC_VERSION", version.version.0.to_string())
        .env("DELTAIC_COMMIT", version.commit.to_string())
        .stdin(Stdio::null());
    if let Some(branch) = &version.branch {
        shell.env("DELTAIC_BRANCH", branch.as_str());
    }
    if session.output.is_json() {
        // What it says is none of the documents.
        shell.stdout(io::stderr());
    }
    let no_shell = |error: io::Error| {
        Failure::new(Kind::Error, format!("sh cannot be run: {error}"))
            .hint("see that there is a shell, sh, on the PATH")
    };
    let mut child = shell.spawn().map_err(no_shell)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(no_shell)? {
            break status;
        }
        if let Err(stopped) = session.pause(BETWEEN_LOOKS) {
            // Whoever stops this means the command too; it gets to end by itself.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
            return Err(stopped);
        }
    };
    if !status.success() {
        session.warn(format_args!(
            "the command for {} ended with {status}",
            version.version
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::Version;
    use deltaic_format::ids::{CommitId, TreeId};
    use deltaic_format::object::Commit;

    #[test]
    fn a_version_is_one_line_with_the_keys_that_scripts_rely_on() {
        let target: BranchSpec = "acme/policy@dev".parse().expect("a valid target");
        let commit = Commit {
            tree: TreeId([0; 32]),
            parents: Vec::new(),
            version: Version(3),
            time_ms: 0,
            message: "two\nlines".to_owned(),
            meta: BTreeMap::from([("step".to_owned(), "7".to_owned())]),
        };
        let seen = Seen::new(&target, (CommitId([1; 32]), commit));
        let mut line = Vec::new();
        crate::report::write_line(&mut line, &seen).expect("memory can be written");
        let text = String::from_utf8(line).expect("it is UTF-8");
        assert_eq!(text.lines().count(), 1);
        let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        for key in [
            "repo", "branch", "version", "commit", "message", "meta", "time",
        ] {
            assert!(json.get(key).is_some(), "{key}: {json}");
        }
        assert_eq!(
            (&json["version"], &json["branch"]),
            (&3.into(), &"dev".into())
        );
    }
}
