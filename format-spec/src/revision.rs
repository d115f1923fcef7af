//! Revisions: how people name versions, `REPO[@REV][:PATH]`.

use crate::error::{FormatError, Result};
use crate::name::{BranchName, RepoName, TreePath};
use crate::version::Version;
use std::fmt;
use std::str::FromStr;

/// The branch that is meant where none is named.
pub const DEFAULT_BRANCH: &str = "main";

/// Which commit of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    kind: SelectorKind,
    /// How many first parents back from there.
    back: u64,
}

/// What a selector begins at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectorKind {
    /// A branch, a tag, or the beginning of a commit id, tried in this order.
    Name(BranchName),
    /// A version number along a branch, `main` where none is named.
    Version(Option<BranchName>, Version),
    /// The newest commit with this metadata along a branch, `main` where none is named.
    Meta(Option<BranchName>, String, String),
}

impl Selector {
    /// The tip of a branch.
    pub fn branch(name: BranchName) -> Self {
        Self {
            kind: SelectorKind::Name(name),
            back: 0,
        }
    }

    /// The same, with a bare `vN` or `KEY=VALUE` meaning a version of `branch`.
    #[must_use]
    pub fn within(mut self, branch: &BranchName) -> Self {
        if let SelectorKind::Version(unnamed @ None, _) | SelectorKind::Meta(unnamed @ None, ..) =
            &mut self.kind
        {
            *unnamed = Some(branch.clone());
        }
        self
    }

    /// The branch whose newest version this means, if it names one and nothing else.
    pub fn as_branch(&self) -> Option<&BranchName> {
        match &self.kind {
            SelectorKind::Name(name) if self.back == 0 => Some(name),
            _ => None,
        }
    }

    /// What it begins at.
    pub fn kind(&self) -> &SelectorKind {
        &self.kind
    }

    /// How many first parents back from there.
    pub fn back(&self) -> u64 {
        self.back
    }
}

impl Default for Selector {
    fn default() -> Self {
        Self::branch(default_branch())
    }
}

/// [`DEFAULT_BRANCH`] as a name.
pub fn default_branch() -> BranchName {
    BranchName::new(DEFAULT_BRANCH).expect("main is a valid name")
}

fn invalid(why: String) -> FormatError {
    FormatError::invalid("revision", why)
}

fn version(text: &str) -> Option<Version> {
    let digits = text.strip_prefix('v')?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    all_digits.then(|| digits.parse().ok().map(Version))?
}

impl FromStr for Selector {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((key, value)) = text.split_once('=') {
            if key.is_empty() || value.is_empty() {
                return Err(invalid(format!("{text:?}: metadata is named as KEY=VALUE")));
            }
            return Ok(Self {
                kind: SelectorKind::Meta(None, key.to_owned(), value.to_owned()),
                back: 0,
            });
        }
        let (name, back) = match text.split_once('~') {
            None => (text, 0),
            Some((name, "")) => (name, 1),
            Some((name, back)) => match back.parse() {
                Ok(back) => (name, back),
                Err(_) => return Err(invalid(format!("{text:?}: ~ is followed by a number"))),
            },
        };
        let branch = |name: &str| BranchName::new(name);
        let kind = if let Some(version) = version(name) {
            SelectorKind::Version(None, version)
        } else if let Some((name, number)) = name.split_once(':') {
            let Some(version) = version(number) else {
                return Err(invalid(format!(
                    "{text:?}: BRANCH: is followed by a version, such as v42"
                )));
            };
            SelectorKind::Version(Some(branch(name)?), version)
        } else {
            SelectorKind::Name(branch(name)?)
        };
        Ok(Self { kind, back })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            SelectorKind::Name(name) => write!(f, "{name}")?,
            SelectorKind::Version(None, version) => write!(f, "{version}")?,
            SelectorKind::Version(Some(branch), version) => write!(f, "{branch}:{version}")?,
            SelectorKind::Meta(_, key, value) => write!(f, "{key}={value}")?,
        }
        match self.back {
            0 => Ok(()),
            back => write!(f, "~{back}"),
        }
    }
}

/// `REPO[@REV][:PATH]`; without REV the tip of `main`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionSpec {
    /// The repository.
    pub repo: RepoName,
    /// Which of its commits.
    pub selector: Selector,
    /// A file or folder of its tree.
    pub path: Option<TreePath>,
}

impl FromStr for RevisionSpec {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self> {
        let (repo, selector, path) = match text.split_once('@') {
            None => match text.split_once(':') {
                None => (text, None, None),
                Some((repo, path)) => (repo, None, Some(path)),
            },
            Some((repo, revision)) => {
                let (selector, path) = split_path(revision);
                (repo, Some(selector), path)
            }
        };
        Ok(Self {
            repo: RepoName::new(repo)?,
            selector: selector.map_or_else(|| Ok(Selector::default()), str::parse)?,
            path: path.map(TreePath::new).transpose()?,
        })
    }
}

/// Split `SELECTOR[:PATH]`, where the selector may itself be `BRANCH:vN`.
fn split_path(text: &str) -> (&str, Option<&str>) {
    let Some(colon) = text.find(':') else {
        return (text, None);
    };
    let rest = &text[colon + 1..];
    let end = rest.find(':').unwrap_or(rest.len());
    let number = rest[..end].split('~').next().unwrap_or_default();
    if version(number).is_none() {
        return (&text[..colon], Some(rest));
    }
    let path = rest.get(end + 1..);
    (&text[..colon + 1 + end], path)
}

impl fmt::Display for RevisionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.selector)?;
        match &self.path {
            None => Ok(()),
            Some(path) => write!(f, ":{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_reads_and_prints_back() {
        for (text, printed) in [
            ("acme/policy", "acme/policy@main"),
            ("a@main~3", "a@main~3"),
            ("a@main~", "a@main~1"),
            ("a@v42", "a@v42"),
            ("a@exp/one:v7", "a@exp/one:v7"),
            ("a@exp:v7~2:config.json", "a@exp:v7~2:config.json"),
            ("a@step=1200", "a@step=1200"),
            ("a@3f9a2c", "a@3f9a2c"),
            ("a@main:sub/x.json", "a@main:sub/x.json"),
            ("a:x.json", "a@main:x.json"),
        ] {
            let spec: RevisionSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), printed);
            assert_eq!(printed.parse::<RevisionSpec>().expect(printed), spec);
        }
        for bad in [
            "",
            "@main",
            "a@",
            "a@x~y",
            "a@main:../x",
            "a@=1",
            "a b",
            "a@v99999999999999999999999",
        ] {
            assert!(bad.parse::<RevisionSpec>().is_err(), "{bad}");
        }
    }
}
