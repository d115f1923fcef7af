//! Serving a store over gRPC: the services of `deltaic.v1` over an `Arc<Store>`.
//!
//! | question | module |
//! |---|---|
//! | who is let in, and for how long? | `connections` |
//! | which requests are read at a time? | `intake` |
//! | what is logged of a call, and which ones are running? | `calls` |
//! | how are requests read? | `codec` |
//! | how do errors travel? | `status` |
//! | how many calls reach the store at once? | `work` |
//! | who computes what others ask for as well? | `shared` |
//! | how is a fetch answered? | `fetch` |
//! | how does an upload survive its connection? | `upload` |
//! | how are versions followed without a gap? | `follow` |
//! | what happens at the end? | `shutdown` |

mod admin;
mod calls;
mod changes;
mod codec;
mod connections;
mod fetch;
mod follow;
mod intake;
mod leases;
mod progress;
mod session;
mod shared;
mod shutdown;
mod state;
mod status;
mod steps;
mod transfer;
mod upload;
mod versions;
mod work;

#[cfg(test)]
mod tests;

pub use changes::Changes;
pub use shutdown::Shutdown;

pub(crate) use follow::{Follower, history_page};
pub(crate) use progress::Cancellable;
pub(crate) use upload::append_items;
pub(crate) use work::{Work, Workers};

use crate::report::{Failure, Kind, Result};
use calls::CallLayer;
use connections::{Gate, accept, admit};
use deltaic_format::wire::{DESCRIPTORS, MAX_MESSAGE_BYTES};
use deltaic_store::Store;
use futures::Stream;
use intake::Intake;
use state::State;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::{Connected, Router};
use tower::layer::util::{Identity, Stack};

/// What a server listens on and how much it lets itself be asked.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where it listens; port 0 is any that is free.
    pub listen: SocketAddr,
    /// Whether it may listen where others than this machine reach it, though nothing is encrypted and nobody is asked who
    /// they are.
    pub insecure: bool,
    /// Connections at a time; those beyond are closed at once.
    pub max_connections: usize,
    /// Calls at a time on one connection.
    pub max_streams_per_connection: u32,
    /// Answers being sent at a time: fetches, files and versions.
    pub max_transfers: usize,
    /// Uploads at a time.
    pub max_uploads: usize,
    /// Bytes that one upload sends at most.
    pub max_upload_bytes: u64,
    /// Branches being followed at a time.
    pub max_watches: usize,
    /// Memory for chunks that may be asked for again, in bytes.
    pub cache_bytes: u64,
    /// Something is sent on a stream at least this often.
    pub heartbeat: Duration,
    /// How often a silent connection is asked whether it is still there; it is closed if it does not answer as long again.
    pub keepalive: Duration,
    /// A connection that does not begin to speak HTTP/2 for so long is closed.
    pub greeting: Duration,
    /// A call that is answered at once takes no longer than this.
    pub request_timeout: Duration,
    /// An upload, or a reader of a file, that does nothing for so long is given up.
    pub idle: Duration,
    /// After the first signal, how long running calls may go on.
    pub drain: Duration,
    /// Told of changes of refs that are made in this process beside the server.
    pub changes: Changes,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7421)),
            insecure: false,
            max_connections: 1024,
            max_streams_per_connection: 128,
            max_transfers: 512,
            max_uploads: 64,
            max_upload_bytes: 4 << 40,
            max_watches: 4096,
            cache_bytes: 256 << 20,
            heartbeat: Duration::from_secs(5),
            keepalive: Duration::from_secs(20),
            greeting: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            drain: Duration::from_secs(30),
            changes: Changes::default(),
        }
    }
}

