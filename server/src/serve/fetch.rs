//! "Give me N, I hold M" for many at a time: chunks are computed once for all who come to the same place of the same
//! answer, a little ahead of the one who reads fastest, and nothing is held for those who read slowly.

use super::shared::{Coalesced, Flight, Flights, Kept};
use super::state::Snapshots;
use super::work::Work;
use deltaic_format::fetch::{Chunk, Delivery, FetchRequest, Position, RequestDigest};
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{ResumeToken, chunk_to_wire, proto};
use deltaic_store::Fetch;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, stream};
use proto::fetch_response::What;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// Memory for requests that are kept understood, in bytes, beside their versions.
const KEPT_REQUESTS: u64 = 64 << 20;

/// Chunks that are made ahead of who reads fastest: with fewer, the next batch would be begun when the last one is out.
const AHEAD: usize = 3;

/// Less than this would be thrown out before it is sent.
const MIN_CACHE_BYTES: u64 = 16 << 20;

/// What a message takes beside its bytes.
const MESSAGE_BYTES: u64 = 256;
const SPAN_BYTES: u64 = 32;

/// A place in the answer to a request.
type Place = (RequestDigest, Position);

/// What stands at a place; `None` is the end.
type Found = Option<Arc<Ready>>;

/// A chunk that can be sent.
#[derive(Debug)]
pub(crate) struct Ready {
    wire: proto::Chunk,
    next: Position,
}

impl Ready {
    fn new(request: RequestDigest, chunk: &Chunk) -> Self {
        let position = chunk.next;
        let resume = ResumeToken { request, position };
        Self {
            wire: chunk_to_wire(&chunk.delivery, resume.to_bytes()),
            next: position,
        }
    }

    /// Bytes of weights.
    fn bytes(&self) -> u64 {
        use proto::chunk::What;
        match &self.wire.what {
            Some(What::Patches(bytes) | What::Content(bytes)) => bytes.len() as u64,
            None => 0,
        }
    }
}

/// What it takes in memory.
fn weight(found: &Found) -> u64 {
    let ready = |ready: &Arc<Ready>| ready.bytes() + ready.wire.spans.len() as u64 * SPAN_BYTES;
    MESSAGE_BYTES + found.as_ref().map_or(0, ready)
}

/// The chunks of all answers.
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    snapshots: Snapshots,
    opened: Coalesced<RequestDigest, Arc<Fetch>>,
    flights: Flights<Place, Found>,
    /// Composing costs more than anything else here.
    patches: Kept<Place, Found>,
    /// The system has the bases in memory already.
    contents: Kept<Place, Found>,
}

impl Chunks {
    /// Of these versions, up to `bytes` of them kept.
    pub(crate) fn new(snapshots: Snapshots, bytes: u64) -> Self {
        let bytes = bytes.max(MIN_CACHE_BYTES);
        Self {
            snapshots,
            opened: Coalesced::new(KEPT_REQUESTS, |fetch: &Arc<Fetch>| fetch.memory()),
            flights: Flights::default(),
            patches: Kept::new(bytes / 4 * 3, weight),
            contents: Kept::new(bytes / 4, weight),
        }
    }

    /// Understand a request.
    pub(crate) async fn open(&self, request: FetchRequest) -> Result<Arc<Fetch>, Refusal> {
        // Also where the answer is kept: refs may have been deleted since.
        let digest = request.digest();
        let store = self.snapshots.store.clone();
        let checked = move || store.check_fetch(&request).map(|()| request);
        let request = self.snapshots.workers.run(Work::Short, checked).await?;
        let snapshots = self.snapshots.clone();
        let open = || async move {
            let want = snapshots.get(request.want).await?;
            let held = match request.held {
                Some(held) => Some(snapshots.get(held).await?),
                None => None,
            };
            let store = snapshots.store.clone();
            let open = move || store.open_fetch_of(&request, want, held.as_deref());
            let fetch = snapshots.workers.run(Work::Compute, open).await?;
            Ok(Arc::new(fetch))
        };
        self.opened.get(digest, open).await
    }

    fn kept(&self, place: &Place) -> Option<Found> {
        (self.patches.get(place)).or_else(|| self.contents.get(place))
    }

    fn keep(&self, place: Place, found: Found, is_patch: bool) {
        let kept = if is_patch {
            &self.patches
        } else {
            &self.contents
        };
        kept.keep(place, found);
    }

    /// The chunk at a place of an answer.
    async fn get(&self, fetch: &Arc<Fetch>, at: Position) -> Result<Found, Refusal> {
        match self.kept(&(fetch.digest(), at)) {
            Some(found) => Ok(found),
            None => self.begin(fetch, at).await,
        }
    }

