//! `deltaic completions`: completion scripts for shells.

use crate::cli::Cli;
use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::Session;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use serde::Serialize;
use std::io;

/// Print a script that completes deltaic's commands and flags in a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic completions bash > ~/.local/share/bash-completion/completions/deltaic
  deltaic completions zsh > ~/.zfunc/_deltaic
  deltaic completions fish > ~/.config/fish/completions/deltaic.fish")]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

impl Answer for Script {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(self.script.trim_end())
    }
}

/// Run the command.
///
/// # Errors
///
/// If the script cannot be written.
pub fn run(args: &CompletionsArgs, session: &Session) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "deltaic", &mut script);
    session.answer(&Script {
        shell: args.shell.to_string(),
        script: String::from_utf8_lossy(&script).into_owned(),
    })
}
