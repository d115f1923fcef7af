//! Uploads: items go out as fast as the server takes them, and after a cut on from the last one that it holds.

use super::Remote;
use super::connection::{ASK, Connection, Incoming};
use super::known::About;
use super::relay::{Headway, Relay};
use super::status::{Failure, Fault, Kind};
use crate::error::{ClientError, Result};
use crate::repository::{UploadSource, Watcher};
use deltaic_format::answers::CommitOutcome;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadItem, UploadPosition, UploadTarget};
use deltaic_format::wire::{self, proto};
use futures::StreamExt as _;
use prost::Message as _;
use proto::upload_request::What as Request;
use proto::upload_response::What as Response;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;

/// Items between their source and HTTP/2's own window.
const QUEUE: usize = 2;

impl Remote {
    pub(super) async fn send(
        &self,
        target: &UploadTarget,
        source: Arc<dyn UploadSource>,
        progress: Watcher,
    ) -> Result<CommitOutcome> {
        let mut sending = Sending {
            target,
            source,
            relay: Relay::new(progress),
            account: Account::default(),
            headway: Headway::new(),
            doubted: false,
        };
        let mut tries = self.connections.tries();
        loop {
            let failure = match self.connections.get().await {
                Err(failure) => failure,
                Ok(connection) => match sending.attempt(&connection).await {
                    Ok(outcome) => {
                        self.connections.know(outcome.id);
                        return Ok(outcome);
                    }
                    Err(failure) => {
                        let gained = std::mem::take(&mut sending.account.gained);
                        if gained {
                            tries.progress();
                        }
                        let about = (About::Upload(target.parent), gained);
                        self.connections.note(&connection, failure, about)
                    }
                },
            };
            tries.after(failure).await?;
        }
    }
}

/// How many items were sent, and how many the server says that it holds.
#[derive(Debug, Default)]
struct Account {
    /// What it held when it was first asked.
    first: Option<u64>,
    /// What it held when this attempt began.
    began: u64,
    /// What it holds now.
    now: u64,
    /// Items of this attempt, and of all.
    sent: u64,
    all: u64,
    /// The most that it held, and whether that grew since it was last looked at.
    most: u64,
    gained: bool,
}

impl Account {
    fn ready(&mut self, held: u64) {
        (self.began, self.now, self.sent) = (held, held, 0);
        match self.first {
            None => (self.first, self.most) = (Some(held), held),
            // It may be someone else who sent the same.
            Some(first) if held > first.saturating_add(self.all) => {}
            Some(_) => self.grow(held),
        }
    }

    fn sent(&mut self) {
        self.sent += 1;
        self.all += 1;
    }

    /// Whether the server has still to say that it holds something.
    fn owes(&self) -> bool {
        self.now < self.began.saturating_add(self.sent)
    }

    /// Whether it holds more than before, if it can be so.
    fn held(&mut self, held: u64) -> Result<bool, Fault> {
        let limit = self.began.saturating_add(self.sent);
        if held > limit {
            let what = format!("it says that it holds {held} items of {limit}");
            return Err(Fault::Protocol(what));
        }
        self.grow(held);
        let more = held > self.now;
        self.now = self.now.max(held);
        Ok(more)
    }

    fn grow(&mut self, held: u64) {
        self.gained |= held > self.most;
        self.most = self.most.max(held);
    }
}

struct Sending<'a> {
    target: &'a UploadTarget,
    source: Arc<dyn UploadSource>,
    relay: Relay,
    account: Account,
    headway: Headway,
    /// An item was refused once, which may have been damage on its way.
    doubted: bool,
}

/// What is still to go out on one stream.
enum Stage {
    Items,
    Finish,
    Answer,
}

type Outgoing = mpsc::Sender<proto::UploadRequest>;

fn request(what: Request) -> proto::UploadRequest {
    proto::UploadRequest { what: Some(what) }
}

