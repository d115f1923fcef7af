use super::*;
use std::path::PathBuf;
use std::time::Duration;

fn not_found(kind: &'static str) -> StoreError {
    StoreError::NotFound {
        kind,
        name: "x".to_owned(),
    }
}

fn what() -> String {
    "x".to_owned()
}

#[test]
fn every_store_error_has_its_exit_code_and_a_hint() {
    let path = || PathBuf::from("/s");
    let cases = [
        (not_found("branch"), 10),
        (StoreError::Conflict { what: what() }, 11),
        (
            StoreError::Ambiguous {
                prefix: what(),
                candidates: Vec::new(),
            },
            2,
        ),
        (
            StoreError::Corrupt {
                object: what(),
                what: what(),
            },
            13,
        ),
        (StoreError::NoSpace { path: path() }, 15),
        (
            StoreError::Locked {
                path: path(),
                holder: what(),
            },
            16,
        ),
        (
            StoreError::StoreFormat {
                path: path(),
                found: what(),
                supported: 1,
            },
            1,
        ),
        (StoreError::Checkpoint { what: what() }, 1),
        (StoreError::Invalid { what: what() }, 2),
        (StoreError::Interrupted, 130),
        (
            StoreError::Io {
                path: path(),
                source: io::ErrorKind::NotFound.into(),
            },
            10,
        ),
        (
            StoreError::Io {
                path: path(),
                source: io::ErrorKind::StorageFull.into(),
            },
            15,
        ),
    ];
    for (error, code) in cases {
        let failure = Failure::from(&error);
        assert_eq!(failure.kind.code(), code, "{error:?}");
        assert!(!failure.hint.is_empty(), "{error:?}");
    }
}

#[test]
fn a_refusal_is_told_like_the_stores_own_error() {
    let errors = || {
        let path = || PathBuf::from("/s");
        [
            not_found("branch"),
            StoreError::Conflict { what: what() },
            StoreError::Ambiguous {
                prefix: what(),
                candidates: Vec::new(),
            },
            StoreError::Corrupt {
                object: what(),
                what: what(),
            },
            StoreError::NoSpace { path: path() },
            StoreError::Checkpoint { what: what() },
            StoreError::Upload { what: what() },
            StoreError::Invalid { what: what() },
            StoreError::Interrupted,
        ]
    };
    for error in errors() {
        let here = Failure::from(&error);
        let there = Failure::from(ClientError::from(Refusal::from(error)));
        assert_eq!(here, there);
    }
}

#[test]
fn what_only_a_server_says_has_its_exit_code_and_a_hint() {
    for (refusal, code) in [
        (
            Refusal::Exhausted {
                what: what(),
                retry_after: Some(Duration::from_secs(5)),
            },
            16,
        ),
        (
            Refusal::Exhausted {
                what: what(),
                retry_after: None,
            },
            16,
        ),
        (Refusal::Unavailable { what: what() }, 16),
        (Refusal::Incompatible { what: what() }, 1),
        (Refusal::Upload { what: what() }, 13),
        (Refusal::Damaged { what: what() }, 16),
        (Refusal::Failed { what: what() }, 1),
    ] {
        let failure = Failure::from(&refusal);
        assert_eq!(failure.kind.code(), code, "{refusal:?}");
        assert!(!failure.hint.is_empty(), "{refusal:?}");
    }
}

#[test]
fn every_client_error_has_its_exit_code_and_a_hint() {
    let path = || PathBuf::from("/r");
    let list = || vec![what()];
    let cases = [
        (
            ClientError::NoCheckpoint {
                path: path(),
                what: what(),
            },
            10,
        ),
        (
            ClientError::Checkpoint {
                path: path(),
                what: what(),
            },
            1,
        ),
        (
            ClientError::Changed {
                path: path(),
                how: "grew",
            },
            1,
        ),
        (
            ClientError::NotAReplica {
                path: path(),
                what: what(),
            },
            11,
        ),
        (
            ClientError::Locked {
                path: path(),
                holder: what(),
            },
            16,
        ),
        (
            ClientError::Modified {
                path: path(),
                what: list(),
            },
            13,
        ),
        (
            ClientError::Proof {
                object: what(),
                why: what(),
            },
            13,
        ),
        (
            ClientError::Delivery {
                object: what(),
                what: what(),
            },
            13,
        ),
        (
            ClientError::Corrupt {
                object: what(),
                what: what(),
            },
            13,
        ),
        (
            ClientError::Unusable {
                path: path(),
                what: list(),
            },
            13,
        ),
        (ClientError::Invalid { what: what() }, 2),
        (ClientError::NoSpace { path: path() }, 15),
        (ClientError::Interrupted, 130),
        (Refusal::Unavailable { what: what() }.into(), 16),
        (
            ClientError::Unreachable {
                endpoint: what(),
                what: what(),
            },
            16,
        ),
        (
            ClientError::Stalled {
                endpoint: what(),
                after: Duration::from_secs(30),
            },
            16,
        ),
        (
            ClientError::Protocol {
                endpoint: what(),
                what: what(),
            },
            1,
        ),
        (ClientError::Source(Box::new(not_found("tag"))), 10),
        (ClientError::Source(Box::new(StoreError::Interrupted)), 130),
    ];
    for (error, code) in cases {
        let failure = Failure::from(&error);
        assert_eq!(failure.kind.code(), code, "{error:?}");
        assert!(!failure.hint.is_empty(), "{error:?}");
    }
}

#[test]
fn exit_codes_are_those_of_the_design() {
    let mut codes: Vec<u8> = Kind::TABLE.iter().map(|row| row.2).collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, [0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 130]);
}

