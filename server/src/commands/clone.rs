//! `deltaic clone`: the history of a branch from a server.

use super::push::{CopiedBranch, copy};
use crate::arguments::{BranchSpec, RemoteRepo};
use crate::report::Result;
use crate::session::Session;
use crate::settings::{DEFAULT_STORE, Place};
use clap::Args;
use deltaic_format::name::BranchName;
use deltaic_format::revision::DEFAULT_BRANCH;
use deltaic_store::Store;
use std::sync::Arc;
use std::time::Instant;

/// Copy the history of a branch from a server: into the store, which is made if it is not there.
///
/// Versions keep their commits, and so their ids. Cloning again brings what is new; a branch that has gone its own way
/// here is never overwritten. To have one version's files, use `deltaic pull`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic clone http://host:7421/acme/policy               main, into .deltaic-store
  deltaic clone http://host:7421/acme/policy --branch dev  another branch
  deltaic --store /data/store clone http://host:7421/acme/policy")]
pub struct CloneArgs {
    /// The repository on its server.
    #[arg(value_name = "URL/REPO")]
    source: RemoteRepo,
    /// The branch.
    #[arg(long, value_name = "BRANCH", default_value = DEFAULT_BRANCH)]
    branch: BranchName,
}

/// Run the command.
///
/// # Errors
///
/// If there is no such branch, the one that is here went another way, or the server cannot be reached.
pub fn run(args: CloneArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let CloneArgs { source, branch } = args;
    let target = BranchSpec {
        repo: source.repo.clone(),
        branch,
    };
    let from = session.repositories_at(&source.endpoint)?;
    // Nothing is made here for what is not there.
    from.branches(&target.repo)?;
    let to = receiver(session)?;
    let shown = match &to {
        Place::Servers(urls) => urls.clone(),
        Place::Store(dir) => dir.display().to_string(),
    };
    let to = match to {
        Place::Servers(_) => session.repositories()?,
        Place::Store(dir) => {
            let (store, _) = session.wait_for(|| Store::init(&dir))?;
            session.repositories_of(Arc::new(store))?
        }
    };
    let copied = copy(&from, &to, &target, session)?;
    let ends = [source.endpoint, shown];
    session.answer(&CopiedBranch::new(target, ends, &copied, begun))
}

/// What the settings name, or else the default store, there or not.
fn receiver(session: &Session) -> Result<Place> {
    let settings = &session.settings;
    match (&settings.store, &settings.endpoint) {
        (None, None) => Ok(Place::Store(DEFAULT_STORE.into())),
        _ => settings.place(),
    }
}
