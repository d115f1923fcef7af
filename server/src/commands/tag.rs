//! `deltaic tag`: make, list and delete tags.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::{Session, existing_repo, missing_name, taken_name};
use crate::table::Table;
use crate::units;
use clap::{Args, Subcommand};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_store::{Selector, Store};
use serde::Serialize;
use std::io;

/// Make, list and delete tags, which name one version for ever.
#[derive(Debug, Args)]
pub struct TagArgs {
    #[command(subcommand)]
    command: TagCommand,
}

#[derive(Debug, Subcommand)]
enum TagCommand {
    /// Give a version a name that stays with it.
    #[command(after_help = "\
Examples:
  deltaic tag create acme/policy best        the newest version of main
  deltaic tag create acme/policy rc1 dev:v7  a version of another branch")]
    Create {
        /// Repository.
        repo: RepoName,
        /// Name of the tag.
        name: BranchName,
        /// What it names.
        #[arg(value_name = "REV", default_value = "main")]
        revision: Selector,
    },
    /// List the tags of a repository.
    #[command(after_help = "Example:\n  deltaic tag list acme/policy")]
    List {
        /// Repository.
        repo: RepoName,
    },
    /// Delete a tag; the version stays in the store as long as anything else leads to it.
    #[command(after_help = "Example:\n  deltaic tag delete acme/policy best")]
    Delete {
        /// Repository.
        repo: RepoName,
        /// Name of the tag.
        name: BranchName,
    },
}

#[derive(Serialize)]
struct Tag {
    repo: String,
    name: String,
    version: u64,
    commit: String,
    time: String,
    #[serde(skip)]
    time_ms: i64,
}

impl Tag {
    fn new(store: &Store, repo: &RepoName, tag: &deltaic_store::Tag) -> Result<Self> {
        Ok(Self {
            repo: repo.to_string(),
            name: tag.name.to_string(),
            version: store.read_commit(tag.commit)?.version.0,
            commit: tag.commit.to_string(),
            time: units::rfc3339(tag.time_ms),
            time_ms: tag.time_ms,
        })
    }
}

#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    tag: Tag,
    #[serde(skip)]
    what: &'static str,
}

impl Answer for Done {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let Tag {
            repo,
            name,
            version,
            commit,
            ..
        } = &self.tag;
        let at = format!("{repo}@{name} v{version} {}", &commit[..12]);
        page.line(&format!("{} {}", self.what, page.paint.yellow(&at)))
    }
}

#[derive(Serialize)]
struct List {
    repo: String,
    tags: Vec<Tag>,
}

impl Answer for List {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut table = Table::new(&["TAG", ">VERSION", "COMMIT", "SINCE"]);
        for tag in &self.tags {
            table.row([
                tag.name.clone(),
                format!("v{}", tag.version),
                tag.commit[..12].to_owned(),
                units::local_time(tag.time_ms),
            ]);
        }
        table.print(page)
    }
}

/// Run the command.
///
/// # Errors
///
/// If a name is taken or not there.
pub fn run(args: TagArgs, session: &Session) -> Result<()> {
    let store = session.store()?;
    let (repo, tag, what) = match args.command {
        TagCommand::Create {
            repo,
            name,
            revision,
        } => {
            let commit = session.resolve(&store, &repo, &revision)?;
            let tag = store
                .create_tag(&repo, &name, commit, units::now_ms())
                .map_err(taken_name)?;
            (repo, tag, "made tag")
        }
        TagCommand::List { repo } => return list(&store, &repo, session),
        TagCommand::Delete { repo, name } => {
            existing_repo(&store, &repo)?;
            let tags = store.tags(&repo)?.into_iter();
            let names: Vec<BranchName> = tags.map(|tag| tag.name).collect();
            let tag = store
                .delete_tag(&repo, &name)
                .map_err(|error| missing_name(error, &name, &names))?;
            (repo, tag, "deleted tag")
        }
    };
    let tag = Tag::new(&store, &repo, &tag)?;
    session.answer(&Done { tag, what })
}

fn list(store: &Store, repo: &RepoName, session: &Session) -> Result<()> {
    existing_repo(store, repo)?;
    let tags = store.tags(repo)?;
    let tags = tags.iter().map(|tag| Tag::new(store, repo, tag));
    session.answer(&List {
        repo: repo.to_string(),
        tags: tags.collect::<Result<_>>()?,
    })
}
