//! What applies to every command: flags, else the environment, else the config file, else defaults.

use crate::arguments;
use crate::cli::GlobalArgs;
use crate::output::ColorChoice;
use crate::progress::ProgressChoice;
use crate::report::{Failure, Result};
use figment::Figment;
use figment::error::Kind;
use figment::providers::{Format, Toml};
use serde::Deserialize;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder that is the store where none is given, if it is there.
pub const DEFAULT_STORE: &str = ".deltaic-store";

/// How long to wait for a store that another process uses, where nothing is said.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// How long a server may send nothing, where nothing is said.
const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How many connections to a server are made at most, where nothing is said.
const DEFAULT_CONNECTIONS: NonZeroU8 = NonZeroU8::new(4).unwrap();

const KEYS_HINT: &str = "its keys are store (a folder), endpoint (a server's URL, or several with commas), wait and stall_timeout (such as \"30s\"), connections (1 to 255), color (auto, always, never) and progress (auto, plain, none)";

const UNREADABLE_HINT: &str = "name a file that can be read with DELTAIC_CONFIG, or unset it; see to the permissions of the one in ~/.config";

/// Where a setting was given; what is greater comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Nowhere.
    #[default]
    Default,
    /// In the config file.
    File,
    /// In the environment.
    Environment,
    /// As a flag.
    Flag,
}

/// Where the repositories are that commands work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the store in this folder.
    Store(PathBuf),
    /// On servers with these URLs, the first one that answers.
    Servers(String),
}

/// What applies to every command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The store's folder, where one is given.
    pub store: Option<PathBuf>,
    /// Where it was given.
    pub store_by: By,
    /// The servers of one set of repositories, where they are given.
    pub endpoint: Option<String>,
    /// Where they were given.
    pub endpoint_by: By,
    /// How long to wait for a store that another process uses.
    pub wait: Duration,
    /// How long a server may send nothing before that is an error.
    pub stall_timeout: Duration,
    /// How many connections to a server are made at most.
    pub connections: NonZeroU8,
    /// Whether scripts read the output.
    pub json: bool,
    /// Whether to say nothing but data and errors.
    pub quiet: bool,
    /// Whether to say more.
    pub verbose: bool,
    /// When there are colours.
    pub color: ColorChoice,
    /// How progress is shown.
    pub progress: ProgressChoice,
    /// The config file that was read, if there is one, or what is wrong with it.
    pub config: Result<Option<PathBuf>>,
}

/// What a config file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    store: Option<PathBuf>,
    endpoint: Option<String>,
    wait: Option<String>,
    stall_timeout: Option<String>,
    connections: Option<NonZeroU8>,
    color: Option<ColorChoice>,
    progress: Option<ProgressChoice>,
}

impl Settings {
    /// Put flags, environment and config file together. A config file that cannot be used is left aside and noted in
    /// [`config`](Self::config).
    pub fn new(args: &GlobalArgs) -> Self {
        let path = config_path();
        let read = path.as_deref().map(ConfigFile::read).transpose();
        let (file, config) = match read {
            Ok(file) => (file.unwrap_or_default(), Ok(path)),
            Err(failure) => (ConfigFile::default(), Err(failure)),
        };
        let environment = Environment {
            store: variable("DELTAIC_STORE").map(PathBuf::from),
            endpoint: variable("DELTAIC_ENDPOINT").map(|url| url.to_string_lossy().into_owned()),
        };
        let mut settings = Self::combine(args, environment, file, config);
        let mut durations = [
            ("DELTAIC_WAIT", args.wait, &mut settings.wait),
            (
                "DELTAIC_STALL_TIMEOUT",
                args.stall_timeout,
                &mut settings.stall_timeout,
            ),
        ];
        for (name, flag, setting) in &mut durations {
            match variable(name).map(|text| lasting(name, &text)).transpose() {
                Ok(time) => **setting = flag.or(time).unwrap_or(**setting),
                Err(failure) if settings.config.is_ok() => settings.config = Err(failure),
                Err(_) => {}
            }
        }
        settings
    }

