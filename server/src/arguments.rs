//! Arguments with a form of their own: `REPO@BRANCH`, `REPO@A..B`, `KEY=VALUE`, `200M`, percentages.

use deltaic_format::name::{BranchName, RepoName};
use deltaic_store::{DEFAULT_BRANCH, Selector};
use std::fmt;
use std::str::FromStr;

/// `REPO[@BRANCH]`: where something is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchSpec {
    /// The repository.
    pub repo: RepoName,
    /// The branch, `main` if not given.
    pub branch: BranchName,
}

impl FromStr for BranchSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (repo, branch) = text.split_once('@').unwrap_or((text, DEFAULT_BRANCH));
        Ok(Self {
            repo: words(repo.parse())?,
            branch: words(branch.parse())?,
        })
    }
}

impl fmt::Display for BranchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.branch)
    }
}

/// `REPO@A..B`: two versions of a repository.
#[derive(Debug, Clone)]
pub struct RangeSpec {
    /// The repository.
    pub repo: RepoName,
    /// The version that is left.
    pub from: Selector,
    /// The version that is reached, `main` if not given.
    pub to: Selector,
}

impl FromStr for RangeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is not of the form REPO@A..B, such as acme/policy@v3..v7");
        let (repo, range) = text.split_once('@').ok_or_else(form)?;
        let (from, to) = range.split_once("..").unwrap_or((range, DEFAULT_BRANCH));
        if from.is_empty() {
            return Err(form());
        }
        Ok(Self {
            repo: words(repo.parse())?,
            from: words(from.parse())?,
            to: words(if to.is_empty() { DEFAULT_BRANCH } else { to }.parse())?,
        })
    }
}

/// A revision, or nothing at all.
#[derive(Debug, Clone)]
pub enum RevisionOrNone {
    /// `none`.
    None,
    /// A revision.
    Revision(Selector),
}

impl FromStr for RevisionOrNone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            _ => words(text.parse()).map(Self::Revision),
        }
    }
}

/// `KEY=VALUE` of a commit's metadata.
///
/// # Errors
///
/// If there is no `=`, or nothing before it.
pub fn metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it has the form KEY=VALUE, such as step=1200".to_owned()),
    }
}

/// A percentage, such as `5`, `0.5` or `5%`.
///
/// # Errors
///
/// If it is no number above 0 and up to 100.
pub fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("it is a number above 0 and up to 100, such as 5 or 0.5".to_owned()),
    }
}

/// A count, such as `500000`, `200M` or `1.5G` (also `B`, as in a billion parameters).
///
/// # Errors
///
/// If it is no such number, or less than one.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'g' | 'G' | 'b' | 'B')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(number) if (1.0..1e15).contains(&(number * factor)) => {
            Ok((number * factor).round() as u64)
        }
        _ => Err("it is a number such as 500k, 200M or 1.5G".to_owned()),
    }
}

fn words<T, E: fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_main_unless_named() {
        let spec: BranchSpec = "acme/policy".parse().expect("a repository is enough");
        assert_eq!(spec.to_string(), "acme/policy@main");
        let spec: BranchSpec = "acme/policy@dev/x".parse().expect("branches have parts");
        assert_eq!(spec.branch.as_str(), "dev/x");
        for bad in ["", "@main", "acme@", "acme@v3", "acme@main~1", "a b"] {
            assert!(bad.parse::<BranchSpec>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_range_leads_to_main_unless_it_says_where() {
        for text in ["acme/policy@v3", "acme/policy@v3..", "acme/policy@v3..main"] {
            let range: RangeSpec = text.parse().expect("a range");
            assert_eq!(range.from.to_string(), "v3", "{text}");
            assert_eq!(range.to.to_string(), "main", "{text}");
        }
        for bad in ["acme/policy", "acme/policy@", "acme/policy@..v3", "@a..b"] {
            assert!(bad.parse::<RangeSpec>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn metadata_has_a_key() {
        assert_eq!(metadata("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(metadata("a="), Ok(("a".to_owned(), String::new())));
        assert!(metadata("a").is_err());
        assert!(metadata("=a").is_err());
    }

    #[test]
    fn percentages_and_counts_are_bounded() {
        assert_eq!(percentage("5%"), Ok(5.0));
        assert_eq!(percentage("0.5"), Ok(0.5));
        for bad in ["0", "-1", "101", "NaN", "x", ""] {
            assert!(percentage(bad).is_err(), "{bad:?}");
        }
        assert_eq!(count("200M"), Ok(200_000_000));
        assert_eq!(count("1.5g"), Ok(1_500_000_000));
        assert_eq!(count("12"), Ok(12));
        for bad in ["0", "", "M", "1e99", "inf", "-5", "5 M"] {
            assert!(count(bad).is_err(), "{bad:?}");
        }
    }
}
