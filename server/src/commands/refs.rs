//! What branches and tags have in common: names of versions, how they are shown, and what deleting one loses.

use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::suggest;
use crate::table::Table;
use crate::units;
use deltaic_format::Version;
use deltaic_format::answers::Tag;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::RefRecord;
use serde::Serialize;
use std::collections::HashSet;
use std::io;

/// A branch or tag.
#[derive(Debug, Serialize)]
pub struct NamedVersion {
    repo: String,
    name: String,
    version: u64,
    commit: String,
    time: String,
    #[serde(skip)]
    time_ms: i64,
}

impl From<RefRecord> for NamedVersion {
    fn from(record: RefRecord) -> Self {
        Self {
            repo: record.repo.to_string(),
            name: record.branch.to_string(),
            version: record.version.0,
            commit: record.commit.to_string(),
            time: units::rfc3339(record.time_ms),
            time_ms: record.time_ms,
        }
    }
}

impl NamedVersion {
    /// A tag of `repo`.
    ///
    /// # Errors
    ///
    /// If its commit cannot be read.
    pub fn of_tag(repositories: &Repositories, repo: &RepoName, tag: &Tag) -> Result<Self> {
        Ok(Self {
            repo: repo.to_string(),
            name: tag.name.to_string(),
            version: repositories.commit(repo, tag.commit)?.version.0,
            commit: tag.commit.to_string(),
            time: units::rfc3339(tag.time_ms),
            time_ms: tag.time_ms,
        })
    }
}

/// A branch or tag that was made or deleted.
#[derive(Debug, Serialize)]
pub struct Done {
    #[serde(flatten)]
    of: NamedVersion,
    /// The command that makes it again, if it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<String>,
    #[serde(skip)]
    what: String,
}

impl Done {
    /// A `kind` (branch or tag) was made.
    pub fn made(kind: &str, of: NamedVersion) -> Self {
        Self {
            of,
            undo: None,
            what: format!("made {kind}"),
        }
    }

    /// A `kind` was deleted.
    pub fn deleted(kind: &str, of: NamedVersion) -> Self {
        let NamedVersion {
            repo, name, commit, ..
        } = &of;
        Self {
            undo: Some(format!("deltaic {kind} create {repo} {name} {commit}")),
            of,
            what: format!("deleted {kind}"),
        }
    }
}

impl Answer for Done {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let NamedVersion {
            repo,
            name,
            version,
            commit,
            ..
        } = &self.of;
        let at = format!("{repo}@{name} v{version} {}", &commit[..12]);
        page.line(&format!("{} {}", self.what, page.paint.yellow(&at)))?;
        match &self.undo {
            Some(command) => page.line(&format!("bring it back with `{command}`")),
            None => Ok(()),
        }
    }

    fn print_quietly(&self, _page: &mut Page<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// The branches or tags of a repository.
#[derive(Debug, Serialize)]
pub struct List {
    /// The repository.
    pub repo: String,
    /// Its branches or tags.
    #[serde(flatten)]
    pub names: Names,
}

/// Branches or tags, by name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// Branches.
    Branches(Vec<NamedVersion>),
    /// Tags.
    Tags(Vec<NamedVersion>),
}

impl Answer for List {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let (title, names) = match &self.names {
            Names::Branches(names) => ("BRANCH", names),
            Names::Tags(names) => ("TAG", names),
        };
        let mut table = Table::new(&[title, ">VERSION", "COMMIT", "SINCE"]);
        for named in names {
            table.row([
                named.name.clone(),
                format!("v{}", named.version),
                named.commit[..12].to_owned(),
                units::local_time(named.time_ms),
            ]);
        }
        table.print(page)
    }
}

/// A failure to find a branch or tag, with a hint that names what is near among `names`.
pub fn missing_name(failure: Failure, name: &BranchName, names: &[BranchName]) -> Failure {
    if failure.kind != Kind::NotFound {
        return failure;
    }
    let names = names.iter().map(BranchName::as_str);
    failure.hint_if(suggest::did_you_mean(name.as_str(), names))
}

