//! Refusals as a reason and named fields, the way `google.rpc.ErrorInfo` carries them.

use crate::ids::CommitId;
use crate::refusal::Refusal;
use std::collections::HashMap;
use std::time::Duration;

/// The `domain` of an `ErrorInfo` that this module made.
pub const DOMAIN: &str = "deltaic.v1";

/// The reason of a refusal and what it names.
pub fn refusal_to_reason(refusal: &Refusal) -> (&'static str, HashMap<String, String>) {
    let (reason, fields): (_, Vec<(&str, String)>) = match refusal.clone() {
        Refusal::NotFound { kind, name } => ("NOT_FOUND", vec![("kind", kind), ("name", name)]),
        Refusal::Conflict { what } => ("CONFLICT", vec![("what", what)]),
        Refusal::Ambiguous { prefix, candidates } => {
            let ids: Vec<String> = candidates.iter().map(ToString::to_string).collect();
            let fields = vec![("prefix", prefix), ("candidates", ids.join(" "))];
            ("AMBIGUOUS", fields)
        }
        Refusal::Corrupt { object, what } => ("CORRUPT", vec![("object", object), ("what", what)]),
        Refusal::NoSpace { place } => ("NO_SPACE", vec![("place", place)]),
        Refusal::Checkpoint { what } => ("CHECKPOINT", vec![("what", what)]),
        Refusal::Upload { what } => ("UPLOAD", vec![("what", what)]),
        Refusal::Damaged { what } => ("DAMAGED", vec![("what", what)]),
        Refusal::Invalid { what } => ("INVALID", vec![("what", what)]),
        Refusal::Exhausted { what, retry_after } => {
            let mut fields = vec![("what", what)];
            if let Some(after) = retry_after {
                fields.push(("retry_after_ms", after.as_millis().to_string()));
            }
            ("EXHAUSTED", fields)
        }
        Refusal::Unavailable { what } => ("UNAVAILABLE", vec![("what", what)]),
        Refusal::Incompatible { what } => ("INCOMPATIBLE", vec![("what", what)]),
        Refusal::Interrupted => ("INTERRUPTED", vec![]),
        Refusal::Failed { what } => ("FAILED", vec![("what", what)]),
    };
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    (reason, fields.collect())
}

/// The refusal with a reason; one that this build does not know is told by its message.
pub fn refusal_from_reason(
    reason: &str,
    message: &str,
    fields: &HashMap<String, String>,
) -> Refusal {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let what = || {
        fields
            .get("what")
            .cloned()
            .unwrap_or_else(|| message.to_owned())
    };
    match reason {
        "NOT_FOUND" => Refusal::NotFound {
            kind: field("kind"),
            name: field("name"),
        },
        "CONFLICT" => Refusal::Conflict { what: what() },
        "AMBIGUOUS" => Refusal::Ambiguous {
            prefix: field("prefix"),
            candidates: (field("candidates").split_whitespace())
                .filter_map(|id| id.parse::<CommitId>().ok())
                .collect(),
        },
        "CORRUPT" => Refusal::Corrupt {
            object: field("object"),
            what: what(),
        },
        "NO_SPACE" => Refusal::NoSpace {
            place: field("place"),
        },
        "CHECKPOINT" => Refusal::Checkpoint { what: what() },
        "UPLOAD" => Refusal::Upload { what: what() },
        "DAMAGED" => Refusal::Damaged { what: what() },
        "INVALID" => Refusal::Invalid { what: what() },
        "EXHAUSTED" => Refusal::Exhausted {
            what: what(),
            retry_after: (field("retry_after_ms").parse().ok()).map(Duration::from_millis),
        },
        "UNAVAILABLE" => Refusal::Unavailable { what: what() },
        "INCOMPATIBLE" => Refusal::Incompatible { what: what() },
        "INTERRUPTED" => Refusal::Interrupted,
        _ => Refusal::Failed { what: what() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_comes_back_as_it_was_sent() {
        let what = || "it is so".to_owned();
        for refusal in [
            Refusal::NotFound {
                kind: "branch".into(),
                name: "dev of acme/policy".into(),
            },
            Refusal::Conflict { what: what() },
            Refusal::Ambiguous {
                prefix: "3f9a".into(),
                candidates: vec![CommitId([7; 32]), CommitId([8; 32])],
            },
            Refusal::Corrupt {
                object: "tree".into(),
                what: what(),
            },
            Refusal::NoSpace { place: "S".into() },
            Refusal::Checkpoint { what: what() },
            Refusal::Upload { what: what() },
            Refusal::Damaged { what: what() },
            Refusal::Invalid { what: what() },
            Refusal::Exhausted {
                what: what(),
                retry_after: Some(Duration::from_millis(1500)),
            },
            Refusal::Exhausted {
                what: what(),
                retry_after: None,
            },
            Refusal::Unavailable { what: what() },
            Refusal::Incompatible { what: what() },
            Refusal::Interrupted,
            Refusal::Failed { what: what() },
        ] {
            let (reason, fields) = refusal_to_reason(&refusal);
            assert_eq!(refusal_from_reason(reason, "", &fields), refusal);
        }
        let unknown = refusal_from_reason("OF_NEXT_YEAR", "the moon is full", &HashMap::new());
        let expected = Refusal::Failed {
            what: "the moon is full".into(),
        };
        assert_eq!(unknown, expected);
    }
}
