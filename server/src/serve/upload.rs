//! Uploads: one sender at a time each, the newest; what is complete is committed also if its sender has gone.

use super::progress::Relay;
use super::state::State;
use super::status::invalid;
use super::steps::Pulse;
use super::stream_window;
use super::work::{Work, Workers};
use deltaic_format::answers::CommitOutcome;
use deltaic_format::fetch::Delivery;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::wire::{item_from_wire, proto};
use deltaic_store::{StoreError, Upload};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, Stream, StreamExt};
use proto::upload_request::What as Sent;
use proto::upload_response::What as Told;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::Instrument;

/// Bytes that are taken in while others are being written.
const PENDING_BYTES: u64 = 4 << 20;

/// What an item takes beside its bytes, and each of its spans.
const ITEM_BYTES: u64 = 128;
const SPAN_BYTES: u64 = 32;

/// When it may be worth trying again where there are too many.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A commit under way; it goes on whoever waits for it.
#[derive(Debug, Clone)]
pub(super) struct Finishing {
    target: UploadTarget,
    relay: Arc<Relay>,
    flight: Shared<BoxFuture<'static, Result<CommitOutcome, Refusal>>>,
}

/// Uploads by their ids.
#[derive(Debug, Clone)]
pub(crate) struct Uploads {
    slots: Arc<Mutex<HashMap<UploadId, Slot>>>,
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Tells the newest sender that there is a newer one.
    newest: CancellationToken,
    turn: Arc<tokio::sync::Mutex<()>>,
    finishing: Option<Finishing>,
}

/// The right to send an upload's items, until `given_up` says that someone else has it.
#[derive(Debug)]
pub(super) struct Turn {
    uploads: Uploads,
    id: UploadId,
    pub(super) given_up: CancellationToken,
    _turn: OwnedMutexGuard<()>,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum Claimed {
    Turn(Turn),
    Finishing(Finishing),
}

fn taken_over() -> Refusal {
    Refusal::Conflict {
        what: "another connection goes on with this upload".to_owned(),
    }
}

impl Uploads {
    /// `most` at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            slots: Arc::default(),
            places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
        }
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, HashMap<UploadId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take an upload over from whoever sends it, once that one has stopped; or learn that it is being committed.
    pub(super) async fn claim(&self, target: &UploadTarget) -> Result<Claimed, Refusal> {
        let given_up = CancellationToken::new();
        let turn = {
            let mut slots = self.slots();
            let slot = slots.entry(target.id).or_default();
            if let Some(finishing) = &slot.finishing {
                return if finishing.target.is_same_upload(target) {
                    Ok(Claimed::Finishing(finishing.clone()))
                } else {
                    Err(taken_over())
                };
            }
            std::mem::replace(&mut slot.newest, given_up.clone()).cancel();
            slot.turn.clone()
        };
        let mut leaving = Leaving {
            uploads: self,
            id: target.id,
            given_up: Some(&given_up),
        };
        let turn = tokio::select! {
            biased;
            () = given_up.cancelled() => return Err(taken_over()),
            turn = turn.lock_owned() => turn,
        };
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| Refusal::Exhausted {
            what: "the server receives as many uploads as it may".to_owned(),
            retry_after: Some(RETRY_AFTER),
        })?;
        leaving.given_up = None;
        Ok(Claimed::Turn(Turn {
            uploads: self.clone(),
            id: target.id,
            given_up: given_up.clone(),
            _turn: turn,
            _place: place,
        }))
    }

    /// Nobody sends an upload any more, unless someone else has taken it over.
    fn leave(&self, id: UploadId, given_up: &CancellationToken) {
        if !given_up.is_cancelled() {
            let mut slots = self.slots();
            // Under the lock: whoever takes over cancels under it.
            if !given_up.is_cancelled() {
                slots.remove(&id);
            }
        }
    }

    /// Commit what has come, whoever waits for it.
    fn finish(
        &self,
        state: &Arc<State>,
        target: UploadTarget,
        turn: Turn,
        upload: Upload,
    ) -> Result<Finishing, Refusal> {
        let mut slots = self.slots();
        let slot = slots.entry(turn.id).or_default();
        if turn.given_up.is_cancelled() {
            drop(slots);
            return Err(taken_over());
        }
        let relay = Relay::new(state.shutdown.now.child_token());
        let owner = state.clone();
        let progress = relay.clone();
        let what = format!("commit to {}@{}", target.repo, target.branch);
        let running = state.calls.begin(what);
        let task = async move {
            let finish =
                move |store: &deltaic_store::Store| store.finish_upload(upload, &*progress);
            let outcome = owner.change(Work::Write, finish).await;
            match &outcome {
                Ok(CommitOutcome { id, version, .. }) => {
                    tracing::info!(commit = %id.short(), version = version.0, "committed");
                }
                Err(refusal) => tracing::warn!(%refusal, "not committed"),
            }
            // Only now: until then those who come wait for this one.
            drop(turn);
            drop(running);
            outcome
        };
        let task = tokio::spawn(task.in_current_span());
        let joined = async move {
            task.await.unwrap_or_else(|_| {
                let what = "the commit stopped unexpectedly; the server's log says why".to_owned();
                Err(Refusal::Failed { what })
            })
        };
        let finishing = Finishing {
            target,
            relay,
            flight: joined.boxed().shared(),
        };
        slot.finishing = Some(finishing.clone());
        Ok(finishing)
    }
}