    /// See to it that the next chunks from a place on are there when they are asked for.
    fn prepare(&self, fetch: &Arc<Fetch>, mut at: Position) {
        for _ in 0..AHEAD {
            match self.kept(&(fetch.digest(), at)) {
                Some(Some(ready)) => at = ready.next,
                Some(None) => return,
                None => return drop(self.begin(fetch, at)),
            }
        }
    }

    fn begin(&self, fetch: &Arc<Fetch>, at: Position) -> Flight<Found> {
        let place = (fetch.digest(), at);
        let (this, fetch) = (self.clone(), fetch.clone());
        let compute = || async move {
            let workers = this.snapshots.workers.clone();
            workers
                .run(Work::Compute, move || this.compute(&fetch, at))
                .await
        };
        self.flights.join(place, |place| self.kept(place), compute)
    }

    /// Compute a batch of chunks, each to be found under the place where it begins.
    fn compute(&self, fetch: &Fetch, at: Position) -> Result<Found, Refusal> {
        let request = fetch.digest();
        let batch = self.snapshots.store.chunks(fetch, at)?;
        if batch.is_empty() {
            self.keep((request, at), None, true);
            return Ok(None);
        }
        let mut begin = at;
        let mut first = None;
        for chunk in batch {
            let is_patch = matches!(chunk.delivery, Delivery::Patches { .. });
            let ready = Arc::new(Ready::new(request, &chunk));
            self.keep((request, begin), Some(ready.clone()), is_patch);
            first.get_or_insert(ready);
            begin = chunk.next;
        }
        Ok(first)
    }
}

/// What is answered.
enum Request {
    /// Being understood; the request itself may be long, and is not kept.
    Opening(BoxFuture<'static, Result<Arc<Fetch>, Refusal>>),
    Open(Arc<Fetch>),
}

/// An answer on its way to one client.
struct Sending {
    chunks: Chunks,
    request: Request,
    at: Position,
    sent: u64,
    bytes: u64,
    heartbeat: Duration,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

/// The answer to a request from `at` on, with a heartbeat whenever nothing was there to send for so long.
pub(crate) fn answer(
    chunks: &Chunks,
    request: FetchRequest,
    at: Position,
    heartbeat: Duration,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<proto::FetchResponse, Refusal>> + Send + 'static {
    let owner = chunks.clone();
    let opening = async move { owner.open(request).await };
    let sending = Sending {
        chunks: chunks.clone(),
        request: Request::Opening(opening.boxed()),
        at,
        sent: 0,
        bytes: 0,
        heartbeat,
        ended: false,
        _place: place,
    };
    stream::unfold(sending, |mut sending| async move {
        if sending.ended {
            return None;
        }
        let next = match timeout(sending.heartbeat, sending.next()).await {
            Ok(next) => next,
            // What is being computed goes on, for the next time.
            Err(_) => Ok(What::Heartbeat(proto::Progress {
                phase: "preparing".to_owned(),
                done: sending.bytes,
                total: None,
            })),
        };
        sending.ended |= matches!(next, Err(_) | Ok(What::End(_)));
        let message = next.map(|what| proto::FetchResponse { what: Some(what) });
        Some((message, sending))
    })
}

impl Sending {
    /// The next message. Given up while it waits, it changes nothing.
    async fn next(&mut self) -> Result<What, Refusal> {
        let fetch = match &mut self.request {
            Request::Open(fetch) => fetch.clone(),
            Request::Opening(opening) => {
                let fetch = opening.await?;
                self.request = Request::Open(fetch.clone());
                fetch
            }
        };
        let Some(ready) = self.chunks.get(&fetch, self.at).await? else {
            return Ok(What::End(proto::FetchEnd { chunks: self.sent }));
        };
        self.at = ready.next;
        // While this one is under way the next one is made.
        self.chunks.prepare(&fetch, self.at);
        self.sent += 1;
        self.bytes += ready.bytes();
        Ok(What::Chunk(ready.wire.clone()))
    }
}

/// Where the answer to `request` goes on after `token`.
///
/// # Errors
///
/// If the token is none, or belongs to another request.
pub(crate) fn resumed(request: &FetchRequest, token: &[u8]) -> Result<Position, Refusal> {
    if token.is_empty() {
        return Ok(Position::default());
    }
    let token = ResumeToken::from_bytes(token).map_err(super::status::invalid)?;
    if token.request != request.digest() {
        let what = "the token to go on by belongs to another request".to_owned();
        return Err(Refusal::Invalid { what });
    }
    Ok(token.position)
}