    fn combine(
        args: &GlobalArgs,
        environment: Environment,
        file: ConfigFile,
        config: Result<Option<PathBuf>>,
    ) -> Self {
        let flag = args.store.clone().filter(|dir| !dir.as_os_str().is_empty());
        let (store, store_by) = first([flag, environment.store, file.store]);
        let flag = args.endpoint.clone().filter(|url| !url.is_empty());
        let (endpoint, endpoint_by) = first([flag, environment.endpoint, file.endpoint]);
        let time = |text: Option<String>| text.and_then(|text| arguments::duration(&text).ok());
        let (wait, stall_timeout) = (time(file.wait), time(file.stall_timeout));
        let stall_timeout = args.stall_timeout.or(stall_timeout);
        let progress = args.progress.or(file.progress).unwrap_or_default();
        Self {
            store,
            store_by,
            endpoint,
            endpoint_by,
            wait: args.wait.or(wait).unwrap_or(DEFAULT_WAIT),
            stall_timeout: stall_timeout.unwrap_or(DEFAULT_STALL_TIMEOUT),
            connections: (args.connections.or(file.connections)).unwrap_or(DEFAULT_CONNECTIONS),
            json: args.json,
            quiet: args.quiet,
            verbose: args.verbose,
            color: args.color.or(file.color).unwrap_or_default(),
            progress: if args.quiet {
                ProgressChoice::None
            } else {
                progress
            },
            config,
        }
    }

    /// The store or servers that commands use: whatever is given, or comes first, else the default store.
    ///
    /// # Errors
    ///
    /// If both are given in the same way, or neither and the default store is not there.
    pub fn place(&self) -> Result<Place> {
        match (&self.store, &self.endpoint) {
            (Some(_), Some(_)) if self.store_by == self.endpoint_by => Err(self.two_places()),
            (store, Some(endpoint)) if store.is_none() || self.endpoint_by > self.store_by => {
                let urls = arguments::endpoints(endpoint).map_err(|form| {
                    let what = match self.endpoint_by {
                        By::Environment => "DELTAIC_ENDPOINT",
                        _ => "the endpoint",
                    };
                    Failure::usage(format!("{what} is not valid: {form}"))
                        .hint("give a server's URL, or several with commas between them")
                })?;
                Ok(Place::Servers(urls))
            }
            _ => Ok(Place::Store(self.given_or_default_store()?)),
        }
    }

    fn two_places(&self) -> Failure {
        const ONE: &str = "name the one that is meant with --store DIR or --endpoint URL";
        let (message, hint) = match self.store_by {
            By::Flag => (
                "--store and --endpoint name two places",
                "give one of them: a store's folder on this machine, or a server's URL".to_owned(),
            ),
            By::Environment => (
                "DELTAIC_STORE and DELTAIC_ENDPOINT are both set",
                format!("unset one of them, or {ONE}"),
            ),
            By::File | By::Default => (
                "the config file gives a store and an endpoint",
                format!("take one of them out of it, or {ONE}"),
            ),
        };
        Failure::usage(message).hint(hint)
    }

    /// The folder of the store that is used by commands which work on the folder itself.
    ///
    /// # Errors
    ///
    /// If none is given and the default one is not there, or a server was named for this very command.
    pub fn store_dir(&self) -> Result<PathBuf> {
        match (self.endpoint_by, self.store_by) {
            (By::Flag, By::Flag) => Err(self.two_places()),
            (By::Flag, _) => Err(Failure::usage(
                "this command works on the folder of a store, not over a server",
            )
            .hint("name a store on this machine, with --store DIR in place of --endpoint")),
            _ => self.given_or_default_store(),
        }
    }

    fn given_or_default_store(&self) -> Result<PathBuf> {
        match &self.store {
            Some(dir) => Ok(dir.clone()),
            None if Path::new(DEFAULT_STORE).is_dir() => Ok(DEFAULT_STORE.into()),
            None => Err(Failure::usage(format!(
                "no store is given, and there is no {DEFAULT_STORE} here"
            ))
            .hint(
                "name one with --store DIR, DELTAIC_STORE, or `store = \"DIR\"` in the config file, or a server with \
                 --endpoint URL; make a store with `deltaic init`",
            )),
        }
    }
}

/// What the environment gives.
#[derive(Debug, Default)]
struct Environment {
    store: Option<PathBuf>,
    endpoint: Option<String>,
}

/// What flag, environment and config file give: the first of them that gives something, and which it is.
fn first<T>(given: [Option<T>; 3]) -> (Option<T>, By) {
    let places = [By::Flag, By::Environment, By::File];
    let mut found = given.into_iter().zip(places);
    let found = found.find_map(|(value, by)| Some((value?, by)));
    found.map_or((None, By::Default), |(value, by)| (Some(value), by))
}

