//! Refusals as gRPC statuses: a code for everyone, and in the details the reason and what it names, so that a client
//! gets back the refusal that it was.

use super::upload::ending;
use deltaic_format::FormatError;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{DOMAIN, refusal_to_reason};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// A status travels in headers, of which peers take 8 KiB or so.
const MAX_MESSAGE: usize = 512;
const MAX_FIELD: usize = 1024;

/// What a refusal is to those who know nothing of it.
fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::NotFound { .. } => Code::NotFound,
        Refusal::Conflict { .. } => Code::Aborted,
        Refusal::Ambiguous { .. }
        | Refusal::Invalid { .. }
        | Refusal::Upload { .. }
        | Refusal::Checkpoint { .. } => Code::InvalidArgument,
        // What is stored is as good as before, so it is no loss of data.
        Refusal::Damaged { .. } => Code::Aborted,
        Refusal::Corrupt { .. } => Code::DataLoss,
        Refusal::NoSpace { .. } | Refusal::Exhausted { .. } => Code::ResourceExhausted,
        Refusal::Unavailable { .. } => Code::Unavailable,
        Refusal::Incompatible { .. } => Code::FailedPrecondition,
        Refusal::Interrupted => Code::Cancelled,
        _ => Code::Internal,
    }
}

/// A refusal as a status. The log has it in full.
pub(crate) fn status(refusal: Refusal) -> Status {
    let refusal = match refusal {
        // Whoever is told has not stopped anything: it is the server that does.
        Refusal::Interrupted => ending(),
        refusal => refusal,
    };
    match code(&refusal) {
        Code::Internal | Code::DataLoss => tracing::error!(%refusal, "failed"),
        _ => tracing::debug!(%refusal, "refused"),
    }
    let (reason, fields) = refusal_to_reason(&refusal);
    let fields = fields.into_iter().map(|(name, value)| {
        // Half an id is none.
        let whole_words = name == "candidates";
        (name, shortened(value, MAX_FIELD, whole_words))
    });
    let mut details = ErrorDetails::with_error_info(
        reason,
        DOMAIN,
        fields.collect::<std::collections::HashMap<_, _>>(),
    );
    if let Refusal::Exhausted {
        retry_after: Some(after),
        ..
    } = &refusal
    {
        details.set_retry_info(Some(*after));
    }
    let message = shortened(refusal.to_string(), MAX_MESSAGE, false);
    Status::with_error_details(code(&refusal), message, details)
}

fn shortened(mut text: String, most: usize, whole_words: bool) -> String {
    if text.len() <= most {
        return text;
    }
    let boundary = |end: &usize| text.is_char_boundary(*end);
    let mut end = (0..=most).rev().find(boundary).unwrap_or(0);
    if whole_words {
        end = text[..end].rfind(' ').unwrap_or(0);
    }
    text.truncate(end);
    if !whole_words {
        text.push('…');
    }
    text
}

/// What a client sent is none of what it may send, or not what it sent.
pub(crate) fn invalid(error: FormatError) -> Refusal {
    let what = error.to_string();
    match error {
        FormatError::Checksum { .. } => Refusal::Damaged { what },
        _ => Refusal::Invalid { what },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::ids::CommitId;
    use deltaic_format::wire::refusal_from_reason;
    use std::time::Duration;

    fn back(status: &Status) -> Refusal {
        let details = status.get_error_details();
        let info = details.error_info().expect("a reason");
        assert_eq!(info.domain, DOMAIN);
        refusal_from_reason(&info.reason, status.message(), &info.metadata)
    }

    #[test]
    fn a_client_gets_back_the_refusal_that_it_was() {
        let what = || "it is so".to_owned();
        let not_found = Refusal::NotFound {
            kind: "branch".into(),
            name: "dev of acme/policy".into(),
        };
        let exhausted = Refusal::Exhausted {
            what: what(),
            retry_after: Some(Duration::from_secs(2)),
        };
        let corrupt = Refusal::Corrupt {
            object: "tree".into(),
            what: what(),
        };
        for (refusal, code) in [
            (not_found, Code::NotFound),
            (Refusal::Conflict { what: what() }, Code::Aborted),
            (Refusal::Upload { what: what() }, Code::InvalidArgument),
            (Refusal::Damaged { what: what() }, Code::Aborted),
            (Refusal::Invalid { what: what() }, Code::InvalidArgument),
            (corrupt, Code::DataLoss),
            (Refusal::NoSpace { place: what() }, Code::ResourceExhausted),
            (exhausted, Code::ResourceExhausted),
            (Refusal::Unavailable { what: what() }, Code::Unavailable),
            (
                Refusal::Incompatible { what: what() },
                Code::FailedPrecondition,
            ),
            (Refusal::Failed { what: what() }, Code::Internal),
        ] {
            let status = status(refusal.clone());
            assert_eq!(status.code(), code, "{refusal:?}");
            assert_eq!(back(&status), refusal);
        }
    }

    #[test]
    fn only_clients_interrupt_clients() {
        let status = status(Refusal::Interrupted);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(back(&status), ending());
    }

    #[test]
    fn details_fit_in_headers() {
        let what = "ä".repeat(50_000);
        let status = status(Refusal::Invalid { what });
        assert!(status.details().len() < 4000, "{}", status.details().len());
        assert!(status.message().len() < 600);
        let candidates = vec![CommitId([7; 32]); 1000];
        let prefix = "07".to_owned();
        let many = super::status(Refusal::Ambiguous { prefix, candidates });
        assert!(many.details().len() < 4000);
        let Refusal::Ambiguous { candidates, .. } = back(&many) else {
            panic!("{many:?}");
        };
        assert_eq!(candidates, vec![CommitId([7; 32]); 15]);
    }
}
