//! A server that does what a test says, over links in memory that break where a test says.

use crate::remote::{Dial, Link, Remote, RemoteOptions};
use bytes::Bytes;
use deltaic_format::wire::{self, proto};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

pub(super) type Answers<T> = BoxStream<'static, Result<T, Status>>;
type Unary<I, O> = Box<dyn Fn(I) -> Result<O, Status> + Send + Sync>;
type Streamed<I, O> = Box<dyn Fn(I) -> Answers<O> + Send + Sync>;

/// What the server does.
pub(super) struct Script {
    pub(super) protocol: u32,
    pub(super) repos: Unary<proto::ListRepositoriesRequest, proto::ListRepositoriesResponse>,
    pub(super) branches: Unary<proto::ListBranchesRequest, proto::ListBranchesResponse>,
    pub(super) resolve: Streamed<proto::ResolveRequest, proto::ResolveResponse>,
    pub(super) snapshot: Streamed<proto::GetSnapshotRequest, proto::GetSnapshotResponse>,
    pub(super) create: Unary<proto::CreateBranchRequest, proto::CreateBranchResponse>,
    pub(super) watch: Streamed<proto::WatchRequest, proto::WatchResponse>,
    pub(super) fetch: Streamed<proto::FetchRequest, proto::FetchResponse>,
    pub(super) upload: Streamed<Streaming<proto::UploadRequest>, proto::UploadResponse>,
    /// Answers everything but the handshake with a status whose details are no base64.
    pub(super) bad_status: bool,
}

impl Default for Script {
    fn default() -> Self {
        fn unexpected() -> Status {
            Status::unimplemented("no test asks for it")
        }
        fn none<T: Send + 'static>() -> Answers<T> {
            futures::stream::once(async { Err(unexpected()) }).boxed()
        }
        Self {
            protocol: wire::PROTOCOL,
            repos: Box::new(|_| Err(unexpected())),
            branches: Box::new(|_| Err(unexpected())),
            resolve: Box::new(|_| none()),
            snapshot: Box::new(|_| none()),
            create: Box::new(|_| Err(unexpected())),
            watch: Box::new(|_| none()),
            fetch: Box::new(|_| none()),
            upload: Box::new(|_| none()),
            bad_status: false,
        }
    }
}

async fn unary<I, O>(call: &Unary<I, O>, request: http::Request<Body>) -> http::Response<Body>
where
    I: prost::Message + Default + 'static,
    O: prost::Message + Default + 'static,
{
    let answer =
        |request: Request<I>| std::future::ready(call(request.into_inner()).map(Response::new));
    Grpc::new(ProstCodec::default())
        .unary(service_fn(answer), request)
        .await
}

async fn streamed<I, O>(call: &Streamed<I, O>, request: http::Request<Body>) -> http::Response<Body>
where
    I: prost::Message + Default + 'static,
    O: prost::Message + Default + 'static,
{
    let answer =
        |request: Request<I>| std::future::ready(Ok(Response::new(call(request.into_inner()))));
    Grpc::new(ProstCodec::default())
        .server_streaming(service_fn(answer), request)
        .await
}

async fn both_ways(script: &Script, request: http::Request<Body>) -> http::Response<Body> {
    let answer = |request: Request<Streaming<proto::UploadRequest>>| {
        std::future::ready(Ok(Response::new((script.upload)(request.into_inner()))))
    };
    Grpc::new(ProstCodec::default())
        .streaming(service_fn(answer), request)
        .await
}

async fn serve(script: Arc<Script>, request: http::Request<Body>) -> http::Response<Body> {
    let handshake: Unary<proto::HandshakeRequest, _> = {
        let protocol = script.protocol;
        Box::new(move |_| {
            Ok(proto::HandshakeResponse {
                protocol,
                heartbeat_ms: 5000,
                ..Default::default()
            })
        })
    };
    let path = request.uri().path().to_owned();
    match path.trim_start_matches("/deltaic.v1.") {
        "Session/Handshake" => unary(&handshake, request).await,
        _ if script.bad_status => http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "3")
            .header("grpc-status-details-bin", "!!!")
            .body(Body::empty())
            .unwrap(),
        "Versions/ListRepositories" => unary(&script.repos, request).await,
        "Versions/ListBranches" => unary(&script.branches, request).await,
        "Versions/Resolve" => streamed(&script.resolve, request).await,
        "Versions/GetSnapshot" => streamed(&script.snapshot, request).await,
        "Versions/CreateBranch" => unary(&script.create, request).await,
        "Versions/Watch" => streamed(&script.watch, request).await,
        "Transfer/Fetch" => streamed(&script.fetch, request).await,
        "Transfer/Upload" => both_ways(&script, request).await,
        other => panic!("no test asks for {other}"),
    }
}

macro_rules! services {
    ($($service:ident $name:literal),*) => {$(
        #[derive(Clone)]
        struct $service(Arc<Script>);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                serve(self.0.clone(), request).map(Ok).boxed()
            }
        }
    )*};
}

services!(Sessions "deltaic.v1.Session", Versions "deltaic.v1.Versions", Transfers "deltaic.v1.Transfer");

/// What befalls what comes from the server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Break {
    Cut,
    Stall,
}

