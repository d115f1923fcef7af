//! What a user sets, and where: a flag comes before the environment, that before the config file, that before defaults.

use crate::scratch_store;
use deltaic_tests::stores::{ScratchStore, answer};
use std::fs;
use std::process::Command;

const ESCAPE: u8 = 0x1b;

/// The store that a command works with, as it says itself.
fn store_of(mut command: Command) -> String {
    let args = ["init", "--json"];
    let output = command.args(args).output().unwrap();
    let made = answer(&args, &output);
    let path = made["store"].as_str().expect("a path");
    let (_, name) = path.rsplit_once('/').expect("a path has parts");
    name.to_owned()
}

/// Write the config file that a user with the home folder of `store` has.
fn configure(store: &ScratchStore, text: &str) {
    let folder = store.path("home/.config/deltaic");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), text).unwrap();
}

#[test]
fn a_store_is_named_by_flag_environment_config_file_or_default() {
    let store = scratch_store();
    let [flag, variable, file, other] =
        ["by-flag", "by-variable", "by-file", "by-other-file"].map(|name| store.place(name));
    assert_eq!(store_of(store.bare_command(&[])), ".deltaic-store");
    configure(&store, &format!("store = {file:?}\n"));
    assert_eq!(store_of(store.bare_command(&[])), "by-file");

    let elsewhere = store.place("elsewhere.toml");
    fs::write(&elsewhere, format!("store = {other:?}\n")).unwrap();
    let mut command = store.bare_command(&[]);
    command.env("DELTAIC_CONFIG", &elsewhere);
    assert_eq!(store_of(command), "by-other-file");
    let xdg = store.path("xdg");
    fs::create_dir_all(xdg.join("deltaic")).unwrap();
    fs::write(xdg.join("deltaic/config.toml"), "store = \"beside\"\n").unwrap();
    let mut command = store.bare_command(&[]);
    command.env("XDG_CONFIG_HOME", &xdg);
    assert_eq!(store_of(command), "beside");
    assert!(xdg.join("deltaic/beside/FORMAT").is_file());

    let mut command = store.bare_command(&[]);
    command.env("DELTAIC_STORE", &variable);
    assert_eq!(store_of(command), "by-variable");
    let mut command = store.bare_command(&["--store", &flag]);
    command.env("DELTAIC_STORE", &variable);
    assert_eq!(store_of(command), "by-flag");
    assert_eq!(
        store_of(store.bare_command(&["--store", &flag])),
        "by-flag",
        "without the variable too"
    );
}

#[test]
fn colors_are_there_when_they_are_wanted() {
    let store = scratch_store();
    let place = store.place("store");
    let colored = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = store.bare_command(&["--store", &place]);
        command.args(args).envs(variables.iter().copied());
        // A failure, in words on standard error, and a success on standard output.
        let failed = command.args(["log", "missing"]).output().unwrap();
        let mut command = store.bare_command(&["--store", &place]);
        command.args(args).envs(variables.iter().copied());
        let doctor = command.arg("doctor").output().unwrap();
        let outputs = [&failed.stderr, &doctor.stdout];
        outputs.map(|output| output.contains(&ESCAPE))
    };
    assert_eq!(colored(&[], &[]), [false, false], "no terminal");
    assert_eq!(colored(&["--color", "always"], &[]), [true, true]);
    let no_color = [("NO_COLOR", "1"), ("TERM", "dumb")];
    assert_eq!(
        colored(&["--color", "always"], &no_color),
        [true, true],
        "a flag comes first"
    );
    assert_eq!(colored(&["--color", "never"], &[]), [false, false]);
    configure(&store, "color = \"always\"\n");
    let [_, on_page] = colored(&[], &[]);
    assert!(on_page, "the config file");
    assert_eq!(
        colored(&["--color", "never"], &[]),
        [false, false],
        "a flag comes first"
    );
}
