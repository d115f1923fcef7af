//! The program `deltaic`: its command line over stores, servers and replica folders.
//!
//! | question | module |
//! |---|---|
//! | which commands and flags are there? | [`cli`], one file each in [`commands`] |
//! | what may have been meant? | [`suggest`], [`spelling`] |
//! | what applies where nothing is said? | [`settings`] |
//! | how do errors become words and exit codes? | [`report`] |
//! | how is something shown? | [`output`], [`table`], [`units`], [`progress`] |
//! | how do commands talk to a store or server? | [`repositories`], opened by [`session`] |
//! | how do store and client meet? | [`embedded`] |
//! | how is a store served to others? | [`serve`], with an [`allocator`] that gives memory back |
//! | what does the demo make up? | [`demo`] |

// They panic where the stream is closed or full.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod allocator;
pub mod arguments;
pub mod cli;
pub mod commands;
pub mod demo;
pub mod embedded;
pub mod files;
pub mod folders;
pub mod following;
pub mod interrupt;
pub mod notices;
pub mod output;
pub mod progress;
pub mod report;
pub mod repositories;
pub mod serve;
pub mod session;
pub mod settings;
pub mod spelling;
pub mod suggest;
pub mod table;
pub mod units;
pub mod versions;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Command};
use interrupt::Interrupt;
use output::ColorChoice;
use report::{Failure, Kind, REVISION_HINT, Result, with_place};
use session::Session;
use settings::{By, Settings};
use std::io;
use std::process::ExitCode;

/// Run the program with the arguments and environment of this process.
pub fn main() -> ExitCode {
    let parsed = cli::command().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain_usage(&error),
    };
    let settings = Settings::new(&cli.global);
    let (json, paint) = (settings.json, settings.color.paint(&io::stderr()));
    let flag = flag_of_place(&settings);
    match run(cli.command, settings) {
        Ok(code) => code,
        Err(mut failure) => {
            if let Some(flag) = flag {
                failure.hint = with_place(&failure.hint, &flag);
            }
            failure.report(json, paint);
            failure.exit_code()
        }
    }
}

/// The flag that named the store or server, as it is given again.
fn flag_of_place(settings: &Settings) -> Option<String> {
    let endpoint = settings.endpoint.as_ref();
    let endpoint = endpoint.filter(|_| settings.endpoint_by == By::Flag);
    let store = settings.store.as_ref();
    let store = store.filter(|_| settings.store_by == By::Flag);
    match (store, endpoint) {
        (Some(dir), None) => Some(format!("--store {}", dir.display())),
        (None, Some(urls)) => Some(format!("--endpoint {urls}")),
        _ => None,
    }
}

fn run(command: Command, settings: Settings) -> Result<ExitCode> {
    if let Err(failure) = &settings.config
        && !command.does_without_config()
    {
        return Err(failure.clone());
    }
    let interrupt = match command {
        // It has its own way to end.
        Command::Serve(_) => Interrupt::default(),
        _ => Interrupt::listen().map_err(|error| {
            Failure::new(Kind::Error, format!("signals cannot be handled: {error}"))
        })?,
    };
    let serves = matches!(command, Command::Serve(_));
    let session = Session::new(settings, interrupt);
    // A server logs.
    if !serves && !session.settings.quiet {
        let paint = session.settings.color.paint(&io::stderr());
        notices::show(session.progress.clone(), paint);
    }
    let result = commands::run(command, &session);
    session.progress.clear();
    result
}

/// Say what is wrong with the arguments, or print the help that was asked for.
fn explain_usage(error: &clap::Error) -> ExitCode {
    let help = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Some(0),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Some(Kind::Usage.code()),
        _ => None,
    };
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--")
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    if let Some(code) = help
        && (code == 0 || !json)
    {
        // A closed output is no failure.
        let _ = error.print();
        return ExitCode::from(code);
    }
    let failure = usage_failure(error, &arguments, json);
    failure.report(json, ColorChoice::default().paint(&io::stderr()));
    failure.exit_code()
}

/// What clap says of `arguments`: for people with the usage, for scripts in one line.
fn usage_failure(error: &clap::Error, arguments: &[String], for_scripts: bool) -> Failure {
    let see = match commands_in(arguments).join(" ").as_str() {
        "" => "see `deltaic help`".to_owned(),
        command => format!("see `deltaic {command} --help`"),
    };
    if matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Failure::usage("a command is missing").hint(see);
    }
    if let Some((command, word)) = misspelt_subcommand(error, arguments) {
        let near = suggest::did_you_mean(word, ["create", "list", "delete"]);
        let message = format!("unrecognized subcommand '{word}' of {command}");
        return Failure::usage(message).hint(near.unwrap_or(see));
    }
    let text = error.to_string();
    let parts: Vec<&str> = text.split("\n\n").map(str::trim).collect();
    let tip = parts.iter().find_map(|part| part.strip_prefix("tip: "));
    let usage = parts.iter().find(|part| part.starts_with("Usage: "));
    let message = parts.first().copied().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = if for_scripts {
        message.split_whitespace().collect::<Vec<_>>().join(" ")
    } else {
        [Some(message), usage.copied()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("\n\n")
    };
    let tip = tip.map(|tip| tip.split_whitespace().collect::<Vec<_>>().join(" "));
    let hint = meant(error, arguments).or(tip);
    Failure::usage(message).hint(match hint {
        Some(hint) => hint,
        None if is_about_revision(error) => REVISION_HINT.to_owned(),
        None => see,
    })
}

