//! What several commands say of a version: its name, and what changed against the one before it.

use crate::files::changed_files;
use crate::report::Result;
use crate::repositories::Repositories;
use crate::units;
use deltaic_format::Version;
use deltaic_format::answers::{CommitOutcome, VersionStats};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{Commit, Snapshot};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Which version it is.
#[derive(Debug, Clone, Serialize)]
pub struct VersionName {
    /// Its repository.
    #[serde(serialize_with = "as_text")]
    pub repo: RepoName,
    /// The branch it was reached by, if it was one.
    #[serde(serialize_with = "option_as_text")]
    pub branch: Option<BranchName>,
    /// Its number.
    #[serde(serialize_with = "as_number")]
    pub version: Version,
    /// Its commit.
    #[serde(serialize_with = "as_text")]
    pub commit: CommitId,
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(branch) = &self.branch {
            write!(f, "@{branch}")?;
        }
        write!(f, " {} {}", self.version, self.commit.short())
    }
}

/// What changed against the first parent, and what that takes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Change {
    /// Elements of all tensors.
    pub elements: u64,
    /// Elements that changed.
    pub changed: u64,
    /// Bytes of all files.
    pub full_bytes: u64,
    /// What the commit's edges take as stored.
    pub patch_bytes: u64,
}

impl From<&CommitOutcome> for Change {
    fn from(outcome: &CommitOutcome) -> Self {
        Self {
            elements: outcome.elements,
            changed: outcome.changed,
            full_bytes: outcome.full_bytes,
            patch_bytes: outcome.patch_bytes,
        }
    }
}

impl From<&VersionStats> for Change {
    fn from(stats: &VersionStats) -> Self {
        Self {
            elements: stats.elements,
            changed: stats.changed,
            full_bytes: stats.full_bytes,
            patch_bytes: stats.patch_bytes,
        }
    }
}

impl Change {
    /// `0.25 % changed (89,514 of 35.4 M elements) · patch 142 KiB (1.62 B per changed element, 487x smaller than
    /// 67.5 MiB)`, or what is to be said of a version with nothing before it, or with nothing changed.
    pub fn words(&self, version: Version) -> String {
        let (elements, full) = (units::count(self.elements), units::bytes(self.full_bytes));
        if version == Version(0) {
            return format!("first version: {elements} elements, {full}");
        }
        if self.changed == 0 {
            return format!("no weight changed ({elements} elements, {full})");
        }
        let share = units::percent(self.changed, self.elements);
        let changed = units::count(self.changed);
        let change = format!("{share} changed ({changed} of {elements} elements)");
        if self.patch_bytes == 0 {
            // What changed has a shape or dtype of its own: it is stored whole.
            return format!("{change} · stored whole, {full}");
        }
        let patch = units::bytes(self.patch_bytes);
        let each = units::bytes_per(self.patch_bytes, self.changed);
        let ratio = units::ratio(self.full_bytes, self.patch_bytes);
        format!(
            "{change} · patch {patch} ({each} per changed element, {ratio} smaller than {full})"
        )
    }
}

/// Files of a version that differ from its first parent's in more than tensors; all but the weight files if it has none.
///
/// # Errors
///
/// If the parent cannot be read.
pub fn files_changed(
    repositories: &Repositories,
    repo: &RepoName,
    version: &Snapshot,
) -> Result<u64> {
    let parent = version.commit.parents.first();
    let parent = parent
        .map(|&id| repositories.snapshot(repo, id))
        .transpose()?;
    Ok(changed_files(parent.as_ref(), version).len() as u64)
}

/// `2 other files changed`, or nothing of a version without any, or with nothing before it.
pub fn files_words(version: Version, changed: u64) -> Option<String> {
    let files = units::plural(changed, "other file", "other files");
    (version > Version(0) && changed > 0).then(|| format!("{files} changed"))
}

/// What a commit's maker said, on one line, and its metadata.
pub fn summary(message: &str, meta: &BTreeMap<String, String>) -> String {
    let first = message.trim_end();
    let pairs = meta.iter().map(|(key, value)| format!("{key}={value}"));
    let pairs = pairs.collect::<Vec<_>>().join(" ");
    match (first.is_empty(), pairs.is_empty()) {
        (_, true) => printable(first),
        (true, false) => printable(&format!("[{pairs}]")),
        (false, false) => printable(&format!("{first} [{pairs}]")),
    }
}

/// The name of a commit in a repository.
pub fn name_of(
    repo: &RepoName,
    branch: Option<BranchName>,
    id: CommitId,
    commit: &Commit,
) -> VersionName {
    VersionName {
        repo: repo.clone(),
        branch,
        version: commit.version,
        commit: id,
    }
}

/// Dimensions: `4096x1024`.
pub fn shape_text(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "scalar".to_owned();
    }
    shape
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join("x")
}

/// Text from others, with what would steer a terminal escaped: `\n`, `\u{1b}`.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Serialise as its text.
///
/// # Errors
///
/// Those of the serialiser.
pub fn as_text<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serialise as its text, if there is any.
///
/// # Errors
///
/// Those of the serialiser.
pub fn option_as_text<T: fmt::Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// Serialise a version as its number.
///
/// # Errors
///
/// Those of the serialiser.
pub fn as_number<S: Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(version.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(changed: u64, patch_bytes: u64) -> Change {
        Change {
            elements: 35_400_000,
            changed,
            full_bytes: 70_778_880,
            patch_bytes,
        }
    }

    #[test]
    fn a_change_is_told_as_git_would() {
        assert_eq!(
            change(89_514, 145_012).words(Version(1)),
            "0.25 % changed (89,514 of 35.4 M elements) · patch 142 KiB (1.62 B per changed element, \
             488x smaller than 67.5 MiB)"
        );
        assert_eq!(
            change(35_400_000, 0).words(Version(0)),
            "first version: 35.4 M elements, 67.5 MiB"
        );
        assert!(
            change(0, 0)
                .words(Version(2))
                .starts_with("no weight changed")
        );
        assert!(change(9, 0).words(Version(2)).contains("stored whole"));
    }

    #[test]
    fn other_files_are_told_of_where_something_came_before() {
        assert_eq!(files_words(Version(0), 3), None);
        assert_eq!(files_words(Version(1), 0), None);
        let words = files_words(Version(1), 1);
        assert_eq!(words.as_deref(), Some("1 other file changed"));
        let words = files_words(Version(9), 2);
        assert_eq!(words.as_deref(), Some("2 other files changed"));
    }

    #[test]
    fn shapes_are_short() {
        assert_eq!(shape_text(&[4096, 1024]), "4096x1024");
        assert_eq!(shape_text(&[]), "scalar");
    }

    #[test]
    fn messages_are_one_line_and_steer_no_terminal() {
        let meta = BTreeMap::from([("step".to_owned(), "1200".to_owned())]);
        assert_eq!(summary("hello\nworld", &meta), "hello\\nworld [step=1200]");
        assert_eq!(summary("", &meta), "[step=1200]");
        assert_eq!(summary("a\x1b[31m", &BTreeMap::new()), "a\\u{1b}[31m");
    }
}
