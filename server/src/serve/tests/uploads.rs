//! Uploads whose connection fails or is given up for another: what has arrived whole is held before anybody goes on.

use super::*;
use crate::serve::state::State;
use crate::serve::upload::Receiving;
use deltaic_format::upload::UploadItem;
use deltaic_format::wire::{item_to_wire, proto};
use futures::{Stream, stream};
use proto::upload_request::What as Sent;
use proto::upload_response::What as Told;
use tokio::sync::mpsc;
use tonic::Status;

const ITEM_BYTES: usize = 1 << 20;

/// More than is taken in while nothing of it is written, and less than a stream's window.
const ITEMS: u8 = 5;

type Requests = mpsc::UnboundedSender<Result<proto::UploadRequest, Status>>;
type Answers = mpsc::Receiver<Result<proto::UploadResponse, Refusal>>;

fn target() -> UploadTarget {
    UploadTarget {
        repo: repo(),
        branch: main_branch(),
        id: UploadId([7; 32]),
        parent: None,
        commit: None,
    }
}

fn begin() -> proto::UploadRequest {
    let what = Some(Sent::Begin((&target()).into()));
    proto::UploadRequest { what }
}

fn item(number: u8) -> proto::UploadRequest {
    let item = UploadItem::File {
        file: FileId([number; 32]),
        offset: 0,
        bytes: vec![number; ITEM_BYTES].into(),
    };
    let item = item_to_wire(vec![number].into(), &item);
    proto::UploadRequest {
        what: Some(Sent::Item(item)),
    }
}

fn state() -> (TempDir, Arc<State>) {
    let dir = TempDir::new().expect("a scratch folder");
    let (store, _) = Store::init(&dir.path().join("store")).expect("a new store");
    let state = State::new(
        Arc::new(store),
        ServeOptions::default(),
        &Shutdown::default(),
    );
    (dir, Arc::new(state))
}

/// Receive what a connection sends, and hear what is answered.
fn receive(
    state: &Arc<State>,
    requests: impl Stream<Item = Result<proto::UploadRequest, Status>> + Unpin + Send + Sync + 'static,
) -> Answers {
    let (out, answers) = mpsc::channel(64);
    let receiving = Receiving {
        state: state.clone(),
        requests,
        out,
    };
    state.workers.spawn(receiving.receive());
    answers
}

/// A connection that has begun, and how many items are held before it sends any.
async fn connect(state: &Arc<State>) -> (Requests, Answers, u64) {
    let (requests, sent) = mpsc::unbounded_channel();
    let sent = tokio_stream::wrappers::UnboundedReceiverStream::new(sent);
    requests.send(Ok(begin())).expect("it is received");
    let mut answers = receive(state, sent);
    let held = ready(&mut answers).await;
    (requests, answers, held)
}

async fn ready(answers: &mut Answers) -> u64 {
    loop {
        let answer = soon(answers.recv()).await.expect("more comes");
        match answer.expect("it is ready").what {
            Some(Told::Ready(ready)) => return ready.items,
            Some(Told::Progress(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A connection on which items have just arrived, of which nobody has looked at any.
async fn arrived(state: &Arc<State>) -> (Requests, Answers) {
    let (requests, answers, held) = connect(state).await;
    assert_eq!(held, 0);
    for number in 0..ITEMS {
        requests.send(Ok(item(number))).expect("it is received");
    }
    (requests, answers)
}

#[tokio::test]
async fn what_arrived_before_a_cut_is_held() {
    let (_dir, state) = state();
    drop(arrived(&state).await);
    let (.., held) = connect(&state).await;
    assert_eq!(held, u64::from(ITEMS));
}

#[tokio::test]
async fn what_arrived_before_another_connection_took_over_is_held() {
    let (_dir, state) = state();
    let (_requests, mut answers) = arrived(&state).await;
    let (.., held) = connect(&state).await;
    assert_eq!(held, u64::from(ITEMS));
    let told = loop {
        match soon(answers.recv()).await.expect("it is told") {
            Ok(_) => {}
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(told, Refusal::Conflict { .. }), "{told:?}");
}

#[tokio::test]
async fn what_arrived_before_the_server_ends_is_held() {
    let (_dir, state) = state();
    let _connection = arrived(&state).await;
    state.shutdown.now.cancel();
    assert!(state.workers.rest(TOO_LONG).await);
    let upload = state.store.open_upload(&target()).expect("it is closed");
    assert_eq!(upload.items(), u64::from(ITEMS));
}

#[tokio::test]
async fn a_connection_that_sends_without_end_can_be_taken_over() {
    let (_dir, state) = state();
    let endless = stream::iter(std::iter::once(begin()).chain((0..=u8::MAX).cycle().map(item)));
    let mut answers = receive(&state, endless.map(Ok));
    assert_eq!(ready(&mut answers).await, 0);
    let (.., held) = connect(&state).await;
    assert!(held > 0);
}