/// Leaves an upload unless it was claimed.
struct Leaving<'a> {
    uploads: &'a Uploads,
    id: UploadId,
    given_up: Option<&'a CancellationToken>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(given_up) = self.given_up {
            self.uploads.leave(self.id, given_up);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.uploads.leave(self.id, &self.given_up);
    }
}

/// Hold `items` on a thread.
///
/// # Errors
///
/// If one cannot be held; the upload is then closed.
pub(crate) async fn append_items(
    workers: &Workers,
    mut upload: Upload,
    items: Vec<(UploadPosition, UploadItem)>,
) -> Result<Upload, Refusal> {
    let append = move || {
        for (position, item) in items {
            upload.append(position, item)?;
        }
        Ok::<_, StoreError>(upload)
    };
    workers.run(Work::Short, append).await
}

/// One connection that sends an upload.
pub(crate) struct Receiving<S> {
    pub(crate) state: Arc<State>,
    pub(crate) requests: S,
    pub(crate) out: mpsc::Sender<Result<proto::UploadResponse, Refusal>>,
}

impl<S> Receiving<S>
where
    S: Stream<Item = Result<proto::UploadRequest, Status>> + Unpin + Send,
{
    /// Receive it, commit it, and say what came of it.
    pub(crate) async fn receive(mut self) {
        let result = self.run().await;
        let last = result.map(|outcome| proto::UploadResponse {
            what: Some(Told::Outcome(proto::CommitOutcome::from(&outcome))),
        });
        // If nobody listens any more, nobody needs to know.
        let _ = self.out.send(last).await;
    }

    async fn run(&mut self) -> Result<CommitOutcome, Refusal> {
        let Some(Sent::Begin(begin)) = self.sent().await? else {
            let what = "an upload begins with what it is for".to_owned();
            return Err(Refusal::Invalid { what });
        };
        let target = UploadTarget::try_from(&begin).map_err(invalid)?;
        let state = self.state.clone();
        let (turn, upload) = match self.open(&target).await? {
            Opened::Done(outcome) => return Ok(outcome),
            Opened::Finishing(finishing) => return self.wait_for(finishing).await,
            Opened::Upload(turn, upload) => (turn, upload),
        };
        self.tell(Told::Ready(proto::UploadReady {
            position: upload.position().cloned().unwrap_or_default(),
            items: upload.items(),
        }))
        .await?;
        let upload = self.take_items(*upload, &turn.given_up).await?;
        let (repo, branch, items) = (&target.repo, &target.branch, upload.items());
        tracing::info!(%repo, %branch, items, "an upload is complete");
        let finishing = state.uploads.finish(&state, target, turn, upload)?;
        self.wait_for(finishing).await
    }

    /// Get hold of the upload, with heartbeats while that takes.
    async fn open(&mut self, target: &UploadTarget) -> Result<Opened, Refusal> {
        let (state, target) = (self.state.clone(), target.clone());
        let mut opened = async move {
            let turn = match state.uploads.claim(&target).await? {
                Claimed::Finishing(finishing) => return Ok(Opened::Finishing(finishing)),
                Claimed::Turn(turn) => turn,
            };
            let open = move |store: &deltaic_store::Store| match store.committed(&target)? {
                Some(outcome) => Ok(Err(outcome)),
                None => store.open_upload(&target).map(Ok),
            };
            Ok(match state.with_store(Work::Long, open).await? {
                Ok(upload) => Opened::Upload(turn, Box::new(upload)),
                Err(outcome) => Opened::Done(outcome),
            })
        }
        .boxed();
        loop {
            tokio::select! {
                biased;
                opened = &mut opened => return opened,
                () = tokio::time::sleep(self.state.options.heartbeat) => {
                    let phase = "opening".to_owned();
                    self.tell(Told::Progress(proto::Progress { phase, ..Default::default() })).await?;
                }
            }
        }
    }

    /// The next message's content; `None` is of a kind that this build does not know.
    async fn sent(&mut self) -> Result<Option<Sent>, Refusal> {
        let patience = self.state.options.idle;
        let Ok(message) = tokio::time::timeout(patience, self.requests.next()).await else {
            return Err(idle(patience));
        };
        understood(message)
    }

    async fn tell(&self, what: Told) -> Result<(), Refusal> {
        let message = proto::UploadResponse { what: Some(what) };
        let told = self.out.send(Ok(message)).await;
        told.map_err(|_| Refusal::Interrupted)
    }

    /// Hold all items until the sender says that these were all, reading the next ones while some are being written.
    async fn take_items(
        &mut self,
        upload: Upload,
        given_up: &CancellationToken,
    ) -> Result<Upload, Refusal> {
        let mut taking = Taking {
            items: upload.items(),
            all_bytes: upload.bytes() + upload.items() * ITEM_BYTES,
            upload: Some(upload),
            writing: None,
            pending: Vec::new(),
            pending_bytes: 0,
            complete: false,
        };
        let result = self.take(&mut taking, given_up).await;
        if let Err(refusal) = &result {
            let unread = match is_of_the_connection(refusal) {
                true => stream_window(&self.state.options).into(),
                false => 0,
            };
            self.keep(taking, unread).await;
        }
        result
    }

    /// Hold what arrived whole before it went wrong, so that it need not be sent again: what was read, and of what nobody has
    /// looked at yet about `unread` bytes. Whoever comes next has waited for it, and finds the upload closed.
    async fn keep(&mut self, mut taking: Taking, mut unread: u64) {
        let most = self.state.options.max_upload_bytes;
        let mut upload = match taking.writing.take() {
            Some(writing) => writing.await.ok(),
            None => taking.upload.take(),
        };
        while let Some(held) = upload.take() {
            while unread > 0 && !taking.complete && taking.pending_bytes < PENDING_BYTES {
                let before = taking.all_bytes;
                let next = self.requests.next().now_or_never().flatten();
                let taken = understood(next).and_then(|sent| taking.take(sent, most));
                let bytes = (taking.all_bytes - before).max(ITEM_BYTES);
                unread = taken.map_or(0, |()| unread.saturating_sub(bytes));
            }
            let items = std::mem::take(&mut taking.pending);
            taking.pending_bytes = 0;
            if items.is_empty() {
                return;
            }
            // An item that cannot be held is refused again when it is sent again.
            upload = append_items(&self.state.workers, held, items).await.ok();
        }
    }

    async fn take(
        &mut self,
        taking: &mut Taking,
        given_up: &CancellationToken,
    ) -> Result<Upload, Refusal> {
        let options = self.state.options.clone();
        let now = self.state.shutdown.now.clone();
        let mut heard = Instant::now();
        let mut next_beat = heard + options.heartbeat;
        loop {
            if let Some(upload) = taking.write(&self.state.workers) {
                return Ok(upload);
            }
            let listens = !taking.complete && taking.pending_bytes < PENDING_BYTES;
            tokio::select! {
                biased;
                () = given_up.cancelled() => return Err(taken_over()),
                () = now.cancelled() => return Err(ending()),
                () = self.out.closed() => return Err(Refusal::Interrupted),
                written = async { taking.writing.as_mut().expect("it is some").await },
                    if taking.writing.is_some() =>
                {
                    taking.writing = None;
                    let upload = written?;
                    taking.items = upload.items();
                    taking.upload = Some(upload);
                    // Others follow: what does not fit now need not be said.
                    let _ = self.out.try_send(Ok(held(taking.items)));
                    next_beat = Instant::now() + options.heartbeat;
                }
                message = self.requests.next(), if listens => {
                    heard = Instant::now();
                    taking.take(understood(message)?, options.max_upload_bytes)?;
                }
                () = tokio::time::sleep_until(next_beat) => {
                    if listens && heard.elapsed() >= options.idle {
                        return Err(idle(options.idle));
                    }
                    let _ = self.out.try_send(Ok(held(taking.items)));
                    next_beat = Instant::now() + options.heartbeat;
                }
            }
        }
    }

    /// Wait for what comes of a commit, and tell where it stands.
    async fn wait_for(&mut self, finishing: Finishing) -> Result<CommitOutcome, Refusal> {
        let mut pulse = Pulse::new(self.state.options.heartbeat);
        loop {
            tokio::select! {
                biased;
                outcome = finishing.flight.clone() => return outcome,
                at = pulse.beat(&finishing.relay) => self.tell(Told::Progress(at)).await?,
            }
        }
    }
}

