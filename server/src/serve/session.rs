//! The service `Session`: agreeing on how to talk.

use super::made::session_server::Session;
use super::state::State;
use super::status::status;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{MAX_MESSAGE_BYTES, OLDEST_PROTOCOL, PROTOCOL, proto};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status, async_trait};

/// Name and version of this software.
const SOFTWARE: &str = concat!("deltaic ", env!("CARGO_PKG_VERSION"));

/// Of a client's name that much is logged.
const MAX_NAME: usize = 64;

/// The service.
#[derive(Debug)]
pub(crate) struct Sessions {
    heartbeat: Duration,
}

impl Sessions {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self {
            heartbeat: state.options.heartbeat,
        }
    }
}

/// The newest protocol that both speak.
fn agreed(oldest: u32, newest: u32) -> Result<u32, Refusal> {
    let protocol = newest.min(PROTOCOL);
    if protocol >= oldest.max(OLDEST_PROTOCOL) {
        return Ok(protocol);
    }
    let what = format!(
        "the client speaks protocols {oldest} to {newest}, this server ({SOFTWARE}) {OLDEST_PROTOCOL} to {PROTOCOL}; \
         bring the older one up to date"
    );
    Err(Refusal::Incompatible { what })
}

#[async_trait]
impl Session for Sessions {
    async fn handshake(
        &self,
        request: Request<proto::HandshakeRequest>,
    ) -> Result<Response<proto::HandshakeResponse>, Status> {
        let request = request.into_inner();
        let software: String = (request.software.chars())
            .filter(|c| !c.is_control())
            .take(MAX_NAME)
            .collect();
        let (oldest, newest) = (request.oldest_protocol, request.newest_protocol);
        tracing::debug!(software, oldest, newest, "handshake");
        let protocol = agreed(oldest, newest).map_err(status)?;
        Ok(Response::new(proto::HandshakeResponse {
            protocol,
            software: SOFTWARE.to_owned(),
            max_message_bytes: MAX_MESSAGE_BYTES as u64,
            heartbeat_ms: u64::try_from(self.heartbeat.as_millis()).unwrap_or(u64::MAX),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_protocol_is_spoken() {
        assert_eq!(agreed(OLDEST_PROTOCOL, PROTOCOL), Ok(PROTOCOL));
        assert_eq!(agreed(PROTOCOL, PROTOCOL + 5), Ok(PROTOCOL));
        for (oldest, newest) in [
            (PROTOCOL + 1, PROTOCOL + 2),
            (0, OLDEST_PROTOCOL - 1),
            (2, 1),
        ] {
            let refused = agreed(oldest, newest).expect_err("nothing in common");
            assert!(
                matches!(refused, Refusal::Incompatible { .. }),
                "{refused:?}"
            );
        }
    }
}
