//! The program `deltaic`: its command line over the embedded store and replica folders.
//!
//! | question | module |
//! |---|---|
//! | which commands and flags are there? | [`cli`], one file each in [`commands`] |
//! | what applies where nothing is said? | [`settings`] |
//! | how do errors become words and exit codes? | [`report`] |
//! | how is something shown? | [`output`], [`table`], [`units`], [`progress`] |
//! | how do store and client meet? | [`embedded`] |
//! | what does the demo make up? | [`demo`] |

// They panic where the stream is closed or full.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arguments;
pub mod cli;
pub mod commands;
pub mod demo;
pub mod embedded;
pub mod files;
pub mod folders;
pub mod interrupt;
pub mod output;
pub mod progress;
pub mod report;
pub mod session;
pub mod settings;
pub mod suggest;
pub mod table;
pub mod units;
pub mod versions;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use interrupt::Interrupt;
use output::ColorChoice;
use report::{Failure, Kind, REVISION_HINT, Result};
use session::Session;
use settings::Settings;
use std::io;
use std::process::ExitCode;

/// Run the program with the arguments and environment of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain_usage(&error),
    };
    let settings = Settings::new(&cli.global);
    let (json, paint) = (settings.json, settings.color.paint(&io::stderr()));
    match run(cli.command, settings) {
        Ok(code) => code,
        Err(failure) => {
            failure.report(json, paint);
            failure.exit_code()
        }
    }
}

fn run(command: Command, settings: Settings) -> Result<ExitCode> {
    if let Err(failure) = &settings.config
        && !command.does_without_config()
    {
        return Err(failure.clone());
    }
    let interrupt = Interrupt::listen().map_err(|error| {
        Failure::new(Kind::Error, format!("signals cannot be handled: {error}"))
    })?;
    let session = Session::new(settings, interrupt);
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
    Failure::usage(message).hint(match tip {
        Some(tip) => tip.split_whitespace().collect::<Vec<_>>().join(" "),
        None if is_about_revision(error) => REVISION_HINT.to_owned(),
        None => see,
    })
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
    fn usage_errors_show_people_the_usage_and_where_to_read_on() {
        let missing = failure("deltaic branch create acme/policy", false);
        let usage = "\n\nUsage: deltaic branch create <REPO> <NAME> [REV]";
        assert!(missing.message.ends_with(usage), "{}", missing.message);
        assert_eq!(missing.hint, "see `deltaic branch create --help`");
        assert_eq!(failure("deltaic log a@x~y", false).hint, REVISION_HINT);
        let range = failure("deltaic --json diff acme/policy", true);
        assert_eq!(range.hint, "see `deltaic diff --help`");
        let nothing = failure("deltaic branch", true);
        assert_eq!(nothing.hint, "see `deltaic branch --help`");
    }
}
