//! Arguments with a form of their own: `REPO@BRANCH`, `REPO@A..B`, `KEY=VALUE`, `200M`, percentages.

use clap::builder::{OsStringValueParser, TypedValueParser};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::revision::{DEFAULT_BRANCH, RevisionSpec, Selector};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

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

/// `REPO` or `REPO@A[..B]`: a repository, perhaps with two of its versions.
#[derive(Debug, Clone)]
pub struct RangeTarget {
    /// The repository.
    pub repo: RepoName,
    /// The versions, if they stand here.
    pub ends: Option<Ends>,
}

impl FromStr for RangeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (repo, ends) = match text.split_once('@') {
            Some((repo, ends)) => (repo, Some(ends.parse()?)),
            None => (text, None),
        };
        Ok(Self {
            repo: words(repo.parse())?,
            ends,
        })
    }
}

/// `A` or `A..B`: a version, or the one that is left and the one that is reached.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The version that is left.
    pub from: RevisionOrNone,
    /// The version that is reached, if it stands here.
    pub to: Option<Selector>,
}

impl FromStr for Ends {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = match text.split_once("..") {
            Some((from, "")) => (from, Some(DEFAULT_BRANCH)),
            Some((from, to)) => (from, Some(to)),
            None => (text, None),
        };
        if from.is_empty() || to.is_some_and(|to| to.starts_with('.')) {
            return Err(format!("{text:?} is not of the form A..B, such as v3..v7"));
        }
        Ok(Self {
            from: from.parse()?,
            to: to.map(|to| words(to.parse())).transpose()?,
        })
    }
}

/// The two versions that are meant by `REPO@A..B`, `REPO@A B`, `REPO A..B` or `REPO A B`; nothing stands for main.
///
/// # Errors
///
/// If there are more or fewer.
pub fn two_ends<'a>(
    target: &'a RangeTarget,
    first: Option<&'a Ends>,
    second: Option<&'a Selector>,
) -> Result<(&'a RevisionOrNone, Option<&'a Selector>), String> {
    let repo = &target.repo;
    let example = format!("such as {repo}@v3..v7");
    match (&target.ends, first, second) {
        (None, None, _) => Err(format!("name two versions of {repo}, {example}")),
        (Some(ends), None, _) => Ok((&ends.from, ends.to.as_ref())),
        (None, Some(ends), second) => match (&ends.to, second) {
            (Some(_), Some(_)) => Err(format!(
                "these are more than two versions; name two, {example}"
            )),
            (to, second) => Ok((&ends.from, to.as_ref().or(second))),
        },
        (
            Some(Ends { from, to: None }),
            Some(Ends {
                from: RevisionOrNone::Revision(to),
                to: None,
            }),
            None,
        ) => Ok((from, Some(to))),
        (Some(_), Some(_), _) => Err(format!(
            "these are more than two versions; name two, {example}"
        )),
    }
}

/// `REPO[@REV][:PATH]`, where a folder's path may end in a slash.
///
/// # Errors
///
/// If it is none.
pub fn revision(text: &str) -> Result<RevisionSpec, String> {
    let plain = match text.trim_end_matches('/') {
        plain if plain.contains(':') && !plain.ends_with(':') => plain,
        _ => text,
    };
    words(plain.parse())
}

/// A folder to write to.
pub fn folder() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match text.as_encoded_bytes() {
        b"-" => Err("it is written to a folder, not to standard output"),
        _ => Ok(PathBuf::from(text)),
    })
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

/// `URL[,URL…]` of servers, such as `http://127.0.0.1:7421`.
///
/// # Errors
///
/// If one of them is no such URL.
pub fn endpoints(text: &str) -> Result<String, String> {
    let urls: Result<Vec<String>, String> =
        text.split(',').map(|url| endpoint(url.trim())).collect();
    Ok(urls?.join(","))
}

/// `URL` of a server: scheme, host and port, without the slash at its end.
///
/// # Errors
///
/// If it is no such URL.
pub fn endpoint(text: &str) -> Result<String, String> {
    let form =
        || format!("{text:?} is not of the form http://HOST:PORT, such as http://127.0.0.1:7421");
    let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
    let host = rest.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_graphic() && !"/?#@\\,".contains(c);
    if scheme == "https" {
        return Err(format!(
            "{text:?} asks for TLS, which this build does not have: use http://"
        ));
    }
    if scheme == "http" && !host.is_empty() && !host.starts_with(':') && host.chars().all(plain) {
        return Ok(format!("{scheme}://{host}"));
    }
    Err(form())
}

/// `URL/REPO`: a repository on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRepo {
    /// The server's URL.
    pub endpoint: String,
    /// The repository.
    pub repo: RepoName,
}

impl FromStr for RemoteRepo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!("{text:?} is not of the form URL/REPO, such as http://host:7421/acme/policy")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
        let (host, repo) = rest.split_once('/').ok_or_else(form)?;
        let repo = repo.trim_end_matches('/');
        if repo.is_empty() {
            return Err(form());
        }
        Ok(Self {
            endpoint: endpoint(&format!("{scheme}://{host}"))?,
            repo: words(repo.parse())?,
        })
    }
}