type Accepting = mpsc::UnboundedSender<io::Result<DuplexStream>>;

/// Links to a server, or to several.
pub(super) struct Links {
    /// Each one's endpoint; all others are the first one's.
    servers: Vec<(&'static str, Accepting)>,
    /// After how many bytes each of the next connections breaks, the last one first; those after them never do.
    pub(super) breaks: Mutex<Vec<(u64, Break)>>,
    pub(super) dialled: AtomicUsize,
    /// The endpoints that were dialled, in turn.
    pub(super) dials: Mutex<Vec<String>>,
    /// Endpoints that nobody listens at.
    pub(super) down: Mutex<Vec<&'static str>>,
    /// Endpoints that nothing comes from any more, on whatever link.
    pub(super) silent: Arc<Mutex<Vec<&'static str>>>,
    /// How many bytes a new link brings in a second at most; 0: any number.
    pub(super) rate: AtomicUsize,
    /// Bytes that came from the server on the last connection.
    pub(super) came: Arc<AtomicU64>,
}

impl Dial for Links {
    fn dial<'a>(&'a self, endpoint: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>> {
        Box::pin(async move {
            self.dialled.fetch_add(1, Ordering::SeqCst);
            self.dials.lock().unwrap().push(endpoint.to_owned());
            if self.down.lock().unwrap().contains(&endpoint) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (here, there) = tokio::io::duplex(1 << 16);
            let own = self.servers.iter().find(|(name, _)| *name == endpoint);
            let (_, server) = own.unwrap_or(&self.servers[0]);
            server.send(Ok(there)).map_err(io::Error::other)?;
            self.came.store(0, Ordering::SeqCst);
            let broken = Broken {
                link: here,
                breaks: self.breaks.lock().unwrap().pop(),
                came: self.came.clone(),
                endpoint: endpoint.to_owned(),
                silent: self.silent.clone(),
                rate: self.rate.load(Ordering::SeqCst),
                resting: None,
            };
            Ok(Box::new(broken) as Box<dyn Link>)
        })
    }
}

struct Broken {
    link: DuplexStream,
    breaks: Option<(u64, Break)>,
    came: Arc<AtomicU64>,
    endpoint: String,
    silent: Arc<Mutex<Vec<&'static str>>>,
    rate: usize,
    resting: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Broken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.breaks {
            Some((0, Break::Cut)) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Some((0, Break::Stall)) => return Poll::Pending,
            _ => {}
        }
        if self.silent.lock().unwrap().contains(&&*self.endpoint) {
            return Poll::Pending;
        }
        if let Some(resting) = &mut self.resting {
            ready!(resting.as_mut().poll(cx));
        }
        let most = self.breaks.map_or(u64::MAX, |(left, _)| left);
        let most = buffer
            .remaining()
            .min(usize::try_from(most).unwrap_or(usize::MAX));
        let slice = match self.rate {
            0 => 4096,
            rate => (rate / 10).max(1),
        };
        let mut part = vec![0; most.min(slice)];
        let mut part = ReadBuf::new(&mut part);
        let read = Pin::new(&mut self.link).poll_read(cx, &mut part);
        let came = part.filled().len() as u64;
        buffer.put_slice(part.filled());
        self.came.fetch_add(came, Ordering::SeqCst);
        if let Some((left, _)) = &mut self.breaks {
            *left -= came;
        }
        if self.rate > 0 && came > 0 {
            self.resting = Some(Box::pin(sleep(Duration::from_millis(100))));
        }
        read
    }
}

impl AsyncWrite for Broken {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.link).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

/// A server that follows `script`, and the links to it.
pub(super) fn start(script: Script, down: Vec<&'static str>) -> Arc<Links> {
    let links = start_all(vec![("http://server", script)]);
    *links.down.lock().unwrap() = down;
    links
}

/// Servers at these endpoints, and the links to them.
pub(super) fn start_all(scripts: Vec<(&'static str, Script)>) -> Arc<Links> {
    let serve = |(endpoint, script): (&'static str, Script)| {
        let (server, incoming) = mpsc::unbounded_channel();
        let script = Arc::new(script);
        let serving = tonic::transport::Server::builder()
            .add_service(Sessions(script.clone()))
            .add_service(Versions(script.clone()))
            .add_service(Transfers(script))
            .serve_with_incoming(UnboundedReceiverStream::new(incoming));
        tokio::spawn(serving);
        (endpoint, server)
    };
    Arc::new(Links {
        servers: scripts.into_iter().map(serve).collect(),
        breaks: Mutex::default(),
        dialled: AtomicUsize::new(0),
        dials: Mutex::default(),
        down: Mutex::default(),
        silent: Arc::default(),
        rate: AtomicUsize::new(0),
        came: Arc::default(),
    })
}

pub(super) fn remote(links: &Arc<Links>) -> Remote {
    remote_at(links, ["http://server"])
}

pub(super) fn remote_at<const N: usize>(links: &Arc<Links>, at: [&str; N]) -> Remote {
    Remote::with_connector(RemoteOptions::new(at), links.clone()).unwrap()
}

/// Bytes that differ from place to place.
pub(super) fn payload(index: u64) -> Bytes {
    Bytes::from(format!("{index:0>300}"))
}
