//! A module that nobody declares is never compiled, and its tests never run: this finds it.

use std::path::Path;

#[test]
fn every_file_of_the_folder_is_declared() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration");
    let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
    let declared: Vec<&str> = main
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    assert!(declared.is_sorted(), "main.rs lists modules in order");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() || (path.extension().is_some_and(|e| e == "rs") && module != "main") {
            assert!(
                declared.contains(&module.as_str()),
                "tests/integration/{module} is not declared in main.rs, so its tests do not run"
            );
        }
    }
}

#[test]
fn there_is_one_integration_binary() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in std::fs::read_dir(tests).unwrap() {
        let path = entry.unwrap().path();
        assert!(
            path.is_dir(),
            "{} lies beside the integration binary and is not compiled",
            path.display()
        );
    }
}
