//! `deltaic man`: manual pages.

use crate::cli::Cli;
use crate::output::{Answer, Page};
use crate::report::{Failure, Result};
use crate::session::Session;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use serde::Serialize;
use std::io;
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
    let mut roff = Vec::new();
    man.render(&mut roff)?;
    pages.push(ManualPage {
        file: man.get_filename(),
        roff: Some(String::from_utf8_lossy(&roff).into_owned()),
    });
    let commands = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    commands
        .into_iter()
        .try_for_each(|command| collect(command, pages))
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
    }
}