/// A failure to make a branch or tag, with a hint what to do about a name that is taken, or that a deleted branch had.
pub fn taken_name(
    repositories: &Repositories,
    repo: &RepoName,
    name: &BranchName,
    failure: Failure,
) -> Failure {
    if failure.kind != Kind::Conflict {
        return failure;
    }
    let branches = repositories.branches(repo).unwrap_or_default();
    let tags = repositories.tags(repo).unwrap_or_default();
    let kind = if branches.iter().any(|branch| branch.branch == *name) {
        "branch"
    } else if tags.iter().any(|tag| tag.name == *name) {
        "tag"
    } else {
        return failure
            .hint("choose another name, or create the branch at that version or a later one");
    };
    failure.hint(format!(
        "choose another name; `deltaic {kind} delete {repo} {name}` frees this one"
    ))
}

/// Fail if deleting branch or tag `name` of `repo`, which has `others` besides, would leave `lost` versions that nothing
/// else reaches, or no repository.
///
/// # Errors
///
/// If so.
pub fn must_lose_nothing(
    repo: &RepoName,
    name: &BranchName,
    lost: &[Version],
    others: usize,
) -> Result<()> {
    let message = match lost {
        [] if others > 0 => return Ok(()),
        [] => format!("{repo} has no other branch or tag than {name}"),
        [only] => format!("{only} is reached by nothing else than {repo}@{name}"),
        [first, last] => {
            format!("{first} and {last} are reached by nothing else than {repo}@{name}")
        }
        [first, .., last] => {
            format!("{first} … {last} are reached by nothing else than {repo}@{name}")
        }
    };
    let hint = format!(
        "name the newest with `deltaic tag create {repo} {name}-kept {name}` first, or lose them with --force"
    );
    Err(Failure::new(Kind::Conflict, message).hint(hint))
}

/// The versions that only tag `tag` of `repo` reaches, ascending.
///
/// # Errors
///
/// If the store cannot be read.
pub fn reached_by_tag_alone(
    repositories: &Repositories,
    repo: &RepoName,
    tag: &BranchName,
) -> Result<Vec<Version>> {
    let mut heads = Vec::new();
    let mut own = None;
    for other in repositories.repos()? {
        let branches = repositories.branches(&other)?.into_iter();
        heads.extend(branches.map(|branch| (other.clone(), branch.commit)));
        for found in repositories.tags(&other)? {
            match (&other, &found.name) == (repo, tag) {
                true => own = Some(found.commit),
                false => heads.push((other.clone(), found.commit)),
            }
        }
    }
    let mut kept = HashSet::new();
    for (of, head) in &heads {
        walk(repositories, of, *head, |id, _| kept.insert(id))?;
    }
    let mut lost = Vec::new();
    if let Some(own) = own {
        walk(repositories, repo, own, |id, version| {
            let gone = !kept.contains(&id);
            if gone {
                lost.push(version);
            }
            gone
        })?;
    }
    lost.reverse();
    Ok(lost)
}

/// Go back through the history of `head` as long as `go_on` says so.
fn walk(
    repositories: &Repositories,
    repo: &RepoName,
    head: CommitId,
    mut go_on: impl FnMut(CommitId, Version) -> bool,
) -> Result<()> {
    for entry in repositories.history(repo, head, None) {
        let (id, commit) = entry?;
        if !go_on(id, commit.version) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_is_named() {
        let (repo, name) = ("acme/policy".parse(), "dev".parse());
        let (repo, name): (RepoName, BranchName) = (repo.expect("valid"), name.expect("valid"));
        let check = |versions: &[u64], others| {
            let lost: Vec<Version> = versions.iter().copied().map(Version).collect();
            must_lose_nothing(&repo, &name, &lost, others)
        };
        assert!(check(&[], 1).is_ok());
        assert!(check(&[], 0).is_err_and(|f| f.message.contains("no other branch or tag")));
        for (lost, words) in [
            (
                &[3][..],
                "v3 is reached by nothing else than acme/policy@dev",
            ),
            (&[3, 4], "v3 and v4 are reached by"),
            (&[0, 1, 2], "v0 … v2 are reached by"),
        ] {
            let failure = check(lost, 1).expect_err(words);
            assert_eq!(failure.kind, Kind::Conflict);
            assert!(failure.message.starts_with(words), "{}", failure.message);
            assert!(failure.hint.contains("--force"));
        }
    }

    #[test]
    fn lists_are_keyed_by_what_they_hold() {
        let list = |names| List {
            repo: "r".to_owned(),
            names,
        };
        let json = |list| serde_json::to_value(list).expect("it is JSON");
        assert!(json(list(Names::Branches(Vec::new())))["branches"].is_array());
        assert!(json(list(Names::Tags(Vec::new())))["tags"].is_array());
    }
}
