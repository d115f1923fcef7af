//! The commands, one file each: what they take, what they do, how their answer looks. What branches and tags share is
//! in [`refs`].

pub mod branch;
pub mod clone;
pub mod commit;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod init;
pub mod log;
pub mod man;
pub mod plan;
pub mod pull;
pub mod push;
pub mod refs;
pub mod repo;
pub mod revert;
pub mod serve;
pub mod show;
pub mod stats;
pub mod tag;
pub mod verify;
pub mod watch;

use crate::cli::Command;
use crate::report::Result;
use crate::session::Session;
use std::process::ExitCode;

/// Run a command; the exit code is not 0 where its answer is bad news.
///
/// # Errors
///
/// If it cannot do what it was asked.
pub fn run(command: Command, session: &Session) -> Result<ExitCode> {
    match command {
        Command::Init(args) => init::run(&args, session),
        Command::Commit(args) => commit::run(args, session),
        Command::Log(args) => log::run(&args, session),
        Command::Show(args) => show::run(&args, session),
        Command::Diff(args) => diff::run(&args, session),
        Command::Plan(args) => plan::run(&args, session),
        Command::Export(args) => export::run(&args, session),
        Command::Pull(args) => pull::run(&args, session),
        Command::Revert(args) => revert::run(args, session),
        Command::Branch(args) => branch::run(args, session),
        Command::Tag(args) => tag::run(args, session),
        Command::Repo(args) => repo::run(&args, session),
        Command::Verify(args) => return verify::run(&args, session),
        Command::Stats(args) => stats::run(&args, session),
        Command::Serve(args) => return serve::run(&args, session),
        Command::Watch(args) => watch::run(args, session),
        Command::Push(args) => push::run(args, session),
        Command::Clone(args) => clone::run(args, session),
        Command::Demo(args) => return demo::run(&args, session),
        Command::Doctor(args) => return doctor::run(&args, session),
        Command::Completions(args) => completions::run(&args, session),
        Command::Man(args) => man::run(&args, session),
    }
    .map(|()| ExitCode::SUCCESS)
}
