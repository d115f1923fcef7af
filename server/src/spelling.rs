//! What somebody may have meant who writes as with git, or swaps arguments: corrections to be pasted.

use crate::arguments::BranchSpec;
use deltaic_format::revision::Selector;
use std::path::Path;

/// A revision or range in our spelling, if `text` is in another one: `main^`, `HEAD`, `V4`, `4`, `a...b`.
pub fn corrected(text: &str) -> Option<String> {
    let (repo, revision) = match text.split_once('@') {
        Some((repo, revision)) => (format!("{repo}@"), revision),
        None => (String::new(), text),
    };
    let (revision, path) = match revision.rsplit_once(':') {
        Some((revision, path)) if version(path).is_none() && !path.contains('^') => {
            (revision, format!(":{path}"))
        }
        _ => (revision, String::new()),
    };
    let ends = revision.split("..").map(|end| end.trim_start_matches('.'));
    let ends: Vec<String> = ends.map(corrected_end).collect();
    let new = format!("{repo}{}{path}", ends.join(".."));
    let reads = ends
        .iter()
        .all(|end| end.is_empty() || end.parse::<Selector>().is_ok());
    (reads && new != text).then_some(new)
}

fn corrected_end(text: &str) -> String {
    let (name, back) = match text.find('^') {
        Some(at) => {
            let carets = text[at..].chars().take_while(|&c| c == '^').count();
            let rest = &text[at + carets..];
            match (carets, rest) {
                (1, "" | "1") => (&text[..at], "~1".to_owned()),
                (_, "") => (&text[..at], format!("~{carets}")),
                _ => (text, String::new()),
            }
        }
        None => match text.split_once('~') {
            Some((name, back)) => (name, format!("~{back}")),
            None => (text, String::new()),
        },
    };
    let (branch, last) = match name.rsplit_once(':') {
        Some((branch, last)) => (format!("{branch}:"), last),
        None => (String::new(), name),
    };
    let last = match version(last) {
        Some(version) => version,
        None if branch.is_empty() && last.eq_ignore_ascii_case("head") => "main".to_owned(),
        None => last.to_owned(),
    };
    format!("{branch}{last}{back}")
}

/// `v42` for `V42`, `v42` and `42`, which is short enough to be no commit id.
fn version(text: &str) -> Option<String> {
    let digits = text.trim_start_matches(['v', 'V']);
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let bare = digits.len() == text.len();
    let fits = text.len() - digits.len() <= 1 && (!bare || digits.len() < 8);
    (number && fits).then(|| format!("v{digits}"))
}

/// The command that was meant by a `commit` whose `first` argument is a path and whose `second` is a repository.
pub fn swapped(first: &str, second: &str) -> Option<String> {
    let is_target = second.parse::<BranchSpec>().is_ok();
    let swapped = Path::new(first).exists() && is_target && !Path::new(second).exists();
    swapped.then(|| format!("did you mean `deltaic commit {second} {first}`?"))
}

/// What to use in place of a command that does not exist (yet).
pub fn instead_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "fetch" => {
            "use `deltaic pull REPO@REV -o DIR`, which fetches what is missing and patches DIR"
        }
        "remote" => {
            "name a server with --endpoint URL, or in the config file; copy history with `deltaic push REPO --to URL` and \
             `deltaic clone URL/REPO`"
        }
        "follow" => {
            "use `deltaic pull REPO@BRANCH -o DIR --follow` for a replica, or `deltaic watch REPO@BRANCH` to be told of new \
             versions"
        }
        "server" | "daemon" | "start" => "use `deltaic serve`",
        "token" | "key" => {
            "it is not there yet: a server listens on this machine alone, unless it is run with --insecure"
        }
        "workers" | "lease" => {
            "it is not there yet: every worker's own replica tells what it holds, with `deltaic verify DIR`"
        }
        "gc" | "prune" | "compact" | "rebaseline" | "repack" => {
            "it is not there yet: a store only grows; `deltaic stats` shows what it takes"
        }
        "status" => {
            "use `deltaic log REPO` for what there is, `deltaic verify DIR` for a replica, `deltaic doctor` for this machine"
        }
        "version" => "use `deltaic --version`",
        "checkout" | "switch" | "restore" => {
            "use `deltaic pull REPO@REV -o DIR` for a replica, or `deltaic export REPO@REV -o DIR` for plain files"
        }
        "add" => "use `deltaic commit REPO PATH`, which commits all files of PATH",
        "ls" | "list" | "repos" => {
            "use `deltaic repo list`, and `deltaic show REPO` for the files of a version"
        }
        "branches" => "use `deltaic branch list REPO`",
        "tags" => "use `deltaic tag list REPO`",
        "reset" => {
            "use `deltaic revert REPO REV`, which makes the next version with the content of REV"
        }
        "fsck" | "check" => "use `deltaic verify`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_spellings_are_put_right() {
        for (text, right) in [
            ("a/b@v0...v1", "a/b@v0..v1"),
            ("main^", "main~1"),
            ("main^^", "main~2"),
            ("a/b@HEAD", "a/b@main"),
            ("a/b@HEAD~2", "a/b@main~2"),
            ("HEAD^", "main~1"),
            ("a/b@4", "a/b@v4"),
            ("a/b@V1", "a/b@v1"),
            ("dev:7", "dev:v7"),
            ("a/b@V1:x.json", "a/b@v1:x.json"),
            ("a/b@1..2", "a/b@v1..v2"),
        ] {
            assert_eq!(corrected(text).as_deref(), Some(right), "{text}");
        }
        for text in [
            "a/b@v0..v1",
            "main",
            "dev:v7~1",
            "a/b@3f9a",
            "main^2",
            "a b",
        ] {
            assert_eq!(corrected(text), None, "{text}");
        }
    }

    #[test]
    fn swapped_arguments_are_seen_by_what_exists() {
        assert!(swapped("/", "acme/policy").is_some_and(|tip| tip.contains("acme/policy /")));
        assert_eq!(swapped("/nowhere/at/all", "acme/policy"), None);
        assert_eq!(swapped("/", "/"), None);
    }

    #[test]
    fn no_command_that_exists_has_a_substitute() {
        use clap::CommandFactory;
        let cli = crate::cli::Cli::command();
        for command in cli.get_subcommands() {
            assert_eq!(instead_of(command.get_name()), None);
        }
        assert!(instead_of("gc").is_some());
    }
}
