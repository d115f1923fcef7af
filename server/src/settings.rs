//! What applies to every command: flags, else the environment, else the config file, else defaults.

use crate::cli::GlobalArgs;
use crate::output::ColorChoice;
use crate::progress::ProgressChoice;
use crate::report::{Failure, Result, plain_io};
use figment::Figment;
use figment::error::Kind;
use figment::providers::{Format, Toml};
use serde::Deserialize;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The folder that is the store where none is given, if it is there.
pub const DEFAULT_STORE: &str = ".deltaic-store";

const KEYS_HINT: &str =
    "its keys are store (a folder), color (auto, always, never) and progress (auto, plain, none)";

/// What applies to every command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The store's folder, where one is given.
    pub store: Option<PathBuf>,
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
}

/// What a config file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    store: Option<PathBuf>,
    color: Option<ColorChoice>,
    progress: Option<ProgressChoice>,
}

impl Settings {
    /// Put flags, environment and config file together.
    ///
    /// # Errors
    ///
    /// If the config file is not valid, or one is named that is not there.
    pub fn new(args: &GlobalArgs) -> Result<Self> {
        let config = match config_path() {
            Some(path) => ConfigFile::read(&path)?,
            None => ConfigFile::default(),
        };
        Ok(Self::combine(args, config))
    }

    fn combine(args: &GlobalArgs, config: ConfigFile) -> Self {
        let store = args.store.clone().filter(|dir| !dir.as_os_str().is_empty());
        let progress = args.progress.or(config.progress).unwrap_or_default();
        Self {
            store: store.or(config.store),
            json: args.json,
            quiet: args.quiet,
            verbose: args.verbose,
            color: args.color.or(config.color).unwrap_or_default(),
            progress: if args.quiet {
                ProgressChoice::None
            } else {
                progress
            },
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
        let invalid = |what: String| {
            Failure::usage(format!("the config file {} {what}", path.display())).hint(KEYS_HINT)
        };
        if let Err(error) = File::open(path) {
            return Err(invalid(format!("cannot be read: {}", plain_io(&error))));
        }
        let config = Figment::from(Toml::file_exact(path)).extract();
        let mut config: Self = config.map_err(|error| invalid(explain(&error)))?;
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

/// The config file: the one that `DELTAIC_CONFIG` names, else the usual one if it is there.
fn config_path() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value: &OsString| !value.is_empty());
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
        std::fs::write(&path, text).expect("the folder can be written");
        ConfigFile::read(&path)
    }

    #[test]
    fn flags_come_before_the_config_file_and_that_before_defaults() {
        let file = || config("store = \"/c\"\ncolor = \"never\"\n").expect("it is valid");
        let settings = Settings::combine(&args(), file());
        assert_eq!(settings.store, Some("/c".into()));
        assert_eq!(settings.color, ColorChoice::Never);
        assert_eq!(settings.progress, ProgressChoice::Auto);
        let flags = GlobalArgs {
            store: Some("/f".into()),
            color: Some(ColorChoice::Always),
            ..args()
        };
        let settings = Settings::combine(&flags, file());
        assert_eq!(settings.store, Some("/f".into()));
        assert_eq!(settings.color, ColorChoice::Always);
    }

    #[test]
    fn an_empty_variable_is_as_good_as_none_and_quiet_shows_no_progress() {
        let flags = GlobalArgs {
            store: Some("".into()),
            quiet: true,
            ..args()
        };
        let settings = Settings::combine(&flags, ConfigFile::default());
        assert_eq!(settings.store, None);
        assert_eq!(settings.progress, ProgressChoice::None);
    }

    #[test]
    fn errors_name_the_key() {
        let message = |text| config(text).expect_err(text).message;
        assert!(message("stroe = 1").ends_with("has an unknown key, stroe"));
        assert!(message("color = \"blue\"").contains("has a color that is not valid"));
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
    fn relative_paths_lie_beside_the_config_file() {
        let folder = Path::new("/etc/deltaic");
        assert_eq!(expand(Path::new("s"), folder), Path::new("/etc/deltaic/s"));
        assert_eq!(expand(Path::new("/s"), folder), Path::new("/s"));
    }
}
