//! Calls as they run: each has an id, which the logs name and the client is told, and is known until its answer was
//! taken.

use super::status::status;
use deltaic_format::refusal::Refusal;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use prost::Message;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tower::Layer;
use tracing::{Instrument, Span};

/// The header that carries a call's id, both ways.
const REQUEST_ID: &str = "x-request-id";

/// Ids of clients are taken up to this length.
const MAX_ID: usize = 64;

/// What runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: AtomicU64,
    running: Mutex<BTreeMap<u64, Running>>,
}

/// Something that runs.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    what: String,
    since: Instant,
    sent: Arc<AtomicU64>,
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, seconds) = (&self.what, self.since.elapsed().as_secs());
        match self.sent.load(Ordering::Relaxed) {
            0 => write!(f, "{what} (for {seconds} s)"),
            sent => write!(f, "{what} (for {seconds} s, {sent} bytes sent)"),
        }
    }
}

/// Is dropped when it has ended.
#[derive(Debug)]
pub(crate) struct RunningGuard {
    calls: Calls,
    number: u64,
    sent: Arc<AtomicU64>,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.calls.running().remove(&self.number);
    }
}

impl Calls {
    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Running>> {
        self.0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn allocate(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Something begins that the server's end waits for.
    pub(crate) fn begin(&self, what: String) -> RunningGuard {
        let (number, sent) = (self.allocate(), Arc::new(AtomicU64::new(0)));
        let running = Running {
            what,
            since: Instant::now(),
            sent: sent.clone(),
        };
        self.running().insert(number, running);
        RunningGuard {
            calls: self.clone(),
            number,
            sent,
        }
    }

    /// All that runs, oldest first.
    pub(crate) fn list(&self) -> Vec<Running> {
        self.running().values().cloned().collect()
    }
}

/// Puts ids and logs around a service.
#[derive(Debug, Clone)]
pub(crate) struct CallLayer(Calls);

impl CallLayer {
    /// Of calls that are listed in `calls`.
    pub(crate) fn new(calls: &Calls) -> Self {
        Self(calls.clone())
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CallService {
            inner,
            calls: self.0.clone(),
        }
    }
}

/// A service whose calls have ids and are logged.
#[derive(Debug, Clone)]
pub(crate) struct CallService<S> {
    inner: S,
    calls: Calls,
}

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let id = request_id(&request).unwrap_or_else(|| self.calls.made_id());
        let span = tracing::info_span!("call", request_id = %id, %method, peer = peer(&request));
        // Health checks and reflection end when the connection does; nobody waits for them.
        let ours = method.starts_with("deltaic.");
        let running = ours.then(|| self.calls.begin(format!("{method} {id}")));
        let call = Arc::new(Call {
            sent: (running.as_ref()).map_or_else(Arc::default, |running| running.sent.clone()),
            _running: running,
            span: span.clone(),
            since: Instant::now(),
            messages: AtomicU64::new(0),
            told: AtomicBool::new(!ours),
        });
        request.extensions_mut().insert(call.clone());
        let response = self.inner.call(request);
        let answered = async move {
            let answer = response.await;
            let mut response = match answer {
                Ok(response) => response,
                Err(error) => {
                    call.tell(Code::Internal);
                    return Err(error);
                }
            };
            if let Ok(id) = HeaderValue::from_str(&id) {
                response.headers_mut().insert(REQUEST_ID, id);
            }
            match response.headers().get("grpc-status") {
                Some(status) => call.tell(Code::from_bytes(status.as_bytes())),
                // Nothing streams on its behalf: the answer is complete.
                None if Arc::strong_count(&call) == 1 => call.tell(Code::Ok),
                None => {}
            }
            Ok(response)
        };
        Box::pin(answered.instrument(span))
    }
}

impl Calls {
    /// An id for a call that brings none: other servers', and this one's of another time, are others.
    fn made_id(&self) -> String {
        let random = RandomState::new().hash_one(()) as u32;
        format!("{random:08x}-{}", self.allocate())
    }
}

/// The id that a client gave its call, if it can be logged.
fn request_id(request: &Request<Body>) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let fine = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    fine.then(|| id.to_owned())
}

fn peer(request: &Request<Body>) -> Option<String> {
    let info = request.extensions().get::<TcpConnectInfo>()?;
    info.remote_addr().as_ref().map(SocketAddr::to_string)
}

/// A call, logged once at its end: when it was answered, or whoever keeps it drops it.
#[derive(Debug)]
pub(crate) struct Call {
    _running: Option<RunningGuard>,
    span: Span,
    since: Instant,
    sent: Arc<AtomicU64>,
    messages: AtomicU64,
    told: AtomicBool,
}

impl Call {
    /// The call that brought a request.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Option<Arc<Self>> {
        request.extensions().get::<Arc<Self>>().cloned()
    }

    fn tell(&self, status: Code) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let milliseconds = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let sent = self.sent.load(Ordering::Relaxed);
        let messages = self.messages.load(Ordering::Relaxed);
        self.span.in_scope(|| match status {
            Code::Internal | Code::DataLoss | Code::Unknown => {
                tracing::error!(?status, milliseconds, sent, messages, "failed");
            }
            status => tracing::info!(?status, milliseconds, sent, messages, "done"),
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Whoever asked hung up before the end.
        self.tell(Code::Cancelled);
    }
}

/// Messages on their way to a client, counted for their call.
pub(crate) struct Answer<T> {
    messages: BoxStream<'static, Result<T, Refusal>>,
    call: Option<Arc<Call>>,
}

impl<T: Message + 'static> Answer<T> {
    /// The answer to a call.
    pub(crate) fn new(
        call: Option<Arc<Call>>,
        messages: impl Stream<Item = Result<T, Refusal>> + Send + 'static,
    ) -> Self {
        Self {
            messages: messages.boxed(),
            call,
        }
    }
}

impl<T: Message> Stream for Answer<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // What is done while the answer is made belongs to the call.
        let _entered = this.call.as_ref().map(|call| call.span.enter());
        let next = this.messages.poll_next_unpin(context);
        let tell = |code| {
            if let Some(call) = &this.call {
                call.tell(code);
            }
        };
        match std::task::ready!(next) {
            Some(Ok(message)) => {
                if let Some(call) = &this.call {
                    let bytes = message.encoded_len() as u64;
                    call.sent.fetch_add(bytes, Ordering::Relaxed);
                    call.messages.fetch_add(1, Ordering::Relaxed);
                }
                Poll::Ready(Some(Ok(message)))
            }
            Some(Err(refusal)) => {
                let status = status(refusal);
                tell(status.code());
                Poll::Ready(Some(Err(status)))
            }
            None => {
                tell(Code::Ok);
                Poll::Ready(None)
            }
        }
    }
}
