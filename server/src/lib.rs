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

pub mod arguments;
pub mod cli;
pub mod commands;
pub mod demo;
pub mod embedded;
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

use clap::Parser;
use clap::error::ErrorKind;
use cli::Cli;
use interrupt::Interrupt;
use output::{ColorChoice, Paint};
use report::{Failure, Kind, Result};
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
    let json = cli.global.json;
    let color = cli.global.color.unwrap_or_default();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            failure.report(json, error_paint(color));
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let settings = Settings::new(&cli.global)?;
    let interrupt = Interrupt::listen().map_err(|error| {
        Failure::new(Kind::Error, format!("signals cannot be handled: {error}"))
    })?;
    let session = Session::new(settings, interrupt);
    let result = commands::run(cli.command, &session);
    session.progress.clear();
    result
}

fn error_paint(color: ColorChoice) -> Paint {
    color.paint(&io::stderr())
}

/// Say what is wrong with the arguments, or print the help that was asked for.
fn explain_usage(error: &clap::Error) -> ExitCode {
    let help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let json = std::env::args_os().any(|argument| argument == "--json");
    if help || !json {
        // A closed output is no failure.
        let _ = error.print();
        return ExitCode::from(if help { 0 } else { Kind::Usage.code() });
    }
    let failure = usage_failure(error);
    failure.report(true, Paint::new(false));
    failure.exit_code()
}

/// What clap says, without the usage lines that follow.
fn usage_failure(error: &clap::Error) -> Failure {
    if matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Failure::usage("a command is missing");
    }
    let text = error.to_string();
    let mut parts = text.split("\n\n").map(str::trim);
    let message = parts.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let tip = parts.find_map(|part| part.strip_prefix("tip: "));
    Failure::usage(message.replace('\n', " ")).hint(tip.unwrap_or("see `deltaic help`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_are_short_for_scripts() {
        let error = Cli::try_parse_from(["deltaic", "comit"]).expect_err("no such command");
        let failure = usage_failure(&error);
        assert_eq!(failure.kind, Kind::Usage);
        assert_eq!(failure.message, "unrecognized subcommand 'comit'");
        assert!(failure.hint.contains("'commit'"));
    }
}