impl ConfigFile {
    fn read(path: &Path) -> Result<Self> {
        let invalid =
            |what: String| Failure::usage(format!("the config file {} {what}", path.display()));
        // A folder opens, but cannot be read.
        if let Err(error) = fs::read(path) {
            return Err(invalid(format!("cannot be read: {error}")).hint(UNREADABLE_HINT));
        }
        let config = Figment::from(Toml::file_exact(path)).extract();
        let mut config: Self = config.map_err(|error| invalid(explain(&error)).hint(KEYS_HINT))?;
        for (key, text) in [
            ("wait", &config.wait),
            ("stall_timeout", &config.stall_timeout),
        ] {
            if let Some(text) = text
                && let Err(form) = arguments::duration(text)
            {
                let what = format!("has a {key} that is not valid: {form}");
                return Err(invalid(what).hint(KEYS_HINT));
            }
        }
        if let Some(endpoint) = &config.endpoint
            && let Err(form) = arguments::endpoints(endpoint)
        {
            let what = format!("has an endpoint that is not valid: {form}");
            return Err(invalid(what).hint(KEYS_HINT));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        config.store = config.store.map(|dir| expand(&dir, folder));
        Ok(config)
    }
}

/// What figment found wrong, as the end of a sentence about the file.
fn explain(error: &figment::Error) -> String {
    match &error.kind {
        Kind::UnknownField(key, _) => format!("has an unknown key, {key}"),
        kind if error.path.is_empty() => format!("is not valid: {kind}"),
        kind => format!("has a {} that is not valid: {kind}", error.path.join(".")),
    }
}

/// A path of a config file: `~/…` lies in the home folder, a relative one beside the file.
fn expand(path: &Path, folder: &Path) -> PathBuf {
    match (path.strip_prefix("~"), env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => folder.join(path),
    }
}

/// The user's cache folder, if there is a home folder.
pub fn cache_dir() -> Option<PathBuf> {
    match variable("XDG_CACHE_HOME") {
        Some(folder) => Some(folder.into()),
        None => Some(env::home_dir()?.join(".cache")),
    }
}

/// A variable of the environment; an empty one is as good as none.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The time that the variable `name` gives.
fn lasting(name: &str, text: &OsStr) -> Result<Duration> {
    let text = text.to_string_lossy();
    arguments::duration(&text).map_err(|form| {
        Failure::usage(format!("{name} is {text:?}: {form}"))
            .hint("unset it, or give it such a value")
    })
}

/// The config file: the one that `DELTAIC_CONFIG` names, else the usual one if it is there.
fn config_path() -> Option<PathBuf> {
    if let Some(path) = variable("DELTAIC_CONFIG") {
        return Some(path.into());
    }
    let folder = match variable("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => env::home_dir()?.join(".config"),
    };
    Some(folder.join("deltaic/config.toml")).filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> GlobalArgs {
        GlobalArgs::default()
    }

    fn config(text: &str) -> Result<ConfigFile> {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("config.toml");
        fs::write(&path, text).expect("the folder can be written");
        ConfigFile::read(&path)
    }

    fn combine(args: &GlobalArgs, environment: Option<&str>, file: ConfigFile) -> Settings {
        let environment = Environment {
            store: environment.map(PathBuf::from),
            endpoint: None,
        };
        Settings::combine(args, environment, file, Ok(None))
    }

    #[test]
    fn flags_come_first_then_the_environment_then_the_config_file_then_defaults() {
        let file = || config("store = \"/c\"\ncolor = \"never\"\n").expect("it is valid");
        let settings = combine(&args(), Some("/e"), file());
        assert_eq!(settings.store, Some("/e".into()));
        let settings = combine(&args(), None, file());
        assert_eq!(settings.store, Some("/c".into()));
        assert_eq!(settings.color, ColorChoice::Never);
        assert_eq!(settings.progress, ProgressChoice::Auto);
        let flags = GlobalArgs {
            store: Some("/f".into()),
            color: Some(ColorChoice::Always),
            ..args()
        };
        let settings = combine(&flags, Some("/e"), file());
        assert_eq!(settings.store, Some("/f".into()));
        assert_eq!(settings.color, ColorChoice::Always);
    }

    #[test]
    fn the_time_to_wait_has_its_places_too() {
        let file = || config("wait = \"5m\"").expect("it is valid");
        assert_eq!(
            combine(&args(), None, ConfigFile::default()).wait,
            DEFAULT_WAIT
        );
        assert_eq!(
            combine(&args(), None, file()).wait,
            Duration::from_secs(300)
        );
        let flags = GlobalArgs {
            wait: Some(Duration::ZERO),
            ..args()
        };
        assert_eq!(combine(&flags, None, file()).wait, Duration::ZERO);
        let lasting = |text: &str| lasting("DELTAIC_WAIT", OsStr::new(text));
        assert_eq!(lasting("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(lasting("2").map_err(|f| f.kind.code()), Err(2));
    }

    #[test]
    fn a_store_and_a_server_take_their_places_by_where_they_are_given() {
        let place = |store: [Option<&str>; 3], endpoint: [Option<&str>; 3]| {
            let [flag, variable, file] = store;
            let [endpoint_flag, endpoint_variable, endpoint_file] = endpoint;
            let flags = GlobalArgs {
                store: flag.map(PathBuf::from),
                endpoint: endpoint_flag.map(str::to_owned),
                ..args()
            };
            let environment = Environment {
                store: variable.map(PathBuf::from),
                endpoint: endpoint_variable.map(str::to_owned),
            };
            let file = ConfigFile {
                store: file.map(PathBuf::from),
                endpoint: endpoint_file.map(str::to_owned),
                ..ConfigFile::default()
            };
            Settings::combine(&flags, environment, file, Ok(None)).place()
        };
        let (s, e) = (Some("/s"), Some("http://h:1"));
        let store = Ok(Place::Store("/s".into()));
        let servers = Ok(Place::Servers("http://h:1".to_owned()));
        for (stores, endpoints, expected) in [
            ([s, None, None], [None, None, None], &store),
            ([None, None, s], [None, None, None], &store),
            ([s, None, None], [None, e, None], &store),
            ([None, s, None], [None, None, e], &store),
            ([None, None, None], [e, None, None], &servers),
            ([None, s, s], [e, None, None], &servers),
            ([None, None, s], [None, e, None], &servers),
            ([None, None, None], [None, None, e], &servers),
        ] {
            assert_eq!(&place(stores, endpoints), expected);
        }
        for (stores, endpoints, words) in [
            ([s, None, None], [e, None, None], "--store and --endpoint"),
            ([None, s, None], [None, e, None], "DELTAIC_ENDPOINT"),
            ([None, None, s], [None, None, e], "the config file"),
        ] {
            let failure = place(stores, endpoints).expect_err("both are given");
            assert_eq!(failure.kind.code(), 2);
            assert!(failure.message.contains(words), "{}", failure.message);
        }
    }

    #[test]
    fn what_works_on_a_folder_refuses_a_server_that_is_named_for_it() {
        let with = |endpoint_by| Settings {
            endpoint: Some("http://h:1".to_owned()),
            endpoint_by,
            store: Some("/s".into()),
            store_by: By::File,
            ..combine(&args(), None, ConfigFile::default())
        };
        assert_eq!(with(By::Environment).store_dir(), Ok("/s".into()));
        let failure = with(By::Flag).store_dir().expect_err("a server is named");
        assert_eq!(failure.kind.code(), 2);
    }

    #[test]
    fn an_empty_variable_is_as_good_as_none_and_quiet_shows_no_progress() {
        let flags = GlobalArgs {
            store: Some("".into()),
            quiet: true,
            ..args()
        };
        let settings = combine(&flags, None, ConfigFile::default());
        assert_eq!(settings.store, None);
        assert_eq!(settings.progress, ProgressChoice::None);
    }

    #[test]
    fn errors_name_the_key() {
        let message = |text| config(text).expect_err(text).message;
        assert!(message("stroe = 1").ends_with("has an unknown key, stroe"));
        assert!(message("color = \"blue\"").contains("has a color that is not valid"));
        assert!(message("wait = \"soon\"").contains("has a wait that is not valid"));
        let wrong = message("stall_timeout = \"1\"");
        assert!(wrong.contains("has a stall_timeout that is not valid"));
        let wrong = message("endpoint = \"somewhere\"");
        assert!(wrong.contains("has an endpoint that is not valid"));
        assert!(message("color = ").contains("config.toml is not valid"));
    }

    #[test]
    fn unknown_keys_and_values_are_refused_with_the_known_ones() {
        for bad in ["stroe = \"/c\"", "color = \"blue\"", "store = "] {
            let failure = config(bad).expect_err(bad);
            assert_eq!(failure.kind.code(), 2, "{bad}");
            assert!(failure.message.contains("config.toml"), "{bad}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_apart_from_one_that_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        for path in [folder.path().to_owned(), folder.path().join("none")] {
            let failure = ConfigFile::read(&path).expect_err("there is no such file");
            assert!(failure.message.contains("cannot be read"));
            assert!(failure.hint.contains("DELTAIC_CONFIG"));
        }
    }

    #[test]
    fn relative_paths_lie_beside_the_config_file() {
        let folder = Path::new("/etc/deltaic");
        assert_eq!(expand(Path::new("s"), folder), Path::new("/etc/deltaic/s"));
        assert_eq!(expand(Path::new("/s"), folder), Path::new("/s"));
    }
}
