//! `deltaic demo`: the main job on made-up weights, start to end, with its figures.

use crate::arguments::count;
use crate::demo::{Demo, LEARNING_RATE, ModelPlan, PullRow, VersionRow};
use crate::folders::must_be_empty;
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::units;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Commit and pull versions of a made-up model, and compare every replica with the trainer's weights.
///
/// A trainer with FP32 master weights takes optimizer steps and writes bf16 checkpoints, as in reinforcement learning.
/// Each is committed to a new store. One replica follows every version, one jumps over many, one goes back; the files
/// of each are compared with the trainer's, byte by byte.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic demo                           200 million parameters, ten versions
  deltaic demo --params 20M --commits 5  a quick one
  deltaic demo --dir /data/demo          in a folder that stays, to look around in")]
pub struct DemoArgs {
    /// Work in this folder, which is made or empty, and leave everything there [default: a temporary folder].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Parameters of the model, about.
    #[arg(long, value_name = "N", default_value = "200M", value_parser = count)]
    params: u64,
    /// Versions to commit.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(2..=1000))]
    commits: u64,
    /// Leave the temporary folder in place.
    #[arg(long)]
    keep: bool,
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    parameters: u64,
    tensors: u64,
    learning_rate: f32,
    versions: Vec<VersionRow>,
    pulls: Vec<PullRow>,
    full_bytes: u64,
    store_bytes: u64,
    base_bytes: u64,
    edge_bytes: u64,
    longest_chain: u64,
    seconds: f64,
    dir: Option<String>,
}

/// A folder to work in, which goes or stays.
enum Place {
    Temporary(tempfile::TempDir),
    Lasting(PathBuf),
}

impl Place {
    fn new(args: &DemoArgs) -> Result<Self> {
        let Some(dir) = &args.dir else {
            let parent = std::env::temp_dir();
            let mut builder = tempfile::Builder::new();
            let dir = builder
                .prefix("deltaic-demo-")
                .tempdir_in(&parent)
                .map_err(|error| Failure::file(&parent, &error))?;
            return Ok(if args.keep {
                Self::Lasting(dir.keep())
            } else {
                Self::Temporary(dir)
            });
        };
        let in_dir = |error: io::Error| Failure::file(dir, &error);
        fs::create_dir_all(dir).map_err(in_dir)?;
        must_be_empty(dir, "name a folder that is empty or not there yet")?;
        Ok(Self::Lasting(dir.clone()))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Lasting(dir) => dir,
        }
    }

    fn lasting(&self) -> Option<PathBuf> {
        match self {
            Self::Temporary(_) => None,
            Self::Lasting(dir) => Some(dir.clone()),
        }
    }
}

/// Run the command.
///
/// # Errors
///
/// If a step fails, or the user stops.
pub fn run(args: &DemoArgs, session: &Session) -> Result<ExitCode> {
    let begun = Instant::now();
    let place = Place::new(args)?;
    let plan = ModelPlan::about(args.params);
    let (parameters, tensors) = (plan.parameters(), plan.tensors().count() as u64);
    let keep = place.lasting().is_some();
    let mut demo = Demo::new(session, place.path(), keep, &plan, args.commits)?;
    session
        .output
        .part(|page| print_model(page, &plan, args.commits))?;
    let (mut versions, mut pulls) = (Vec::new(), Vec::new());
    demo.train(plan, args.commits, |version, pull| {
        session.progress.clear();
        session
            .output
            .part(|page| page.line(&version_line(&version)))?;
        versions.push(version);
        pulls.push(pull);
        Ok(())
    })?;
    session.output.part(print_pull_heading)?;
    demo.jump(|pull| {
        session.progress.clear();
        session.output.part(|page| page.line(&pull_line(&pull)))?;
        pulls.push(pull);
        Ok(())
    })?;
    let stats = demo.stats()?;
    let ok = pulls.iter().all(|pull| pull.difference.is_none());
    session.answer(&Report {
        ok,
        parameters,
        tensors,
        learning_rate: LEARNING_RATE,
        full_bytes: versions.iter().map(|row| row.change.full_bytes).sum(),
        versions,
        pulls,
        store_bytes: stats.store_bytes,
        base_bytes: stats.base_bytes,
        edge_bytes: stats.edge_bytes,
        longest_chain: stats.longest_chain,
        seconds: begun.elapsed().as_secs_f64(),
        dir: place.lasting().map(|dir| dir.display().to_string()),
    })?;
    Ok(ExitCode::from(if ok { 0 } else { Kind::Corrupt.code() }))
}

fn print_model(page: &mut Page<'_>, plan: &ModelPlan, commits: u64) -> io::Result<()> {
    let parameters = units::count(plan.parameters());
    let tensors = plan.tensors().count();
    page.line(&format!(
        "A made-up model of {parameters} parameters in bf16: {} layers of width {}, {tensors} tensors in {} files.",
        plan.layers,
        plan.hidden,
        plan.shards.len(),
    ))?;
    page.line(&format!(
        "Its trainer takes AdamW-like steps at a learning rate of {LEARNING_RATE:e} and commits {commits} versions; a \
         replica follows each."
    ))?;
    page.line("")?;
    let heading = row([
        "VERSION",
        "CHANGED",
        "FULL",
        "PATCH",
        "PER CHANGE",
        "SMALLER",
        "MAKE",
        "COMMIT",
        "PULL",
    ]);
    page.line(&page.paint.bold(&heading))
}

