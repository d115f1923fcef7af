//! What went wrong with one try of a call: a status of gRPC, or silence, as the client's errors.

use crate::error::ClientError;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Characters of a server's text that are shown at most.
const SHOWN: usize = 2000;

/// Characters of a named field that are kept at most: enough for a few thousand commit ids.
const FIELD: usize = 1 << 18;

/// When to come back to a server that refuses for lack of something and does not say when.
const COME_BACK: Duration = Duration::from_secs(1);

/// Why one try of a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// What the caller is told if it stays at that.
    pub(super) error: ClientError,
    pub(super) kind: Kind,
}

/// What a failure says about another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It would end alike.
    Final,
    /// The server did nothing, for lack of something; another time it may.
    Busy {
        /// Not before so long.
        after: Duration,
    },
    /// The server goes away.
    Leaving,
    /// The server never heard of the call.
    Unsent,
    /// The connection was lost.
    Lost,
    /// Nothing came for too long.
    Stalled,
    /// What came is not what was sent, or not what may be sent.
    Damaged,
    /// The server lacks what another one may have, of several that serve the same.
    Lagging {
        /// Its place among them.
        server: usize,
        /// Whether one of them surely had it.
        known: bool,
    },
}

/// What may be wrong with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It may have changed on its way.
    Damaged(String),
    /// No server may send it.
    Protocol(String),
    /// What was asked for cannot be had.
    Refused(Refusal),
}

impl Failure {
    pub(super) fn lost(endpoint: &str, what: impl fmt::Display) -> Self {
        Self::unreachable(endpoint, what, Kind::Lost)
    }

    pub(super) fn unsent(endpoint: &str, what: impl fmt::Display) -> Self {
        Self::unreachable(endpoint, what, Kind::Unsent)
    }

    fn unreachable(endpoint: &str, what: impl fmt::Display, kind: Kind) -> Self {
        let error = ClientError::Unreachable {
            endpoint: endpoint.to_owned(),
            what: printable(&what.to_string(), SHOWN),
        };
        Self { error, kind }
    }

    pub(super) fn stalled(endpoint: &str, after: Duration) -> Self {
        let endpoint = endpoint.to_owned();
        Self {
            error: ClientError::Stalled { endpoint, after },
            kind: Kind::Stalled,
        }
    }

    /// An error that is the caller's own.
    pub(super) fn own(error: ClientError) -> Self {
        Self {
            error,
            kind: Kind::Final,
        }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        let kind = match &refusal {
            &Refusal::Exhausted {
                retry_after: Some(after),
                ..
            } => Kind::Busy { after },
            Refusal::Unavailable { .. } => Kind::Leaving,
            Refusal::Damaged { .. } => Kind::Damaged,
            _ => Kind::Final,
        };
        Self {
            error: refusal.into(),
            kind,
        }
    }

    pub(super) fn fault(endpoint: &str, fault: Fault) -> Self {
        let (what, kind) = match fault {
            Fault::Refused(refusal) => return Self::refused(refusal),
            Fault::Damaged(what) => (what, Kind::Damaged),
            Fault::Protocol(what) => (what, Kind::Final),
        };
        let error = ClientError::Protocol {
            endpoint: endpoint.to_owned(),
            what: printable(&what, SHOWN),
        };
        Self { error, kind }
    }

    /// What a status means.
    pub(super) fn status(endpoint: &str, status: &Status) -> Self {
        if unsent(status) {
            return Self::unsent(endpoint, "the connection was lost");
        }
        let message = printable(status.message(), SHOWN);
        let details = status.get_details_error_info();
        if let Some(info) = details.filter(|info| info.domain == wire::DOMAIN) {
            let field = |(name, value): (&String, &String)| (name.clone(), printable(value, FIELD));
            let fields: HashMap<_, _> = info.metadata.iter().map(field).collect();
            let refusal = wire::refusal_from_reason(&info.reason, &message, &fields);
            return Self::refused(refusal);
        }
        Self::bare(endpoint, status.code(), message)
    }

    /// What a status without this project's details means: from tonic, HTTP/2, a proxy.
    fn bare(endpoint: &str, code: Code, message: String) -> Self {
        let refused = |what| Self::refused(Refusal::Failed { what });
        let begins = |beginnings: &[&str]| beginnings.iter().any(|b| message.starts_with(b));
        match code {
            Code::ResourceExhausted => Self::refused(Refusal::Exhausted {
                what: message,
                retry_after: Some(COME_BACK),
            }),
            Code::OutOfRange if begins(&["Error, decoded message"]) => {
                let what = "it sends a message longer than there may be".to_owned();
                Self::fault(endpoint, Fault::Protocol(what))
            }
            Code::OutOfRange => Self::refused(Refusal::Exhausted {
                what: format!("a request to {endpoint} is longer than there may be: {message}"),
                retry_after: None,
            }),
            Code::Unimplemented => Self::refused(Refusal::Incompatible {
                what: format!("{endpoint} does not know what it was asked; it may be older"),
            }),
            Code::Unauthenticated | Code::PermissionDenied => {
                refused(format!("{endpoint} does not allow it: {message}"))
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::DataLoss => refused(message),
            Code::Internal if begins(&["failed to decode", "protocol error", "invalid"]) => {
                Self::fault(endpoint, Fault::Damaged(message))
            }
            Code::DeadlineExceeded => Self::lost(endpoint, "the server ran out of time"),
            Code::Ok
            | Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Aborted
            | Code::Internal => Self::lost(endpoint, format!("the connection was lost: {message}")),
        }
    }
}

impl From<deltaic_format::FormatError> for Fault {
    fn from(error: deltaic_format::FormatError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// The connection of a call had ended before the call was sent.
#[derive(Debug)]
pub(super) struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was lost")
    }
}

impl Error for Gone {}

/// Whether the status says that its call was never sent.
fn unsent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<Gone>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// An error with all its causes, once each.
pub(super) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

/// A server's text as it can be shown: without control characters and changes of direction, and not without end.
pub(super) fn printable(text: &str, most: usize) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    let shown = |c| if hidden(c) { '\u{fffd}' } else { c };
    text.chars().take(most).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tonic_types::ErrorDetails;