/// Whether it is the connection that ended, or was given up for a newer one, and nothing is wrong with what came over it.
fn is_of_the_connection(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Interrupted | Refusal::Unavailable { .. } | Refusal::Conflict { .. }
    )
}

/// What opening an upload comes to.
enum Opened {
    Done(CommitOutcome),
    Finishing(Finishing),
    Upload(Turn, Box<Upload>),
}

/// Items on their way to the spool.
struct Taking {
    /// When nothing is being written.
    upload: Option<Upload>,
    writing: Option<BoxFuture<'static, Result<Upload, Refusal>>>,
    pending: Vec<(UploadPosition, UploadItem)>,
    pending_bytes: u64,
    /// What came in all, over earlier connections too.
    all_bytes: u64,
    items: u64,
    complete: bool,
}

impl Taking {
    /// Take what was sent.
    fn take(&mut self, sent: Option<Sent>, most: u64) -> Result<(), Refusal> {
        let item = match sent {
            Some(Sent::Item(item)) => item,
            Some(Sent::Alive(_)) => return Ok(()),
            Some(Sent::Finish(_)) => {
                self.complete = true;
                return Ok(());
            }
            Some(Sent::Begin(_)) | None => {
                let what = "an upload sends items after its beginning, and then its end".to_owned();
                return Err(Refusal::Invalid { what });
            }
        };
        let (position, item) = item_from_wire(item).map_err(invalid)?;
        let bytes = weight(&position, &item);
        self.all_bytes += bytes;
        if self.all_bytes > most {
            return Err(Refusal::Exhausted {
                what: format!("the upload sends more than the {most} bytes that one may"),
                retry_after: None,
            });
        }
        self.pending_bytes += bytes;
        self.pending.push((position, item));
        Ok(())
    }

