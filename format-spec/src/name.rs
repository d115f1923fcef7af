//! Names of repositories, branches and tags, and paths in a tree (SPEC.md §8, "Names").

use crate::error::{FormatError, Result};
use std::fmt;
use std::str::FromStr;

const MAX_PARTS: usize = 8;
const MAX_PART: usize = 128;

macro_rules! name_types {
    ($($(#[$doc:meta])* $name:ident, $what:literal, $check:path;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Check `text` against the rules for such names.
            ///
            /// # Errors
            ///
            /// Says which rule it breaks.
            pub fn new(text: impl Into<String>) -> Result<Self> {
                let text = text.into();
                match $check(&text) {
                    Ok(()) => Ok(Self(text)),
                    Err(why) => Err(FormatError::invalid($what, format!("{text:?} {why}"))),
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = FormatError;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }
    )*};
}

name_types! {
    /// Name of a repository, such as `acme/policy`.
    RepoName, "repository name", check_parts;
    /// Name of a branch or tag, such as `main`.
    BranchName, "branch or tag name", check_branch;
    /// A file's path in a tree: relative, with `/` between its parts.
    TreePath, "path", check_path;
}

impl TreePath {
    /// Whether this is `other`, or lies in the folder `other`.
    pub fn lies_in(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(other.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn check_parts(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.split('/').count() > MAX_PARTS {
        return Err("has more than 8 parts");
    }
    for part in text.split('/') {
        if part.is_empty() || part.len() > MAX_PART {
            return Err("has an empty part, or one of more than 128 characters");
        }
        if part.starts_with(['-', '.']) {
            return Err("has a part that begins with - or .");
        }
        if !part
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            return Err("has characters other than letters, digits, . _ - and /");
        }
    }
    Ok(())
}

fn check_branch(text: &str) -> Result<(), &'static str> {
    check_parts(text)?;
    match text.strip_prefix('v') {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            Err("looks like a version number")
        }
        _ => Ok(()),
    }
}

fn check_path(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > 4096 {
        return Err("is empty or longer than 4,096 bytes");
    }
    if text.contains(|c: char| c == '\\' || c.is_control()) {
        return Err("has a backslash or a control character");
    }
    if text.starts_with('/') {
        return Err("is absolute");
    }
    if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("has an empty part, . or ..");
    }
    let first = text.split('/').next().unwrap_or_default().as_bytes();
    // In any case of letters, since some file systems do not tell them apart.
    if first.eq_ignore_ascii_case(b".deltaic") {
        return Err("lies in .deltaic, which belongs to replica folders");
    }
    if first.len() >= 2 && first[0].is_ascii_alphabetic() && first[1] == b':' {
        return Err("begins with a drive");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["acme/policy", "a", "A.b_c-1/x"] {
            assert!(RepoName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "", "/a", "a/", "a//b", "../a", "-a", "a b", "a@b", "a:b", "ü", "a/.git",
        ] {
            assert!(RepoName::new(bad).is_err(), "{bad}");
        }
        assert!(BranchName::new("v42").is_err());
        assert!(BranchName::new("v42-rc").is_ok());
    }

    #[test]
    fn paths_that_leave_their_folder_are_refused() {
        for good in [
            "model.safetensors",
            "a/b/c.json",
            "Ünï.txt",
            "a b",
            "..a/b..",
        ] {
            assert!(TreePath::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a/./b",
            "a//b",
            "a/",
            "C:/x",
            "C:x",
            "a\\b",
            "a\0b",
            "a\nb",
            ".deltaic/x",
            ".Deltaic",
        ] {
            assert!(TreePath::new(bad).is_err(), "{bad:?}");
        }
    }
}