/// An output on a full disk.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_output_is_told_on_the_other_one_and_is_no_full_store() {
    let failure = Failure::output(io::ErrorKind::StorageFull.into());
    assert_eq!((failure.kind.code(), failure.kind.name()), (1, "error"));
    let paint = Paint::new(false);
    let (mut scripts, mut people) = (Vec::new(), Vec::new());
    failure.report_to(Some(&mut scripts), &mut people, paint);
    assert!(scripts.is_empty(), "no second document follows the first");
    let said = |people: &[u8]| String::from_utf8_lossy(people).into_owned();
    assert!(said(&people).starts_with("error: the output cannot be written"));
    let mut people = Vec::new();
    Failure::from(not_found("tag")).report_to(Some(Full), &mut people, paint);
    assert!(said(&people).starts_with("error: there is no tag x\nhint:"));
}

#[test]
fn a_closed_output_is_no_error() {
    let failure = Failure::output(io::ErrorKind::BrokenPipe.into());
    assert_eq!(failure.kind.code(), 0);
}

#[test]
fn failures_are_one_json_document_for_scripts() {
    let mut out = Vec::new();
    let failure = Failure::from(not_found("tag"));
    failure.write_json(&mut out).expect("memory can be written");
    let json: serde_json::Value = serde_json::from_slice(&out).expect("it is JSON");
    assert_eq!(json["error"]["kind"], "not_found");
    assert_eq!(json["error"]["message"], "there is no tag x");
    assert!(json["error"]["hint"].is_string());
}

#[test]
fn system_errors_are_told_without_their_numbers() {
    let error = io::Error::from_raw_os_error(2);
    let failure = Failure::file(Path::new("x"), &error);
    assert_eq!(failure.message, "x: No such file or directory");
    assert_eq!(
        without_numbers("a (os error 2), b (os error 17)".to_owned()),
        "a, b"
    );
    assert_eq!(without_numbers("a (os error".to_owned()), "a (os error");
}

#[test]
fn a_document_that_is_none_is_not_begun() {
    /// As a path that is not UTF-8.
    struct Refused;
    impl Serialize for Refused {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    let mut out = Vec::new();
    assert!(write_document(&mut out, &vec![None, Some(Refused)]).is_err());
    assert!(out.is_empty());
}

/// The hint for committing a folder with a good weight file and what `add` puts beside it.
fn hint_for(add: impl FnOnce(&Path) -> io::Result<()>) -> String {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let header = b"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    let length = (header.len() as u64).to_le_bytes();
    let weights = [&length[..], header, b"x"].concat();
    std::fs::write(dir.path().join("w.safetensors"), weights).expect("the folder can be written");
    add(dir.path()).expect("the folder can be written");
    let error = deltaic_client::Checkpoint::open(dir.path()).expect_err("it is no checkpoint");
    let failure = Failure::from(error);
    assert_eq!(failure.kind, Kind::Error, "{}", failure.message);
    assert!(!failure.message.contains(&failure.hint));
    failure.hint
}

#[test]
fn what_cannot_be_committed_has_a_hint_of_its_own() {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let has = |hint: String, part: &str| assert!(hint.contains(part), "{hint}: {part}");
    has(
        hint_for(|dir| symlink("/nowhere/at/all", dir.join("x"))),
        "what it should lead to",
    );
    has(
        hint_for(|dir| symlink("/etc/hostname", dir.join("x"))),
        "what it should lead to",
    );
    has(
        hint_for(|dir| std::os::unix::net::UnixListener::bind(dir.join("x")).map(drop)),
        "move it out",
    );
    has(
        hint_for(|dir| fs::write(dir.join(OsStr::from_bytes(b"\xff")), b"")),
        "rename it",
    );
    has(
        hint_for(|dir| fs::write(dir.join("a\\b"), b"")),
        "rename it",
    );
    has(
        hint_for(|dir| {
            let folder = dir.join(OsStr::from_bytes(b"\xff"));
            fs::create_dir(&folder)?;
            fs::write(folder.join("y.safetensors"), b"")
        }),
        "rename it",
    );
    has(
        hint_for(|dir| fs::write(dir.join("y.safetensors"), b"short")),
        "written to its end",
    );
    let index = r#"{"weight_map": {"a": "other.safetensors"}}"#;
    has(
        hint_for(|dir| fs::write(dir.join("m.safetensors.index.json"), index)),
        "every shard",
    );
}

#[test]
fn a_folder_that_is_no_replica_has_a_hint_by_what_it_is() {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let hint = |path: &Path| {
        let error = ClientError::NotAReplica {
            path: path.to_owned(),
            what: what(),
        };
        Failure::from(error).hint
    };
    assert!(hint(&dir.path().join("none")).starts_with("name a replica's folder"));
    assert!(hint(dir.path()).starts_with("make it one"));
    std::fs::write(dir.path().join("x"), b"").expect("the folder can be written");
    assert!(hint(dir.path()).contains("--seed"));
}

#[test]
fn hints_can_be_pasted() {
    let hint = |kind, name: &str| {
        let name = name.to_owned();
        Failure::from(StoreError::NotFound { kind, name }).hint
    };
    assert!(
        hint("version", "v9 of acme/policy@main, which is at v3")
            .ends_with("`deltaic log acme/policy`")
    );
    assert!(hint("tag", "x of acme/policy").ends_with("`deltaic tag list acme/policy`"));
    assert!(hint("store", "/s").contains("`deltaic init /s`"));
    let named = |hint| with_place(hint, "--store /s");
    assert_eq!(
        named("see `deltaic log a`, then `deltaic tag list a`"),
        "see `deltaic --store /s log a`, then `deltaic --store /s tag list a`"
    );
    for plain in [
        "see `deltaic help`",
        "see `deltaic diff --help`",
        "make one with `deltaic init x`",
        "none",
    ] {
        assert_eq!(named(plain), plain);
    }
}