impl Sending<'_> {
    /// Send everything that the server does not hold.
    async fn attempt(&mut self, connection: &Arc<Connection>) -> Result<CommitOutcome, Failure> {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        // Whoever has the version already says so, and need not be sent anything.
        let target = UploadTarget {
            commit: self.target.commit.or_else(|| self.source.commit()),
            ..self.target.clone()
        };
        let begin = request(Request::Begin((&target).into()));
        // The queue is empty, so there is room.
        let _ = outgoing.try_send(begin);
        let mut transfer = connection.transfer();
        let call = transfer.upload(ReceiverStream::new(queue));
        let mut incoming = connection.open_stream(call).await?;
        self.headway = Headway::new();
        let position = loop {
            incoming.check_progress(&self.headway)?;
            let message = incoming.next_watched(&**self.relay.watcher()).await?;
            match message.what {
                Some(Response::Ready(ready)) => {
                    self.account.ready(ready.items);
                    break Some(ready.position).filter(|position| !position.is_empty());
                }
                other => {
                    if let Some(outcome) = self.take(other, &incoming)? {
                        incoming.close().await;
                        return Ok(outcome);
                    }
                }
            }
        };
        let mut stage = Stage::Items;
        let outcome = self
            .converse(position, (outgoing, &mut incoming), &mut stage)
            .await;
        match outcome {
            Ok(outcome) => {
                incoming.close().await;
                Ok(outcome)
            }
            Err(failure) => Err(self.doubt(failure, &stage)),
        }
    }

    /// Send items as long as there are any and listen all the while.
    async fn converse(
        &mut self,
        position: Option<UploadPosition>,
        (outgoing, incoming): (Outgoing, &mut Incoming<proto::UploadResponse>),
        stage: &mut Stage,
    ) -> Result<CommitOutcome, Failure> {
        let mut outgoing = Some(outgoing);
        let mut items = self.source.items(position);
        let mut waiting: Option<proto::UploadRequest> = None;
        let stall = incoming.connection().stall();
        let mut silence = incoming.silence();
        let mut went_out = Instant::now();
        let mut asking = interval(ASK);
        asking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = incoming.next_in(&mut silence) => {
                    let message = message?.ok_or_else(|| incoming.cut())?;
                    silence = incoming.silence();
                    if let Some(outcome) = self.take(message.what, incoming)? {
                        return Ok(outcome);
                    }
                }
                item = items.next(), if matches!(stage, Stage::Items) && waiting.is_none() => {
                    waiting = Some(match item {
                        Some(item) => self.item(item.map_err(Failure::own)?, incoming)?,
                        None => {
                            *stage = Stage::Finish;
                            request(Request::Finish(proto::UploadFinish {}))
                        }
                    });
                }
                went = deliver(&mut outgoing, &mut waiting), if waiting.is_some() => {
                    went_out = Instant::now();
                    self.headway.made();
                    if !went || matches!(stage, Stage::Finish) {
                        // All is sent, or the stream broke and its other direction says why.
                        outgoing = None;
                        *stage = Stage::Answer;
                    }
                }
                _ = asking.tick() => {
                    if self.relay.watcher().cancelled() {
                        return Err(Failure::own(ClientError::Interrupted));
                    }
                    if matches!(stage, Stage::Items) && waiting.is_none() {
                        // It is the source that is waited for.
                        if !self.account.owes() {
                            self.headway.made();
                        }
                        if went_out.elapsed() > stall / 2 {
                            waiting = Some(request(Request::Alive(proto::UploadAlive {})));
                        }
                    }
                    incoming.check_progress(&self.headway)?;
                }
            }
        }
    }

    /// An item as it goes out.
    fn item(
        &mut self,
        (position, item): (UploadPosition, UploadItem),
        incoming: &Incoming<proto::UploadResponse>,
    ) -> Result<proto::UploadRequest, Failure> {
        let message = request(Request::Item(wire::item_to_wire(position, &item)));
        let (length, most) = (message.encoded_len(), incoming.connection().max_message());
        if length > most {
            let endpoint = incoming.connection().endpoint();
            return Err(Failure::refused(Refusal::Exhausted {
                what: format!(
                    "an item of the upload has {length} bytes, {endpoint} takes {most} at most"
                ),
                retry_after: None,
            }));
        }
        self.relay.enter("sending");
        self.relay.advance(item.len());
        self.account.sent();
        Ok(message)
    }

    /// Take a message; the last one has the outcome.
    fn take(
        &mut self,
        message: Option<Response>,
        incoming: &Incoming<proto::UploadResponse>,
    ) -> Result<Option<CommitOutcome>, Failure> {
        match message {
            None => Ok(None),
            Some(Response::Progress(progress)) => {
                self.relay.tell(&progress);
                self.headway.tell(&progress);
                Ok(None)
            }
            Some(Response::Held(held)) => {
                let more = self.account.held(held.items);
                if more.map_err(|fault| incoming.fault(fault))? {
                    self.headway.made();
                }
                Ok(None)
            }
            Some(Response::Ready(_)) => {
                let what = "it is ready for an upload twice".to_owned();
                Err(incoming.fault(Fault::Protocol(what)))
            }
            Some(Response::Outcome(outcome)) => {
                let outcome =
                    CommitOutcome::try_from(outcome).map_err(|error| incoming.fault(error))?;
                if self
                    .target
                    .commit
                    .is_some_and(|commit| commit != outcome.id)
                {
                    let what = format!("it makes commit {} of the upload", outcome.id);
                    return Err(incoming.fault(Fault::Protocol(what)));
                }
                Ok(Some(outcome))
            }
        }
    }

    /// An item that is refused before all were sent may have been damaged on its way: once.
    fn doubt(&mut self, mut failure: Failure, stage: &Stage) -> Failure {
        let refused = matches!(
            failure.error,
            ClientError::Refused(Refusal::Upload { .. } | Refusal::Invalid { .. })
        );
        if refused && matches!(stage, Stage::Items) && !self.doubted {
            self.doubted = true;
            failure.kind = Kind::Damaged;
        }
        failure
    }
}

/// Send the message that waits, once there is room for it; whether it went. Dropped before that, the message waits on.
async fn deliver(
    outgoing: &mut Option<Outgoing>,
    waiting: &mut Option<proto::UploadRequest>,
) -> bool {
    let room = match outgoing {
        Some(outgoing) => outgoing.reserve().await.ok(),
        None => None,
    };
    match (room, waiting.take()) {
        (Some(room), Some(message)) => {
            room.send(message);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_cannot_hold_more_than_it_was_sent() {
        let mut account = Account::default();
        account.ready(5);
        assert!(!account.gained);
        for _ in 0..3 {
            account.sent();
        }
        assert!(account.held(7).expect("two of three"));
        assert!(std::mem::take(&mut account.gained));
        assert!(!account.held(7).expect("a heartbeat"));
        assert!(!account.gained && account.owes());
        account.held(9).expect_err("more than was sent");
        account.ready(8);
        assert!(std::mem::take(&mut account.gained) && !account.owes());
        account.held(9).expect_err("nothing was sent since");
        account.ready(2);
        assert!(!account.gained);
        account.ready(9);
        assert!(!account.gained, "more than was ever sent here");
    }
}
