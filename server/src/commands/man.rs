//! `deltaic man`: manual pages.

use crate::cli::Cli;
use crate::output::{Answer, Page};
use crate::report::{Failure, Result};
use crate::session::Session;
use clap::{Arg, Args, Command, CommandFactory};
use clap_mangen::Man;
use serde::Serialize;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

/// Print the manual pages of all commands, or write them to files.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic man | man -l -                    read them
  deltaic man -o ~/.local/share/man/man1    install them")]
pub struct ManArgs {
    /// Write one file per command to this folder, which is made if it is not there.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Manual {
    pages: Vec<ManualPage>,
}

#[derive(Serialize)]
struct ManualPage {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    roff: Option<String>,
}

impl Answer for Manual {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        for manual in &self.pages {
            page.line(manual.roff.as_deref().unwrap_or(&manual.file).trim_end())?;
        }
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If a page cannot be written.
pub fn run(args: &ManArgs, session: &Session) -> Result<()> {
    if args.output.is_none() && !session.settings.json && io::stdout().is_terminal() {
        session.talk("manual pages are for man: read them with `deltaic man | man -l -`");
        return Ok(());
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages).map_err(Failure::output)?;
    if let Some(dir) = &args.output {
        std::fs::create_dir_all(dir).map_err(|error| Failure::file(dir, &error))?;
        for page in &mut pages {
            let path = dir.join(&page.file);
            let roff = page.roff.take().unwrap_or_default();
            std::fs::write(&path, roff).map_err(|error| Failure::file(&path, &error))?;
            page.file = path.display().to_string();
        }
    }
    session.answer(&Manual { pages })
}

/// The page of a command, then those of its subcommands.
fn collect(command: &Command, pages: &mut Vec<ManualPage>) -> io::Result<()> {
    let man = Man::new(command.clone());
    let mut whole = Vec::new();
    man.render(&mut whole)?;
    let roff = with_synopsis(&String::from_utf8_lossy(&whole), &synopsis(command));
    pages.push(ManualPage {
        file: man.get_filename(),
        roff: Some(roff),
    });
    let commands = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    commands
        .into_iter()
        .try_for_each(|command| collect(command, pages))
}

/// How a command is written: its name, then each option and argument, none of them broken at a line's end.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut parts = vec![format!("\\fB{}\\fR", escaped(name))];
    if command.get_name() == "deltaic" || command.get_arguments().any(Arg::is_global_set) {
        parts.push("[\\fIglobal\\ options\\fR]".to_owned());
    }
    let own = |argument: &&Arg| {
        let help = matches!(argument.get_id().as_str(), "help" | "version");
        !argument.is_global_set() && !argument.is_hide_set() && !help
    };
    let (placed, options): (Vec<&Arg>, Vec<&Arg>) =
        (command.get_arguments().filter(own)).partition(|argument| argument.is_positional());
    for argument in options.into_iter().chain(placed) {
        let text = escaped(&argument.to_string()).replace(' ', "\\ ");
        let text = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .unwrap_or(&text);
        parts.push(match argument.is_required_set() {
            true => text.to_owned(),
            false => format!("[{text}]"),
        });
    }
    if command.has_subcommands() {
        parts.push("\\fIcommand\\fR".to_owned());
    }
    parts.join("\n")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// A page with another text under its heading SYNOPSIS.
fn with_synopsis(roff: &str, synopsis: &str) -> String {
    const HEADING: &str = ".SH SYNOPSIS\n";
    let Some(at) = roff.find(HEADING).map(|at| at + HEADING.len()) else {
        return roff.to_owned();
    };
    let end = roff[at..].find(".SH ").map_or(roff.len(), |len| at + len);
    // Flush left, so that no blanks are spread between the parts.
    format!(
        "{}.ad l\n.nh\n{synopsis}\n.ad b\n.hy\n{}",
        &roff[..at],
        &roff[end..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_every_command() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let mut pages = Vec::new();
        collect(&command, &mut pages).expect("memory can be written");
        for file in ["deltaic.1", "deltaic-commit.1", "deltaic-branch-create.1"] {
            assert!(pages.iter().any(|page| page.file == file), "{file}");
        }
        assert!(pages.iter().all(|page| page.roff.is_some()));
        let log = pages.iter().find(|page| page.file == "deltaic-log.1");
        let log = log
            .and_then(|page| page.roff.as_deref())
            .unwrap_or_default();
        let synopsis = "\\fBdeltaic log\\fR\n[\\fIglobal\\ options\\fR]\n[\\-\\-number\\ <N>]";
        assert!(log.contains(synopsis), "{log}");
    }
}