/// The command and the word after it which is none of its subcommands, and which clap took for a repository.
fn misspelt_subcommand<'a>(
    error: &clap::Error,
    arguments: &'a [String],
) -> Option<(&'a str, &'a str)> {
    let at = (arguments.iter()).position(|word| matches!(word.as_str(), "branch" | "tag"))?;
    let word = arguments[at + 1..]
        .iter()
        .find(|word| !word.starts_with('-'))?;
    let taken = matches!(
        error.kind(),
        ErrorKind::ArgumentConflict | ErrorKind::UnknownArgument
    );
    let known = ["create", "list", "delete", "help"].contains(&word.as_str());
    (taken && !known).then_some((arguments[at].as_str(), word.as_str()))
}

/// What was probably meant by arguments that clap refuses.
fn meant(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let command = commands_in(arguments).first().copied().unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = text(ContextKind::InvalidSubcommand)?;
            spelling::instead_of(name).map(str::to_owned)
        }
        ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue)?;
            if command == "commit" {
                let at = arguments.iter().position(|argument| argument == value)?;
                let tip = (arguments.get(at + 1)).and_then(|next| spelling::swapped(value, next));
                if tip.is_some() {
                    return tip;
                }
            }
            let argument = text(ContextKind::InvalidArg)?;
            if argument.contains("--output") {
                return Some("name a folder, which is made if it is not there".to_owned());
            }
            let revision = ["REV", "A", "B", "M", "N", "REPO"].iter().any(|name| {
                argument.contains(&format!("<{name}")) || argument.contains(&format!("[{name}"))
            });
            let right = spelling::corrected(value).filter(|_| revision || argument.contains("REV"));
            right.map(|right| format!("did you mean {right}?"))
        }
        ErrorKind::ArgumentConflict if command == "verify" => {
            let at = arguments
                .iter()
                .position(|argument| argument == "--read-data")?;
            let percent = arguments.get(at + 1)?;
            arguments::percentage(percent).ok()?;
            Some(format!("write --read-data={percent}"))
        }
        _ => None,
    }
}

fn is_about_revision(error: &clap::Error) -> bool {
    let argument = error.get(ContextKind::InvalidArg);
    error.kind() == ErrorKind::ValueValidation
        && matches!(argument, Some(ContextValue::String(argument)) if argument.contains("REV"))
}

/// The command and subcommand that the arguments name.
fn commands_in(arguments: &[String]) -> Vec<&str> {
    let mut command = &Cli::command();
    let mut found = Vec::new();
    for argument in arguments {
        if let Some(sub) = command.find_subcommand(argument) {
            found.push(argument.as_str());
            command = sub;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn failure(line: &str, for_scripts: bool) -> Failure {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let error = Cli::try_parse_from(&words).expect_err(line);
        usage_failure(&error, &words[1..], for_scripts)
    }

    #[test]
    fn usage_errors_are_short_for_scripts() {
        let unknown = failure("deltaic comit", true);
        assert_eq!(unknown.kind, Kind::Usage);
        assert_eq!(unknown.message, "unrecognized subcommand 'comit'");
        assert!(unknown.hint.contains("'commit'"));
        let missing = failure("deltaic commit", true);
        assert!(!missing.message.contains("  "), "{}", missing.message);
    }

    #[test]
    fn what_was_meant_is_told() {
        let hint = |line| failure(line, false).hint;
        assert_eq!(hint("deltaic diff a/b@v0...v1"), "did you mean a/b@v0..v1?");
        assert_eq!(hint("deltaic plan a/b v0...v1"), "did you mean v0..v1?");
        assert_eq!(hint("deltaic show a/b@main^"), "did you mean a/b@main~1?");
        assert_eq!(hint("deltaic revert a/b main^^"), "did you mean main~2?");
        assert_eq!(hint("deltaic verify --read-data 5"), "write --read-data=5");
        let creat = failure("deltaic branch creat a/b dev", false);
        assert_eq!(creat.message, "unrecognized subcommand 'creat' of branch");
        assert_eq!(creat.hint, "did you mean create?");
        assert_eq!(hint("deltaic version"), "use `deltaic --version`");
        assert!(hint("deltaic gc --dry-run").contains("not there yet"));
        assert!(hint("deltaic pull a/b -o -").contains("a folder"));
        assert!(hint("deltaic commit /tmp acme/policy").contains("commit acme/policy /tmp"));
    }

    #[test]
    fn usage_errors_show_people_the_usage_and_where_to_read_on() {
        let missing = failure("deltaic branch create acme/policy", false);
        let usage = "\n\nUsage: deltaic branch create <REPO> <NAME> [REV]";
        assert!(missing.message.ends_with(usage), "{}", missing.message);
        assert_eq!(missing.hint, "see `deltaic branch create --help`");
        assert_eq!(failure("deltaic log a@x~y", false).hint, REVISION_HINT);
        let range = failure("deltaic --json diff", true);
        assert_eq!(range.hint, "see `deltaic diff --help`");
        let nothing = failure("deltaic repo", true);
        assert_eq!(nothing.hint, "see `deltaic repo --help`");
    }
}
