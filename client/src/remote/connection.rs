//! One connection: made, agreed on, watched for silence, and hung up when nobody uses it any more.

use super::endpoints::{Address, Place};
use super::line::{Dial, Line, Signs};
use super::options::RemoteOptions;
use super::relay::Headway;
use super::rpc::admin_client::AdminClient;
use super::rpc::session_client::SessionClient;
use super::rpc::transfer_client::TransferClient;
use super::rpc::versions_client::VersionsClient;
use super::silence::Silence;
use super::status::{Failure, Fault, Gone, causes};
use crate::error::ClientError;
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{self, proto};
use futures::FutureExt as _;
use hyper_util::rt::TokioIo;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status, Streaming};

/// What may be under way to this end on one stream, and on all: a gigabit for a quarter of a second, and twice that.
const STREAM_WINDOW: u32 = 32 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// Largest HTTP/2 frame that this end takes.
const FRAME_BYTES: u32 = 1 << 18;

/// Largest trailers that this end takes: the details of a refusal.
const HEADER_BYTES: u32 = 1 << 16;

/// How often the other end is asked for a sign of life while streams are open.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// How often a watcher is asked whether to stop.
pub(super) const ASK: Duration = Duration::from_millis(100);

/// How long the end of a stream whose last message came is waited for.
const CLOSING: Duration = Duration::from_millis(500);

/// A connection to a server that speaks a protocol of this build. It is hung up with its last reference.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: Arc<str>,
    place: Place,
    channel: Channel,
    stall: Duration,
    /// Longest time without progress.
    patience: Duration,
    /// Largest message that the server takes.
    max_message: usize,
    signs: Arc<Signs>,
    retired: AtomicBool,
    _hang_up: DropGuard,
}

impl Connection {
    /// Connect to a server and agree on a protocol.
    pub(super) async fn open(
        dial: &dyn Dial,
        (place, address): (Place, &Address),
        options: &RemoteOptions,
    ) -> Result<Self, Failure> {
        let connect = Self::connect(dial, (place, address), options);
        match timeout(options.connect_timeout, connect).await {
            Ok(connection) => connection,
            Err(_) => {
                let after = options.connect_timeout.as_secs_f64();
                Err(Failure::unsent(
                    &address.text,
                    format!("no answer within {after} s"),
                ))
            }
        }
    }