    fn refusing(refusal: &Refusal, domain: &str) -> Status {
        let (reason, fields) = wire::refusal_to_reason(refusal);
        let details = ErrorDetails::with_error_info(reason, domain, fields);
        Status::with_error_details(Code::Unknown, "no", details)
    }

    #[test]
    fn refusals_cross_the_wire_and_say_whether_to_come_back() {
        let what = || "so\u{1b}[31m".to_owned();
        let not_found = Refusal::NotFound {
            kind: "branch".into(),
            name: "dev of acme/policy".into(),
        };
        let busy = |after| Refusal::Exhausted {
            what: "streams".into(),
            retry_after: after,
        };
        let after = Duration::from_millis(1500);
        for (refusal, kind) in [
            (not_found, Kind::Final),
            (busy(None), Kind::Final),
            (busy(Some(after)), Kind::Busy { after }),
            (Refusal::Unavailable { what: what() }, Kind::Leaving),
            (Refusal::Conflict { what: what() }, Kind::Final),
            (Refusal::Damaged { what: what() }, Kind::Damaged),
            (Refusal::Interrupted, Kind::Final),
        ] {
            let failure = Failure::status("http://e", &refusing(&refusal, wire::DOMAIN));
            assert_eq!(failure.kind, kind);
            let ClientError::Refused(got) = failure.error else {
                panic!("{failure:?}");
            };
            assert_eq!(
                got.to_string(),
                refusal.to_string().replace('\u{1b}', "\u{fffd}")
            );
        }
    }

    #[test]
    fn other_details_mean_nothing() {
        let status = refusing(&Refusal::Interrupted, "example.org");
        assert_eq!(Failure::status("http://e", &status).kind, Kind::Lost);
    }

    #[test]
    fn bare_statuses_are_understood() {
        let failure =
            |code, message: &str| Failure::status("http://e", &Status::new(code, message));
        let kind = |code, message| failure(code, message).kind;
        assert_eq!(kind(Code::Unavailable, "tcp"), Kind::Lost);
        assert_eq!(kind(Code::Unknown, "tcp"), Kind::Lost);
        assert_eq!(kind(Code::Cancelled, "h2"), Kind::Lost);
        assert_eq!(kind(Code::Internal, "h2 protocol error: x"), Kind::Lost);
        assert_eq!(
            kind(Code::Internal, "Unexpected EOF decoding stream."),
            Kind::Lost
        );
        let undecodable = failure(Code::Internal, "failed to decode Protobuf message: x");
        assert_eq!(undecodable.kind, Kind::Damaged);
        assert!(matches!(undecodable.error, ClientError::Protocol { .. }));
        let busy = Kind::Busy { after: COME_BACK };
        assert_eq!(kind(Code::ResourceExhausted, "x"), busy);
        let refusal = |code, message| match failure(code, message).error {
            ClientError::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        };
        assert!(matches!(
            refusal(Code::OutOfRange, "Error, encoded message length too large"),
            Refusal::Exhausted {
                retry_after: None,
                ..
            }
        ));
        assert!(matches!(
            failure(Code::OutOfRange, "Error, decoded message length too large").error,
            ClientError::Protocol { .. }
        ));
        assert!(matches!(
            refusal(Code::Unimplemented, ""),
            Refusal::Incompatible { .. }
        ));
        assert!(matches!(
            refusal(Code::PermissionDenied, "no"),
            Refusal::Failed { .. }
        ));
        assert!(matches!(
            refusal(Code::NotFound, "no"),
            Refusal::Failed { .. }
        ));
    }

    #[test]
    fn a_call_that_found_no_connection_was_never_sent() {
        let mut status = Status::unavailable("x");
        status.set_source(Arc::new(tonic::ConnectError(Box::new(Gone))));
        assert_eq!(Failure::status("http://e", &status).kind, Kind::Unsent);
    }

    #[test]
    fn text_of_a_server_is_made_harmless() {
        assert_eq!(printable("a\nb\u{202e}c", 10), "a\u{fffd}b\u{fffd}c");
        assert_eq!(printable("äbcdef", 3), "äbc");
    }
}