/// A server that has its address and does not serve yet.
#[derive(Debug)]
pub struct Server {
    store: Arc<Store>,
    options: ServeOptions,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Take the address that `options` names.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if others than this machine would reach it and that is not allowed; [`Kind::Unavailable`] if the
    /// address cannot be had.
    pub async fn bind(store: Arc<Store>, options: ServeOptions) -> Result<Self> {
        let listen = options.listen;
        if !listen.ip().to_canonical().is_loopback() && !options.insecure {
            let what = format!(
                "{listen} can be reached from other machines, and nothing that is sent is encrypted or asks who is there"
            );
            let hint = "listen on 127.0.0.1, or add --insecure if the network can be trusted";
            return Err(Failure::usage(what).hint(hint));
        }
        let cannot = |error: io::Error| {
            Failure::new(
                Kind::Unavailable,
                format!("cannot listen on {listen}: {error}"),
            )
            .hint("is another server running there? Choose another address with --listen")
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self {
            store,
            options,
            listener,
            address,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serve until `shutdown` asks for the end and what was running has ended, or may not go on.
    ///
    /// # Errors
    ///
    /// If the services cannot be set up.
    pub async fn run(self, shutdown: Shutdown) -> Result<()> {
        let Self {
            store,
            options,
            listener,
            address,
        } = self;
        tracing::info!(%address, store = %store.root().display(), "serving");
        serve_connections(store, options, accept(listener), shutdown).await
    }
}

/// Serve connections that someone hands in, such as one end of a [`tokio::io::duplex`], as [`Server::run`] does those that
/// it accepts. The end of `incoming` ends no connection.
///
/// # Errors
///
/// As [`Server::run`].
pub async fn serve_connections<IO>(
    store: Arc<Store>,
    options: ServeOptions,
    incoming: impl Stream<Item = io::Result<IO>> + Send + 'static,
    shutdown: Shutdown,
) -> Result<()>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let state = Arc::new(State::new(store, options, &shutdown));
    let (health, router) = services(&state)?;
    let gate = Gate::new(&state.options, shutdown.now.clone());
    let incoming = admit(gate, incoming);
    let stop = shutdown.drain.clone().cancelled_owned();
    let sweeping = tokio::spawn(sweep(state.clone()));
    let _sweeping = AbortOnDropHandle::new(sweeping);
    let serving = router.serve_with_incoming_shutdown(incoming, stop);
    let result = shutdown::supervise(serving, &state, &health, &shutdown).await;
    result.map_err(|error| Failure::new(Kind::Error, format!("the server failed: {error}")))
}

/// Time between two looks for what is left of uploads that nobody goes on with.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60 * 60);

async fn sweep(state: Arc<State>) {
    loop {
        tokio::time::sleep(BETWEEN_SWEEPS).await;
        let swept = state.with_store(Work::Short, Store::sweep_uploads).await;
        if let Err(error) = swept {
            tracing::warn!(%error, "what is left of uploads cannot be swept");
        }
    }
}

/// The services, each call of which passes through the intake and the log of calls.
type Services = Router<Stack<Intake, Stack<CallLayer, Identity>>>;

/// All services with their limits.
fn services(state: &Arc<State>) -> Result<(tonic_health::server::HealthReporter, Services)> {
    use admin_server::AdminServer;
    use leases_server::LeasesServer;
    use session_server::SessionServer;
    use transfer_server::TransferServer;
    use versions_server::VersionsServer;

    /// Requests that name things are short; a revert has a message and metadata.
    const SMALL_MESSAGE_BYTES: usize = 4 << 20;

    let options = &state.options;
    let window = window_of(options.max_connections);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1()
        .map_err(|error| Failure::new(Kind::Error, format!("no reflection: {error}")))?;
    let (health, health_service) = tonic_health::server::health_reporter();
    let router = tonic::transport::Server::builder()
        .max_concurrent_streams(options.max_streams_per_connection)
        .concurrency_limit_per_connection(options.max_streams_per_connection as usize)
        .initial_stream_window_size(stream_window(options))
        .initial_connection_window_size(window)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(32))
        .http2_keepalive_interval(Some(options.keepalive))
        .http2_keepalive_timeout(Some(options.keepalive))
        .layer(CallLayer::new(&state.calls))
        .layer(Intake::new(options.request_timeout))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(
            SessionServer::new(session::Sessions::new(state))
                .max_decoding_message_size(SMALL_MESSAGE_BYTES),
        )
        .add_service(
            VersionsServer::new(versions::Versions::new(state))
                .max_decoding_message_size(SMALL_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(
            TransferServer::new(transfer::Transfer::new(state))
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(
            AdminServer::new(admin::Admin::new(state))
                .max_decoding_message_size(SMALL_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(
            LeasesServer::new(leases::Leases::new(state))
                .max_decoding_message_size(SMALL_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        );
    Ok((health, router))
}

/// What all connections together may have under way to the server: that much memory it takes if nothing of it is read.
const WINDOWS_BYTES: u64 = 8 << 30;

/// What one may have under way: 8 MiB carry 400 Mbit/s over a long link of 150 ms.
fn window_of(connections: usize) -> u32 {
    let share = WINDOWS_BYTES / (connections as u64).max(1);
    share.clamp(1 << 20, 16 << 20) as u32
}

/// What one stream of a connection may have under way: three quarters of that.
fn stream_window(options: &ServeOptions) -> u32 {
    window_of(options.max_connections) / 4 * 3
}

/// Headers of one request.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// The servers of the services in `format-spec/proto`, made by the build script.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    rustdoc::all,
    reason = "made from the proto files"
)]
#[doc(hidden)]
pub mod made {
    include!(concat!(env!("OUT_DIR"), "/deltaic.v1.rs"));
}

use made::{admin_server, leases_server, session_server, transfer_server, versions_server};