    /// Write what is pending if nothing is being written; hands the upload back when all is there.
    fn write(&mut self, workers: &Workers) -> Option<Upload> {
        let upload = self.upload.take()?;
        if !self.pending.is_empty() {
            let items = std::mem::take(&mut self.pending);
            self.pending_bytes = 0;
            let workers = workers.clone();
            let append = async move { append_items(&workers, upload, items).await };
            self.writing = Some(append.boxed());
            return None;
        }
        if self.complete {
            return Some(upload);
        }
        self.upload = Some(upload);
        None
    }
}

/// What an item takes in memory or on disk, about: never nothing.
fn weight(position: &UploadPosition, item: &UploadItem) -> u64 {
    let spans = match item {
        UploadItem::Delivery(Delivery::Patches { members, .. }) => members.len(),
        _ => 1,
    };
    item.len() + position.len() as u64 + ITEM_BYTES + spans as u64 * SPAN_BYTES
}

fn held(items: u64) -> proto::UploadResponse {
    proto::UploadResponse {
        what: Some(Told::Held(proto::UploadProgress { items })),
    }
}

/// The refusal of a sender that sends nothing; it may come back as soon as it has something.
fn idle(patience: Duration) -> Refusal {
    Refusal::Exhausted {
        what: format!("nothing was sent for {} s", patience.as_secs()),
        retry_after: Some(Duration::ZERO),
    }
}

/// The refusal of whatever a server at its end no longer does.
pub(crate) fn ending() -> Refusal {
    Refusal::Unavailable {
        what: "the server is ending".to_owned(),
    }
}

fn understood(
    message: Option<Result<proto::UploadRequest, Status>>,
) -> Result<Option<Sent>, Refusal> {
    match message {
        Some(Ok(message)) => Ok(message.what),
        Some(Err(status)) => {
            let what = format!("the upload cannot be read: {}", status.message());
            // What is no message at all did not leave its sender like that.
            Err(match status.code() {
                Code::Internal => Refusal::Damaged { what },
                _ => Refusal::Invalid { what },
            })
        }
        None => Err(Refusal::Unavailable {
            what: "the upload was cut off before its end".to_owned(),
        }),
    }
}