fn row<T: AsRef<str>>(cells: [T; 9]) -> String {
    let [
        version,
        changed,
        full,
        patch,
        each,
        ratio,
        make,
        commit,
        pull,
    ] = cells.each_ref().map(AsRef::as_ref);
    format!(
        "{version:<8}{changed:>9}{full:>11}{patch:>11}{each:>12}{ratio:>9}{make:>9}{commit:>9}{pull:>9}"
    )
}

fn version_line(version: &VersionRow) -> String {
    let change = &version.change;
    let full = units::bytes(change.full_bytes);
    let times = [
        version.make_seconds,
        version.commit_seconds,
        version.pull_seconds,
    ];
    let [make, commit, pull] = times.map(units::seconds);
    let name = format!("v{}", version.version);
    let none = || "-".to_owned();
    if version.version == 0 {
        return row([
            name,
            none(),
            full,
            none(),
            none(),
            none(),
            make,
            commit,
            pull,
        ]);
    }
    row([
        name,
        units::percent(change.changed, change.elements),
        full,
        units::bytes(change.patch_bytes),
        units::bytes_per(change.patch_bytes, change.changed),
        units::ratio(change.full_bytes, change.patch_bytes),
        make,
        commit,
        pull,
    ])
}

fn print_pull_heading(page: &mut Page<'_>) -> io::Result<()> {
    page.line("")?;
    let heading = format!(
        "{:<12}{:>6}{:>6}{:>12}{:>9}",
        "REPLICA", "FROM", "TO", "RECEIVED", "TIME"
    );
    page.line(&page.paint.bold(&heading))
}

fn pull_line(pull: &PullRow) -> String {
    let from = pull
        .from
        .map_or("-".to_owned(), |version| format!("v{version}"));
    let to = format!("v{}", pull.to);
    let received = units::bytes(pull.received_bytes);
    let time = units::seconds(pull.seconds);
    format!(
        "{:<12}{from:>6}{to:>6}{received:>12}{time:>9}",
        pull.replica
    )
}

impl Answer for Report {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line("")?;
        self.print_summary(page)?;
        if let Some(dir) = &self.dir {
            let repo = crate::demo::REPO;
            page.line(&format!(
                "Everything is left in {dir}; look with `deltaic --store {dir}/store log {repo}`."
            ))?;
        }
        let checked = units::plural(self.pulls.len() as u64, "time", "times");
        match self
            .pulls
            .iter()
            .find_map(|pull| Some((pull, pull.difference.as_ref()?)))
        {
            None => page.line(&page.paint.green(&format!(
                "Every replica equals the trainer's weights bit for bit ({checked} compared)."
            ))),
            Some((pull, difference)) => page.line(&page.paint.red(&format!(
                "The replica that {} does not equal the trainer's weights at v{}: {difference}.",
                pull.replica, pull.to
            ))),
        }
    }
}

impl Report {
    fn print_summary(&self, page: &mut Page<'_>) -> io::Result<()> {
        let steps = self.versions.iter().filter(|row| row.version > 0);
        let (mut changed, mut patch, mut elements, mut full) = (0, 0, 0, 0);
        for VersionRow { change, .. } in steps {
            changed += change.changed;
            elements += change.elements;
            patch += change.patch_bytes;
            full += change.full_bytes;
        }
        page.line(&format!(
            "A step changed {} of the weights; its patch took {} per changed element, {} less than the checkpoint.",
            units::percent(changed, elements),
            units::bytes_per(patch, changed),
            units::ratio(full, patch),
        ))?;
        page.line(&format!(
            "The store holds {} of checkpoints in {} ({} of bases, {} of edges; chains of up to {}).",
            units::bytes(self.full_bytes),
            units::bytes(self.store_bytes),
            units::bytes(self.base_bytes),
            units::bytes(self.edge_bytes),
            units::plural(self.longest_chain, "edge", "edges"),
        ))?;
        page.line(&format!("All of it took {}.", units::seconds(self.seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::Change;

    #[test]
    fn lines_fit_their_heading() {
        let version = VersionRow {
            version: 999,
            change: Change {
                elements: 200_000_000,
                changed: 1_000_000,
                full_bytes: 400_000_000,
                patch_bytes: 1_600_000,
            },
            received_bytes: 1_600_000,
            make_seconds: 1.0,
            commit_seconds: 2.0,
            pull_seconds: 0.5,
        };
        assert_eq!(
            version_line(&version),
            "v999       0.50 %    381 MiB    1.5 MiB      1.60 B     250x   1.00 s   2.00 s   0.50 s"
        );
        let pull = PullRow {
            replica: "goes back",
            from: None,
            to: 3,
            received_bytes: 1024,
            seconds: 0.25,
            difference: None,
        };
        assert_eq!(
            pull_line(&pull),
            "goes back        -    v3     1.0 KiB   0.25 s"
        );
    }
}
