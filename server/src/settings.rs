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
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder that is the store where none is given, if it is there.
pub const DEFAULT_STORE: &str = ".deltaic-store";

/// How long to wait for a store that another process uses, where nothing is said.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

const KEYS_HINT: &str = "its keys are store (a folder), wait (such as \"30s\"), color (auto, always, never) and progress (auto, plain, none)";

const UNREADABLE_HINT: &str = "name a file that can be read with DELTAIC_CONFIG, or unset it; see to the permissions of the one in ~/.config";

/// What applies to every command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The store's folder, where one is given.
    pub store: Option<PathBuf>,
    /// Whether it was given as a flag.
    pub store_is_flag: bool,
    /// How long to wait for a store that another process uses.
    pub wait: Duration,
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
    wait: Option<String>,
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
        let mut settings = Self::combine(args, variable("DELTAIC_STORE"), file, config);
        match variable("DELTAIC_WAIT").map(waiting).transpose() {
            Ok(wait) => settings.wait = args.wait.or(wait).unwrap_or(settings.wait),
            Err(failure) => settings.config = settings.config.and(Err(failure)),
        }
        settings
    }

    fn combine(
        args: &GlobalArgs,
        environment: Option<OsString>,
        file: ConfigFile,
        config: Result<Option<PathBuf>>,
    ) -> Self {
        let store = args.store.clone().filter(|dir| !dir.as_os_str().is_empty());
        let wait = (file.wait.as_deref()).and_then(|wait| arguments::duration(wait).ok());
        let progress = args.progress.or(file.progress).unwrap_or_default();
        Self {
            store_is_flag: store.is_some(),
            store: store.or(environment.map(PathBuf::from)).or(file.store),
            wait: args.wait.or(wait).unwrap_or(DEFAULT_WAIT),
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

    /// The folder of the store that commands use.
    ///
    /// # Errors
    ///
    /// If none is given and the default one is not there.
    pub fn store_dir(&self) -> Result<PathBuf> {
        match &self.store {
            Some(dir) => Ok(dir.clone()),
            None if Path::new(DEFAULT_STORE).is_dir() => Ok(DEFAULT_STORE.into()),
            None => Err(Failure::usage(format!(
                "no store is given, and there is no {DEFAULT_STORE} here"
            ))
            .hint(
                "name one with --store DIR, DELTAIC_STORE, or `store = \"DIR\"` in the config file; make one with `deltaic init`",
            )),
        }
    }
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
        if let Some(wait) = &config.wait
            && let Err(form) = arguments::duration(wait)
        {
            return Err(invalid(format!("has a wait that is not valid: {form}")).hint(KEYS_HINT));
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

/// A variable of the environment; an empty one is as good as none.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The time to wait that the environment gives.
fn waiting(text: OsString) -> Result<Duration> {
    let text = text.to_string_lossy();
    arguments::duration(&text).map_err(|form| {
        Failure::usage(format!("DELTAIC_WAIT is {text:?}: {form}"))
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
        Settings::combine(args, environment.map(OsString::from), file, Ok(None))
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
        assert_eq!(waiting("2s".into()), Ok(Duration::from_secs(2)));
        assert_eq!(waiting("2".into()).map_err(|f| f.kind.code()), Err(2));
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