    async fn connect(
        dial: &dyn Dial,
        (place, address): (Place, &Address),
        options: &RemoteOptions,
    ) -> Result<Self, Failure> {
        let endpoint = address.text.clone();
        let failed =
            |error: &(dyn std::error::Error + 'static)| Failure::unsent(&endpoint, causes(error));
        let link = dial.dial(&endpoint).await.map_err(|error| failed(&error))?;
        let hung_up = CancellationToken::new();
        let signs = Arc::new(Signs::default());
        let line = Line::new(link, hung_up.clone(), signs.clone());
        // tonic would connect anew by itself, without a handshake; so it gets this one line and no other.
        let mut line = Some(TokioIo::new(line));
        let connector = tower::service_fn(move |_: Uri| {
            let line = line.take().ok_or_else(|| io::Error::other(Gone));
            async move { line }
        });
        let channel = settings(address, options)
            .connect_with_connector(connector)
            .await
            .map_err(|error| failed(&error))?;
        let mut connection = Self {
            endpoint: endpoint.clone(),
            place,
            channel,
            stall: options.stall_timeout,
            patience: options.progress_timeout,
            max_message: wire::MAX_MESSAGE_BYTES,
            signs,
            retired: AtomicBool::new(false),
            _hang_up: hung_up.drop_guard(),
        };
        connection.max_message =
            connection
                .agree(options)
                .await
                .map_err(|failure| match failure.error {
                    ClientError::Unreachable { what, .. } => Failure::unsent(&endpoint, what),
                    _ => failure,
                })?;
        Ok(connection)
    }

    /// Agree on a protocol, and learn how long a message the server takes.
    async fn agree(&self, options: &RemoteOptions) -> Result<usize, Failure> {
        let request = proto::HandshakeRequest {
            oldest_protocol: wire::OLDEST_PROTOCOL,
            newest_protocol: wire::PROTOCOL,
            software: options.software.clone(),
            codings: Vec::new(),
        };
        let mut session = SessionClient::new(self.channel.clone());
        let answer = self.answer(session.handshake(request)).await?;
        check_protocol(&self.endpoint, answer.protocol)?;
        let heartbeat = Duration::from_millis(answer.heartbeat_ms);
        if heartbeat.saturating_mul(2) > options.stall_timeout {
            let endpoint = &*self.endpoint;
            tracing::warn!(endpoint, ?heartbeat, stall_timeout = ?options.stall_timeout, "a busy server will look stalled");
        }
        tracing::debug!(
            endpoint = &*self.endpoint,
            protocol = answer.protocol,
            ?heartbeat,
            "connected"
        );
        Ok(longest(answer.max_message_bytes))
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The server's place among those that are known.
    pub(super) fn server(&self) -> usize {
        self.place.server
    }

    /// Longest time without a sign of life while a message is waited for.
    pub(super) fn stall(&self) -> Duration {
        self.stall
    }

    /// Longest time without progress.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Bytes that have come over it, for whatever call.
    pub(super) fn came(&self) -> u64 {
        self.signs.came()
    }

    /// Largest message that the server takes, in bytes.
    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    /// Whether new calls to a server may use it.
    pub(super) fn serves(&self, place: Place) -> bool {
        self.place == place && !self.signs.ended() && !self.retired.load(Ordering::Acquire)
    }

    /// Let no new call use it; those that do go on.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    pub(super) fn versions(&self) -> VersionsClient<Channel> {
        VersionsClient::new(self.channel.clone())
            .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(self.max_message)
    }

    pub(super) fn transfer(&self) -> TransferClient<Channel> {
        TransferClient::new(self.channel.clone())
            .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(self.max_message)
    }

    pub(super) fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel.clone())
            .max_decoding_message_size(wire::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(self.max_message)
    }

    /// The answer to a call, or that none came for too long.
    pub(super) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let mut call = pin!(AssertUnwindSafe(call).catch_unwind());
        let mut silence = Silence::new(self);
        loop {
            match timeout_at(silence.next_look(), &mut call).await {
                Err(_) => silence.look(self)?,
                Ok(Err(_)) => return Err(self.unreadable_status()),
                Ok(Ok(Err(status))) => return Err(Failure::status(&self.endpoint, &status)),
                Ok(Ok(Ok(response))) => return Ok(response.into_inner()),
            }
        }
    }

    /// The answer to a call that is a row of messages.
    pub(super) async fn open_stream<T>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Incoming<T>, Failure> {
        Ok(Incoming {
            stream: self.answer(call).await?,
            connection: self.clone(),
        })
    }

    pub(super) fn fault(&self, fault: impl Into<Fault>) -> Failure {
        Failure::fault(&self.endpoint, fault.into())
    }

    /// tonic panics where the details of a status are not in base64; what is left of the call is dropped then.
    fn unreadable_status(&self) -> Failure {
        self.fault(Fault::Protocol("a status that cannot be read".to_owned()))
    }
}

fn settings(address: &Address, options: &RemoteOptions) -> Endpoint {
    Endpoint::from(address.uri.clone())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keep_alive_interval(PING_INTERVAL)
        // Whoever waits for a message notices first, and knows for what; the answer to a ping may be behind many bytes.
        .keep_alive_timeout(options.progress_timeout.max(options.stall_timeout))
        .keep_alive_while_idle(false)
}

/// Largest message that is sent to a server which says that it takes this many bytes.
fn longest(says: u64) -> usize {
    match usize::try_from(says) {
        Ok(0) | Err(_) => wire::MAX_MESSAGE_BYTES,
        Ok(says) => says.min(wire::MAX_MESSAGE_BYTES),
    }
}