impl fmt::Display for RemoteRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoint, self.repo)
    }
}

/// Bytes, such as `256MiB`, `1GiB` or `65536`.
///
/// # Errors
///
/// If it is no whole number with such a unit.
pub fn size(text: &str) -> Result<u64, String> {
    let form = || "it is a whole number of bytes, such as 256MiB, 1GiB or 65536".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(at.unwrap_or(text.len()));
    let number: u64 = digits.parse().map_err(|_| form())?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1u64 << 40,
        _ => return Err(form()),
    };
    number.checked_mul(factor).ok_or_else(form)
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

/// A duration, such as `30s`, `5m`, `2h` or `0s`.
///
/// # Errors
///
/// If it is no whole number with a unit, or longer than a year.
pub fn duration(text: &str) -> Result<Duration, String> {
    let form = || "it is a whole number with a unit, such as 30s, 5m or 2h; 0s is none".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(form)?;
    let number: u64 = text[..at].parse().map_err(|_| form())?;
    let unit = match &text[at..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(form()),
    };
    match number.checked_mul(unit) {
        Some(seconds) if seconds <= 366 * 86_400 => Ok(Duration::from_secs(seconds)),
        _ => Err(form()),
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
    fn two_versions_are_named_in_one_word_or_several() {
        let read = |line: &str| -> Result<(String, Option<String>), String> {
            let words: Vec<&str> = line.split(' ').collect();
            let target: RangeTarget = words[0].parse()?;
            let first = words.get(1).map(|word| word.parse::<Ends>()).transpose()?;
            let second = words.get(2).map(|word| word.parse::<Selector>());
            let second = second.transpose().map_err(|error| error.to_string())?;
            let (from, to) = two_ends(&target, first.as_ref(), second.as_ref())?;
            let from = match from {
                RevisionOrNone::None => "none".to_owned(),
                RevisionOrNone::Revision(from) => from.to_string(),
            };
            Ok((from, to.map(ToString::to_string)))
        };
        let both = Ok(("v3".to_owned(), Some("v7".to_owned())));
        for line in ["a/b@v3..v7", "a/b v3..v7", "a/b v3 v7", "a/b@v3 v7"] {
            assert_eq!(read(line), both, "{line}");
        }
        assert_eq!(read("a/b@v3"), Ok(("v3".to_owned(), None)));
        assert_eq!(read("a/b v3"), Ok(("v3".to_owned(), None)));
        let main = Ok(("v3".to_owned(), Some("main".to_owned())));
        assert_eq!(read("a/b@v3.."), main);
        let none = Ok(("none".to_owned(), Some("main".to_owned())));
        assert_eq!(read("a/b none main"), none);
        for bad in [
            "a/b",
            "a/b@",
            "a/b@..v3",
            "@a..b",
            "a/b@v1...v3",
            "a/b v1..v3 v4",
            "a/b@v1..v2 v3",
            "a/b@v1 v2 v3",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_folder_in_a_version_may_end_in_a_slash() {
        let read = |text: &str| revision(text).map(|spec| spec.to_string());
        assert_eq!(read("a@v1:sub/"), Ok("a@v1:sub".to_owned()));
        assert_eq!(read("a:sub"), Ok("a@main:sub".to_owned()));
        assert!(read("a:/").is_err());
        assert!(read("a/").is_err());
    }

    #[test]
    fn servers_are_named_by_urls() {
        let one = endpoint("http://127.0.0.1:7421/");
        assert_eq!(one.as_deref(), Ok("http://127.0.0.1:7421"));
        let two = endpoints("http://a:1, http://[::1]:2");
        assert_eq!(two.as_deref(), Ok("http://a:1,http://[::1]:2"));
        for bad in [
            "",
            "a:1",
            "http://",
            "http://:7421",
            "ftp://a",
            "https://a",
            "http://a b",
            "http://a/b",
            "http://a:1,",
        ] {
            assert!(endpoints(bad).is_err(), "{bad:?}");
        }
        let remote: RemoteRepo = "http://h:7421/acme/policy".parse().expect("a repository");
        assert_eq!(remote.endpoint, "http://h:7421");
        assert_eq!(remote.repo.as_str(), "acme/policy");
        assert_eq!(remote.to_string(), "http://h:7421/acme/policy");
        for bad in [
            "http://h:7421",
            "http://h:7421/",
            "acme/policy",
            "http:///a",
        ] {
            assert!(bad.parse::<RemoteRepo>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("65536"), Ok(65_536));
        for bad in ["", "MiB", "1.5GiB", "1GB", "-1", "99999999999TiB", "1 MiB"] {
            assert!(size(bad).is_err(), "{bad:?}");
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
    fn durations_have_a_unit() {
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5 m",
            "99999999999999999999s",
            "9999d",
            "5é",
        ] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
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
