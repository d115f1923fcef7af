use super::*;
use std::path::PathBuf;

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
    assert_eq!(codes, [0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 130]);
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
fn system_errors_are_told_without_their_number() {
    let error = io::Error::from_raw_os_error(2);
    assert_eq!(plain_io(&error), "No such file or directory");
}
