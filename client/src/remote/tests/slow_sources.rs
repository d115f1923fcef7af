//! Uploads whose source has nothing to send for a long time: a checkpoint most of which has not changed.

use super::server::{Script, remote, start};
use super::{Items, outcome, ready_and, target};
use crate::{Repository as _, Result, UploadSource};
use deltaic_format::progress::Silent;
use deltaic_format::upload::{UploadItem, UploadPosition};
use deltaic_format::wire::proto;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming};

/// Longer than any server waits for a message.
const PAUSE: Duration = Duration::from_secs(1800);

/// Items with a pause before each.
#[derive(Debug)]
struct Slow(Items);

impl UploadSource for Slow {
    fn items(
        &self,
        after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem)>> {
        let items = self.0.items(after);
        let late = items.then(|item| async {
            sleep(PAUSE).await;
            item
        });
        late.boxed()
    }
}

/// Takes an upload from whoever is never silent for long.
fn impatient(mut sent: Streaming<proto::UploadRequest>) -> super::Answers<proto::UploadResponse> {
    use proto::upload_request::What as Sent;
    use proto::upload_response::What as Told;
    let tell = |what| Ok(proto::UploadResponse { what: Some(what) });
    let (answers, told) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        let mut items = 0;
        loop {
            let Ok(message) = timeout(Duration::from_secs(60), sent.message()).await else {
                let _ = answers.send(Err(Status::aborted("silence"))).await;
                return;
            };
            let Ok(Some(message)) = message else { return };
            let answer = match message.what {
                Some(Sent::Item(_)) => {
                    items += 1;
                    Told::Held(proto::UploadProgress { items })
                }
                Some(Sent::Finish(_)) => Told::Outcome((&outcome()).into()),
                // The beginning was answered; a sign of life is answered as any heartbeat.
                _ => Told::Held(proto::UploadProgress { items }),
            };
            let _ = answers.send(tell(answer)).await;
        }
    });
    let told = stream::once(async { told }).map(tokio_stream::wrappers::ReceiverStream::new);
    ready_and(told.flatten())
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_is_at_work_says_so() {
    let script = Script {
        upload: Box::new(impatient),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let source = Arc::new(Slow(Items(3)));
    let done = remote(&links)
        .upload(&target(), source, Arc::new(Silent))
        .await
        .unwrap();
    assert_eq!(done, outcome());
    let dialled = links.dialled.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(dialled, 1);
}
