//! The command line: flags that apply everywhere, and the commands.

use crate::arguments::{duration, endpoints};
use crate::commands::{
    branch, clone, commit, completions, demo, diff, doctor, export, init, log, man, plan, pull,
    push, repo, revert, serve, show, stats, tag, verify, watch,
};
use crate::output::ColorChoice;
use crate::progress::ProgressChoice;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::time::Duration;

const LONG_ABOUT: &str = "\
Deltaic keeps versions of model weights, as git keeps versions of source code. A trainer commits one \
version after the other; whoever holds version M asks for version N and gets one exact, composed patch.";

const AFTER_HELP: &str = "\
Examples:
  deltaic init                          make a store in .deltaic-store
  deltaic commit acme/policy ckpt/      commit a checkpoint folder
  deltaic pull acme/policy -o replica/  patch replica/ to the newest version
  deltaic serve                         serve the store to workers elsewhere
  deltaic demo                          see all of it on made-up weights

Where the versions are: in a store on this machine (--store DIR), or behind a
  server (--endpoint URL, several with commas: the first that answers is used).

Revisions: REPO (its branch main), REPO@BRANCH, REPO@main~3, REPO@v42 (of main),
  REPO@BRANCH:v42, REPO@step=1200 (metadata), REPO@TAG, REPO@ID (its beginning).

Configuration: a flag comes first, then the environment (DELTAIC_STORE,
  DELTAIC_ENDPOINT, DELTAIC_WAIT, DELTAIC_STALL_TIMEOUT), then the config file
  ($DELTAIC_CONFIG, or deltaic/config.toml in $XDG_CONFIG_HOME or ~/.config;
  keys: store, endpoint, wait, stall_timeout, connections, color, progress), then
  the default.
  The default store is .deltaic-store in the working directory.

Exit codes: 0 ok, 1 error, 2 usage, 10 not found, 11 conflict, 12 access denied,
  13 corrupt, 14 pruned, 15 no space, 16 unavailable, 130 interrupted.";

/// A versioned store for model weights.
#[derive(Debug, Parser)]
#[command(
    name = "deltaic",
    bin_name = "deltaic",
    version,
    long_about = LONG_ABOUT,
    after_help = AFTER_HELP,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What applies to every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Use the store in this folder [env: DELTAIC_STORE].
    // Read from the environment by the settings: clap would show it as required in usage lines.
    #[arg(long, global = true, value_name = "DIR",
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub store: Option<PathBuf>,
    /// Use the server at this URL, or the first of several that answers [env: DELTAIC_ENDPOINT].
    #[arg(long, global = true, value_name = "URL[,URL…]", value_parser = endpoints)]
    pub endpoint: Option<String>,
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but data and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more: whole ids, every tensor.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Say when to use colors (NO_COLOR is respected).
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<ColorChoice>,
    /// Wait this long for a store that another process uses, or a server that cannot be reached, such as 5m; 0s does not
    /// wait [env: DELTAIC_WAIT] [default: 30s].
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Take a connection over which nothing has come for so long to be lost [env: DELTAIC_STALL_TIMEOUT] [default: 30s].
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub stall_timeout: Option<Duration>,
    /// Make at most so many connections to a server: large fetches are split among them [default: 4].
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(NonZeroU8))]
    pub connections: Option<NonZeroU8>,
    /// Say how to show progress.
    #[arg(long, global = true, value_name = "HOW")]
    pub progress: Option<ProgressChoice>,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum Command {
    Init(init::InitArgs),
    Commit(commit::CommitArgs),
    Log(log::LogArgs),
    Show(show::ShowArgs),
    Diff(diff::DiffArgs),
    Plan(plan::PlanArgs),
    Export(export::ExportArgs),
    Pull(pull::PullArgs),
    Revert(revert::RevertArgs),
    Branch(branch::BranchArgs),
    Tag(tag::TagArgs),
    Repo(repo::RepoArgs),
    Verify(verify::VerifyArgs),
    Stats(stats::StatsArgs),
    Serve(serve::ServeArgs),
    Watch(watch::WatchArgs),
    Push(push::PushArgs),
    Clone(clone::CloneArgs),
    Demo(demo::DemoArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// The command line as it is parsed: the help of a command tells of its own options, and names the global ones.
pub fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    let global: Vec<String> = (command.get_arguments())
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.get_id().to_string())
        .collect();
    command.mut_subcommands(|sub| without_global(sub, &global))
}

fn without_global(command: clap::Command, global: &[String]) -> clap::Command {
    const GLOBAL_HELP: &str = "\
Global options (see `deltaic --help`):
  --store DIR, --endpoint URL, --wait DURATION, --stall-timeout DURATION, --connections N,
  --json, -q, -v, --color WHEN, --progress HOW";
    let is_global = |id: &clap::Id| global.iter().any(|known| id == known.as_str());
    let command = command.mut_args(|argument| {
        let hidden = is_global(argument.get_id());
        if hidden {
            argument.hide(true)
        } else {
            argument
        }
    });
    let help = match command.get_after_help() {
        Some(examples) => format!("{examples}\n\n{GLOBAL_HELP}"),
        None => GLOBAL_HELP.to_owned(),
    };
    command
        .after_help(help)
        .mut_subcommands(|sub| without_global(sub, global))
}