/// Whether the protocol that a server chose is one of this build's.
fn check_protocol(endpoint: &str, protocol: u32) -> Result<(), Failure> {
    if (wire::OLDEST_PROTOCOL..=wire::PROTOCOL).contains(&protocol) {
        return Ok(());
    }
    Err(Failure::refused(Refusal::Incompatible {
        what: format!(
            "{endpoint} speaks protocol {protocol}, this build {} to {}",
            wire::OLDEST_PROTOCOL,
            wire::PROTOCOL
        ),
    }))
}

/// Messages of a server as they come. Dropped before its end, the call is given up.
#[derive(Debug)]
pub(super) struct Incoming<T> {
    stream: Streaming<T>,
    connection: Arc<Connection>,
}

impl<T> Incoming<T> {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Failure> {
        let mut silence = self.silence();
        self.next_in(&mut silence).await
    }

    /// A silence that begins now.
    pub(super) fn silence(&self) -> Silence {
        Silence::new(&self.connection)
    }

    /// The next message, if it ends the silence soon enough. Dropped before it came, no message is lost.
    pub(super) async fn next_in(&mut self, silence: &mut Silence) -> Result<Option<T>, Failure> {
        loop {
            match timeout_at(silence.next_look(), self.message()).await {
                Ok(message) => return message,
                Err(_) => silence.look(&self.connection)?,
            }
        }
    }

    /// The next message, whenever it comes.
    async fn message(&mut self) -> Result<Option<T>, Failure> {
        match AssertUnwindSafe(self.stream.message()).catch_unwind().await {
            Err(_) => Err(self.connection.unreadable_status()),
            Ok(Err(status)) => Err(Failure::status(&self.connection.endpoint, &status)),
            Ok(Ok(message)) => Ok(message),
        }
    }

    /// The next message, of those of which one must still come, unless `watcher` wants to stop.
    pub(super) async fn next_watched(&mut self, watcher: &dyn Progress) -> Result<T, Failure> {
        let mut silence = self.silence();
        loop {
            if watcher.cancelled() {
                return Err(Failure::own(ClientError::Interrupted));
            }
            if let Ok(message) = timeout(ASK, self.next_in(&mut silence)).await {
                return message?.ok_or_else(|| self.cut());
            }
        }
    }

    pub(super) fn fault(&self, fault: impl Into<Fault>) -> Failure {
        self.connection.fault(fault)
    }

    /// Fail if nothing but signs of life has come for too long.
    pub(super) fn check_progress(&self, headway: &Headway) -> Result<(), Failure> {
        let patience = self.connection.patience;
        match headway.still() > patience {
            true => Err(Failure::stalled(&self.connection.endpoint, patience)),
            false => Ok(()),
        }
    }

    /// The stream ended where more must come.
    pub(super) fn cut(&self) -> Failure {
        Failure::lost(&self.connection.endpoint, "the answer was cut off")
    }

    /// Take the end of a stream whose last message came, so that the server sees it taken rather than given up.
    pub(super) async fn close(mut self) {
        let _ = timeout(CLOSING, self.message()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::status::Kind;

    #[test]
    fn no_server_is_sent_more_than_it_takes() {
        assert_eq!(longest(0), wire::MAX_MESSAGE_BYTES);
        assert_eq!(longest(u64::MAX), wire::MAX_MESSAGE_BYTES);
        assert_eq!(longest(1 << 20), 1 << 20);
    }

    #[test]
    fn protocols_of_another_age_are_refused() {
        assert!(check_protocol("http://e", wire::PROTOCOL).is_ok());
        for other in [wire::OLDEST_PROTOCOL - 1, wire::PROTOCOL + 1, u32::MAX] {
            let failure = check_protocol("http://e", other).expect_err("refused");
            assert_eq!(failure.kind, Kind::Final);
            assert!(matches!(
                failure.error,
                ClientError::Refused(Refusal::Incompatible { .. })
            ));
        }
    }
}
