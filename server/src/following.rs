//! New versions of a branch, one after the other, for commands that follow it: none is left out and none comes twice,
//! also where the server goes away meanwhile.

use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::settings::Place;
use deltaic_client::{ClientError, Entry};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::refusal::Refusal;
use futures::stream::BoxStream;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Time between two looks at a store, which others need to open to make a version.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Time between the first two attempts to reach a server that went away; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The most of that.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What is told of a server that went away, at most once until it is back.
#[derive(Debug, Default)]
pub struct Patience {
    attempts: u32,
}

impl Patience {
    /// Wait for a while after `failure`, which is told the first time.
    ///
    /// # Errors
    ///
    /// `failure` itself if it is not one that passes, or that the user asks to stop.
    pub fn after(&mut self, failure: Failure, session: &Session) -> Result<()> {
        if failure.kind != Kind::Unavailable {
            return Err(failure);
        }
        if self.attempts == 0 {
            session.warn(format_args!(
                "{}; trying again until it works",
                failure.message
            ));
        }
        let pause = FIRST_PAUSE * (1 << self.attempts.min(8));
        self.attempts += 1;
        session.pause(pause.min(LONGEST_PAUSE))
    }

    /// It works again.
    pub fn rewarded(&mut self) {
        self.attempts = 0;
    }
}

/// The versions of a branch after a certain one.
pub struct Following<'a> {
    session: &'a Session,
    repo: &'a RepoName,
    branch: &'a BranchName,
    /// The newest version that was given out, or where it begins.
    after: CommitId,
    teller: Teller,
    patience: Patience,
}

/// Where versions come from.
enum Teller {
    /// A server tells of them.
    Server(Option<BoxStream<'static, deltaic_client::Result<Entry>>>),
    /// A store is looked into now and then, and closed again, since one process at a time can use it. These were found.
    Store(VecDeque<Entry>),
}

impl fmt::Debug for Following<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following")
            .field("repo", &self.repo)
            .field("branch", &self.branch)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl<'a> Following<'a> {
    /// Those of `branch` after `after`, which it has.
    ///
    /// # Errors
    ///
    /// If no store or server is named.
    pub fn new(
        session: &'a Session,
        repo: &'a RepoName,
        branch: &'a BranchName,
        after: CommitId,
    ) -> Result<Self> {
        Ok(Self {
            session,
            repo,
            branch,
            after,
            teller: match session.settings.place()? {
                Place::Servers(_) => Teller::Server(None),
                Place::Store(_) => Teller::Store(VecDeque::new()),
            },
            patience: Patience::default(),
        })
    }

    /// Wait for the next version. A server that cannot be reached is waited for.
    ///
    /// # Errors
    ///
    /// If the branch goes away or leaves its history, or the user asks to stop.
    pub fn next_version(&mut self) -> Result<Entry> {
        loop {
            match self.try_next() {
                Ok(Some(entry)) => {
                    self.patience.rewarded();
                    self.after = entry.0;
                    return Ok(entry);
                }
                Ok(None) => self.session.pause(BETWEEN_LOOKS)?,
                Err(failure) => {
                    if let Teller::Server(stream) = &mut self.teller {
                        *stream = None;
                    }
                    self.patience.after(failure, self.session)?;
                }
            }
        }
    }

    /// The next version; `None` if a store has none yet.
    fn try_next(&mut self) -> Result<Option<Entry>> {
        match &mut self.teller {
            Teller::Store(found) => {
                if found.is_empty() {
                    let repositories = self.session.repositories()?;
                    *found = newer(&repositories, self.repo, self.branch, self.after)?;
                }
                Ok(found.pop_front())
            }
            Teller::Server(stream) => {
                let server = self.session.repositories()?;
                let stream = match stream {
                    Some(stream) => stream,
                    None => {
                        stream.insert(server.watch(self.repo, self.branch, Some(self.after))?)
                    }
                };
                match server.next(stream)? {
                    Some(entry) => Ok(Some(entry)),
                    None => Err(ClientError::from(Refusal::Unavailable {
                        what: "the server has stopped telling of new versions".to_owned(),
                    })
                    .into()),
                }
            }
        }
    }
}

/// The versions of a branch after `after`, oldest first.
fn newer(
    repositories: &Repositories,
    repo: &RepoName,
    branch: &BranchName,
    after: CommitId,
) -> Result<VecDeque<Entry>> {
    let head = newest(repositories, repo, branch)?;
    let mut found = VecDeque::new();
    for entry in repositories.history(repo, head, None) {
        let entry = entry?;
        if entry.0 == after {
            return Ok(found);
        }
        found.push_front(entry);
    }
    let message = format!(
        "{repo}@{branch} no longer has the version {}",
        after.short()
    );
    Err(Failure::new(Kind::Conflict, message).hint(format!(
        "see what it has with `deltaic log {repo}@{branch}`, then begin anew"
    )))
}

/// The commit that a branch stands at.
///
/// # Errors
///
/// If there is no such branch.
pub fn newest(
    repositories: &Repositories,
    repo: &RepoName,
    branch: &BranchName,
) -> Result<CommitId> {
    match repositories.branch(repo, branch)? {
        Some(record) => Ok(record.commit),
        None => Err(Failure::from(&Refusal::NotFound {
            kind: "branch".to_owned(),
            name: format!("{branch} of {repo}"),
        })),
    }
}