impl Command {
    /// Whether the command is of use where the config file is broken, because it reads none of it or says what is wrong.
    pub fn does_without_config(&self) -> bool {
        matches!(self, Self::Doctor(_) | Self::Completions(_) | Self::Man(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_full_sentence_and_an_example() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands() {
                let name = sub.get_name();
                let about = sub.get_about().map(ToString::to_string);
                assert!(about.is_some_and(|a| a.len() > 20), "{name}: about");
                if sub.has_subcommands() {
                    check(sub);
                } else {
                    let help = sub.get_after_help().map(ToString::to_string);
                    assert!(
                        help.is_some_and(|h| h.contains("deltaic ")),
                        "{name}: example"
                    );
                }
                for argument in sub.get_arguments().filter(|a| a.get_id() != "help") {
                    let help = argument.get_help().map(ToString::to_string);
                    assert!(help.is_some(), "{name}: help of {}", argument.get_id());
                }
            }
        }
        check(&Cli::command());
    }

    #[test]
    fn the_help_of_a_command_is_about_that_command() {
        let help = |line: &str| {
            let result = command().try_get_matches_from(line.split_whitespace());
            result.expect_err(line).to_string()
        };
        for line in [
            "deltaic log --help",
            "deltaic branch create -h",
            "deltaic help log",
        ] {
            let text = help(line);
            assert!(!text.contains("DELTAIC_STORE"), "{line}: {text}");
            assert!(text.contains("see `deltaic --help`"), "{line}: {text}");
        }
        assert!(help("deltaic --help").contains("DELTAIC_STORE"));
        let matches = command().try_get_matches_from(["deltaic", "stats", "--json"]);
        let cli = Cli::from_arg_matches(&matches.expect("it is valid"));
        assert!(cli.expect("it is valid").global.json);
    }

    fn parses(line: &str) -> bool {
        Cli::try_parse_from(line.split_whitespace()).is_ok()
    }

    #[test]
    fn the_forms_of_the_design_are_understood() {
        for line in [
            "deltaic init",
            "deltaic init s --json",
            "deltaic --store s commit acme/policy ckpt -m hello --meta step=1 --meta a=b --expect none",
            "deltaic commit acme/policy@dev ckpt --expect dev:v3",
            "deltaic log acme/policy@main~3 -n 5",
            "deltaic show acme/policy@v42:model.safetensors",
            "deltaic diff acme/policy@v1..v3",
            "deltaic diff acme/policy@v1",
            "deltaic diff acme/policy v1 v3",
            "deltaic plan acme/policy v1..v3",
            "deltaic plan acme/policy v1 v3",
            "deltaic plan acme/policy none main",
            "deltaic export acme/policy@step=1200 -o out --force",
            "deltaic pull acme/policy -o r --seed a --seed b --proof touched --repair",
            "deltaic revert acme/policy@main v3 -m back",
            "deltaic branch create acme/policy dev main~3",
            "deltaic branch list acme/policy",
            "deltaic tag delete acme/policy best",
            "deltaic repo list --progress none --color never -q",
            "deltaic verify --read-data",
            "deltaic verify --read-data=5",
            "deltaic verify replica --json",
            "deltaic stats",
            "deltaic stats --wait 5m",
            "deltaic stats acme/policy -v",
            "deltaic --endpoint http://a:1,http://b:2 log acme/policy",
            "deltaic stats --endpoint http://127.0.0.1:7421 --stall-timeout 10s",
            "deltaic commit acme/policy ckpt --shadow s",
            "deltaic pull acme/policy@dev -o r --follow",
            "deltaic serve",
            "deltaic --store s serve --listen 127.0.0.1:0 --cache 1GiB --log-format json",
            "deltaic serve --listen 0.0.0.0:7421 --insecure",
            "deltaic watch acme/policy@main --exec ./reload.sh --after v3",
            "deltaic push acme/policy@dev --to http://other:7421",
            "deltaic clone http://other:7421/acme/policy --branch dev",
            "deltaic demo --params 10M --commits 4 --keep",
            "deltaic completions bash",
            "deltaic man -o man",
        ] {
            assert!(parses(line), "{line}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "deltaic",
            "deltaic comit acme/policy ckpt",
            "deltaic commit acme/../policy ckpt",
            "deltaic commit acme/policy ckpt --meta step",
            "deltaic pull acme/policy -o -",
            "deltaic export acme/policy -o -",
            "deltaic diff acme/policy@v1...v3",
            "deltaic pull acme/policy",
            "deltaic branch create acme/policy v3",
            "deltaic verify --read-data=0",
            "deltaic stats -q -v",
            "deltaic stats --wait 5",
            "deltaic stats --endpoint somewhere",
            "deltaic serve --listen somewhere",
            "deltaic serve --cache 5MB",
            "deltaic push acme/policy",
            "deltaic clone acme/policy",
            "deltaic watch acme/policy@v3",
            "deltaic demo --commits 0",
        ] {
            assert!(!parses(line), "{line}");
        }
    }
}
