//! `deltaic init`: make a store.

use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::settings::{By, DEFAULT_STORE};
use clap::Args;
use deltaic_store::Store;
use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Make an embedded store; it is fine if it is there already.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic init              make a store in .deltaic-store, used by default
  deltaic init /data/store  make one elsewhere, to be named with --store")]
pub struct InitArgs {
    /// Folder of the store [default: what --store names, else .deltaic-store].
    dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Made {
    store: String,
    created: bool,
}

impl Answer for Made {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let store = &self.store;
        page.line(&if self.created {
            format!("made an empty store in {store}")
        } else {
            format!("there is a store in {store} already")
        })
    }

    fn print_quietly(&self, _page: &mut Page<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If the folder cannot become a store.
pub fn run(args: &InitArgs, session: &Session) -> Result<()> {
    if let (Some(dir), Some(other), true) = (
        &args.dir,
        &session.settings.store,
        session.settings.store_by == By::Flag,
    ) {
        let message = format!(
            "DIR and --store name two folders, {} and {}",
            dir.display(),
            other.display()
        );
        return Err(Failure::usage(message).hint("name one of them"));
    }
    if session.settings.endpoint_by == By::Flag {
        return Err(
            Failure::usage("a store is made on this machine, not over a server")
                .hint("leave --endpoint out; then serve the store with `deltaic serve`"),
        );
    }
    let given = args.dir.as_ref().or(session.settings.store.as_ref());
    let dir = given.cloned().unwrap_or_else(|| DEFAULT_STORE.into());
    let (store, created) = session.wait_for(|| Store::init(&dir)).map_err(not_made)?;
    let root = store.root();
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    session.answer(&Made {
        store: root.display().to_string(),
        created,
    })
}

fn not_made(failure: Failure) -> Failure {
    match failure.kind {
        Kind::Conflict => failure.hint("name a folder that is empty or not there yet"),
        _ => failure,
    }
}
