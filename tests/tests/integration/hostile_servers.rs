//! Servers that lie to a client. What this prevents: weights that nobody committed, a replica that is half one version and half
//! another, a client that waits, reads or allocates for as long as its server likes.
//!
//! Every lie ends in a typed error within bounded time, and the replica holds the version that it held, byte for byte.

use bytes::Bytes;
use deltaic_client::{ClientError, PullOutcome, Trust};
use deltaic_format::fetch::{Delivery, FetchRequest, Position, RequestDigest, Span};
use deltaic_format::patch::Changes;
use deltaic_format::patch_set::{self, PatchSetReader};
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{ResumeToken, chunk_from_wire, chunk_to_wire, proto};
use deltaic_server::serve::ServeOptions;
use deltaic_tests::liars::{Liar, Messages};
use deltaic_tests::scenes::Scene;
use deltaic_tests::stores::assert_same_files;
use futures::{StreamExt, stream};
use proto::fetch_response::What;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// No lie is believed for longer.
const SOON: Duration = Duration::from_secs(10);

/// Which error it is.
pub fn kind(error: &ClientError) -> &'static str {
    match error {
        ClientError::Delivery { .. } => "delivery",
        ClientError::Proof { .. } => "proof",
        ClientError::Protocol { .. } => "protocol",
        ClientError::Stalled { .. } => "stalled",
        ClientError::Unreachable { .. } => "unreachable",
        ClientError::Refused(Refusal::Exhausted { .. }) => "exhausted",
        ClientError::Refused(_) => "refused",
        _ => "another one",
    }
}

/// A liar before a store of three versions, and a replica that holds the first.
struct Deceived {
    scene: Scene,
    liar: Liar,
}

impl Deceived {
    async fn new() -> Self {
        let scene = Scene::new(3, ServeOptions::default()).await;
        let liar = Liar::before(&scene.url).await;
        let first = scene.versions[0];
        let pulled = scene.pull(&liar.url, "replica", first, Trust::Server).await;
        pulled.expect("a liar that does not lie is as good as any server");
        Self { scene, liar }
    }

    async fn pull(&self, trust: Trust) -> Result<PullOutcome, ClientError> {
        let want = self.scene.versions[2];
        self.scene
            .pull(&self.liar.url, "replica", want, trust)
            .await
    }

    /// A pull to the newest version fails as one of `expected`, soon, and changes nothing.
    async fn fails(&self, what: &str, expected: &[&str]) {
        let begun = Instant::now();
        let error = self.pull(Trust::Server).await;
        let took = begun.elapsed();
        let error = error.expect_err(what);
        println!("{what}: {error} ({took:?})");
        let kind = kind(&error);
        assert!(expected.contains(&kind), "{what}: {kind}: {error}");
        assert!(took < SOON, "{what} took {took:?}");
        self.assert_as_before(what);
        self.liar.repent();
    }

    fn assert_as_before(&self, what: &str) {
        let replica = self.scene.path("replica");
        assert_same_files(&replica, &self.scene.folder(0));
        let staged = std::fs::read_dir(replica.join(".deltaic/staged"));
        assert_eq!(staged.into_iter().flatten().count(), 0, "{what}");
    }

    /// Nothing that was told has done any harm.
    async fn recovers(self) {
        self.liar.repent();
        self.pull(Trust::Server).await.expect("it is the truth");
        assert_same_files(&self.scene.path("replica"), &self.scene.folder(2));
        self.scene.end().await;
    }
}

/// The parts of a chunk, to be changed.
struct Parts {
    spans: Vec<Span>,
    bytes: Vec<u8>,
    resume: Bytes,
    is_content: bool,
}

impl Parts {
    fn token(&self) -> ResumeToken {
        ResumeToken::from_bytes(&self.resume).expect("an honest token")
    }
}

type Answer = Messages<proto::FetchResponse>;

/// Change every chunk of an answer; its checksum is right all the same.
fn chunks(
    change: impl Fn(&mut Parts) + Send + Sync + Clone + 'static,
) -> impl Fn(Answer) -> Answer {
    in_wire(move |chunk| {
        let resume = chunk.resume.clone();
        let delivery = chunk_from_wire(std::mem::take(chunk)).expect("an honest chunk");
        let (spans, bytes) = match &delivery {
            Delivery::Patches { members, bytes } => (members.to_vec(), bytes),
            Delivery::Content { span, bytes } => (vec![*span], bytes),
        };
        let mut parts = Parts {
            spans,
            bytes: bytes.to_vec(),
            resume,
            is_content: matches!(delivery, Delivery::Content { .. }),
        };
        change(&mut parts);
        let bytes = parts.bytes.into();
        let delivery = match parts.is_content {
            true => Delivery::Content {
                span: parts.spans[0],
                bytes,
            },
            false => Delivery::Patches {
                members: parts.spans.into(),
                bytes,
            },
        };
        *chunk = chunk_to_wire(&delivery, parts.resume);
    })
}

/// Change every chunk as it travels.
fn in_wire(
    change: impl Fn(&mut proto::Chunk) + Send + Sync + Clone + 'static,
) -> impl Fn(Answer) -> Answer {
    move |answer| {
        let change = change.clone();
        let lie = move |message: Result<proto::FetchResponse, Status>| {
            let mut message = message?;
            if let Some(What::Chunk(chunk)) = &mut message.what {
                change(chunk);
            }
            Ok(message)
        };
        answer.map(lie).boxed()
    }
}

/// Change the patches, and encode them properly.
fn patches(
    change: impl Fn(Vec<(u32, Changes)>) -> Vec<(u32, Changes)> + Send + Sync + Clone + 'static,
) -> impl Fn(Answer) -> Answer {
    chunks(move |parts| {
        if !parts.is_content {
            let set = PatchSetReader::new(&parts.bytes).expect("an honest set");
            let all = set.all().expect("it decodes");
            let made = change(set.members().zip(all).collect());
            let made: Vec<_> = made.iter().map(|(len, changes)| (*len, changes)).collect();
            let set = patch_set::encode(set.class(), &made).expect("it can be encoded");
            parts.bytes = set.bytes;
        }
    })
}

fn says(what: What) -> Result<proto::FetchResponse, Status> {
    Ok(proto::FetchResponse { what: Some(what) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_chunks_are_refused() {
    let deceived = Deceived::new().await;
    let liar = &deceived.liar;
    const FETCH: &str = "Transfer/Fetch";

    type Change = fn(&mut Parts);
    let changes: [(&str, &[&str], Change); 19] = [
        ("a longer span", &["delivery"], |c| c.spans[0].elements += 1),
        ("a shorter span", &["delivery"], |c| {
            c.spans[0].elements -= 1
        }),
        ("no elements", &["protocol"], |c| c.spans[0].elements = 0),
        ("a span without end", &["delivery", "protocol"], |c| {
            c.spans[0].elements = u64::MAX
        }),
        ("a span elsewhere", &["delivery", "protocol"], |c| {
            c.spans[0].first += 1 << 18
        }),
        ("a span far beyond", &["delivery", "protocol"], |c| {
            c.spans[0].first = u64::MAX << 18
        }),
        ("spans in another order", &["delivery", "protocol"], |c| {
            c.spans.reverse()
        }),
        ("the first span again", &["delivery", "protocol"], |c| {
            c.spans[1] = c.spans[0]
        }),
        ("one span less", &["delivery", "protocol"], |c| {
            c.spans.pop();
        }),
        ("a million spans", &["delivery", "protocol"], |c| {
            let span = c.spans[0];
            c.spans.resize(1 << 20, span);
        }),
        ("the tensor beside", &["delivery", "protocol"], |c| {
            let spans = c.spans.iter_mut();
            spans.for_each(|span| span.tensor = (span.tensor + 1) % 5);
        }),
        ("a tensor that nobody asked for", &["protocol"], |c| {
            c.spans[0].tensor = 5
        }),
        ("a tensor far beyond", &["protocol"], |c| {
            c.spans[0].tensor = usize::MAX
        }),
        (
            "a content that is a patch",
            &["delivery", "protocol"],
            |c| c.is_content = true,
        ),
        ("cut bytes", &["delivery"], |c| {
            c.bytes.truncate(c.bytes.len() / 2)
        }),
        ("more bytes", &["delivery"], |c| c.bytes.extend([0; 100])),
        ("one bit of the changes", &["delivery", "proof"], |c| {
            let at = c.bytes.len() - 9;
            c.bytes[at] ^= 16;
        }),
        ("zeros", &["delivery"], |c| c.bytes.fill(0)),
        ("a zstd bomb", &["delivery"], |c| {
            // The beginning of a frame that says that it holds 2^62 bytes.
            c.bytes.truncate(20);
            c.bytes.extend([0x28, 0xb5, 0x2f, 0xfd, 0xc0]);
            c.bytes.extend((1u64 << 62).to_le_bytes());
        }),
    ];
    for (what, expected, change) in changes {
        liar.lie(FETCH, chunks(change));
        deceived.fails(what, expected).await;
    }
    liar.lie(FETCH, in_wire(|chunk| chunk.crc32 ^= 1));
    deceived.fails("another checksum", &["protocol"]).await;

    type Repatch = fn(Vec<(u32, Changes)>) -> Vec<(u32, Changes)>;
    let repatched: [(&str, Repatch); 4] = [
        ("the way back", |mut members| {
            members.iter_mut().for_each(|(_, changes)| changes.negate());
            members
        }),
        ("one change less", |mut members| {
            let pairs: Vec<_> = members[0].1.iter().collect();
            members[0].1 = Changes::from_pairs(pairs[1..].iter().copied()).expect("ascending");
            members
        }),
        ("a change one element on", |mut members| {
            let pairs = members[0].1.iter().map(|(at, by)| (at + 1, by));
            members[0].1 = Changes::from_pairs(pairs).expect("ascending");
            members
        }),
        ("nothing changed", |mut members| {
            members
                .iter_mut()
                .for_each(|member| member.1 = Changes::default());
            members
        }),
    ];
    for (what, repatch) in repatched {
        liar.lie(FETCH, patches(repatch));
        deceived.fails(what, &["delivery", "proof"]).await;
    }

    // The content of another version.
    let old = deltaic_tests::checkpoints::read_folder(&deceived.scene.folder(1)).unwrap();
    let content = move |parts: &mut Parts| {
        parts.spans.truncate(1);
        let span = parts.spans[0];
        let class = old[span.tensor].spec.class;
        let first = span.first as usize * class.width();
        let len = span.elements as usize * class.width();
        let content = &old[span.tensor].content[first..first + len];
        parts.bytes = deltaic_format::base::encode_base(class, content);
        parts.is_content = true;
    };
    let content = Arc::new(content);
    liar.lie(FETCH, chunks(move |parts| content(parts)));
    deceived
        .fails("another version's content", &["delivery", "protocol"])
        .await;
    deceived.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_do_not_end_right_are_refused() {
    let deceived = Deceived::new().await;
    let liar = &deceived.liar;
    const FETCH: &str = "Transfer/Fetch";
    type Lie = fn(Messages<proto::FetchResponse>) -> Messages<proto::FetchResponse>;
    let lies: [(&str, &[&str], Lie); 13] = [
        ("nothing", &["delivery"], |_| {
            stream::iter([says(What::End(proto::FetchEnd { chunks: 0 }))]).boxed()
        }),
        ("no end", &["unreachable"], |answer| {
            let is_end = |m: &Result<proto::FetchResponse, Status>| matches!(m, Ok(m) if matches!(m.what, Some(What::End(_))));
            answer
                .filter(move |m| std::future::ready(!is_end(m)))
                .boxed()
        }),
        ("another count", &["protocol"], |answer| {
            let count = |m: Result<proto::FetchResponse, Status>| match m?.what {
                Some(What::End(end)) => says(What::End(proto::FetchEnd {
                    chunks: end.chunks + 1,
                })),
                what => Ok(proto::FetchResponse { what }),
            };
            answer.map(count).boxed()
        }),
        ("an end at once", &["delivery", "protocol"], |answer| {
            let end = says(What::End(proto::FetchEnd { chunks: 1 }));
            answer.take(1).chain(stream::iter([end])).boxed()
        }),
        ("silence", &["stalled"], |_| stream::pending().boxed()),
        ("heartbeats", &["stalled"], |_| {
            stream::repeat_with(|| says(What::Heartbeat(proto::Progress::default()))).boxed()
        }),
        ("slow heartbeats", &["stalled"], |_| {
            stream::repeat_with(|| says(What::Heartbeat(proto::Progress::default())))
                .then(|beat| async {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    beat
                })
                .boxed()
        }),
        ("empty messages", &["stalled"], |_| {
            stream::repeat_with(|| Ok(proto::FetchResponse::default())).boxed()
        }),
        ("every chunk twice", &["protocol"], |answer| {
            answer.flat_map(|m| stream::iter([m.clone(), m])).boxed()
        }),
        ("chunks without end", &["delivery", "protocol"], |answer| {
            let endless = |m: Result<proto::FetchResponse, Status>| {
                let Some(What::Chunk(chunk)) = m.expect("an honest answer").what else {
                    return stream::pending().boxed();
                };
                let mut token = ResumeToken::from_bytes(&chunk.resume).expect("an honest token");
                let delivery = chunk_from_wire(chunk).expect("an honest chunk");
                let next = move || {
                    token.position.element += 1 << 18;
                    says(What::Chunk(chunk_to_wire(&delivery, token.to_bytes())))
                };
                stream::repeat_with(next).boxed()
            };
            answer.flat_map(endless).boxed()
        }),
        ("another request's chunks", &["protocol"], |answer| {
            chunks(|chunk| {
                let mut token = chunk.token();
                token.request = RequestDigest([9; 32]);
                chunk.resume = token.to_bytes();
            })(answer)
        }),
        ("a place to go on that is none", &["protocol"], |answer| {
            chunks(|chunk| chunk.resume = Bytes::from_static(b"anywhere"))(answer)
        }),
        ("always the same place", &["protocol"], |answer| {
            chunks(|chunk| {
                let mut token = chunk.token();
                token.position = Position::default();
                chunk.resume = token.to_bytes();
            })(answer)
        }),
    ];
    for (what, expected, lie) in lies {
        liar.lie(FETCH, lie);
        deceived.fails(what, expected).await;
    }
    deceived.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_statuses_that_are_none_are_refused() {
    let deceived = Deceived::new().await;
    let liar = &deceived.liar;
    type Lie = fn(Messages<Bytes>) -> Messages<Bytes>;
    let lies: [(&str, &[&str], Lie); 8] = [
        ("garbage", &["protocol"], |answer| {
            let garbage = |m: Result<Bytes, Status>| Ok(Bytes::from(vec![0xff; m?.len()]));
            answer.map(garbage).boxed()
        }),
        ("a message of 32 MiB", &["protocol"], |_| {
            stream::iter([Ok(Bytes::from(vec![0; 32 << 20]))]).boxed()
        }),
        (
            "a message that is cut",
            &["protocol", "unreachable"],
            |answer| {
                let cut = |m: Result<Bytes, Status>| m.map(|bytes| bytes.slice(..bytes.len() / 2));
                answer.map(cut).boxed()
            },
        ),
        (
            "a status of a megabyte",
            &["unreachable", "exhausted"],
            |_| {
                let status = Status::internal("x".repeat(1 << 20));
                stream::iter([Err(status)]).boxed()
            },
        ),
        (
            "a status with details that are none",
            &["refused", "unreachable"],
            |_| {
                let details = Bytes::from(vec![0xee; 20_000]);
                let status = Status::with_details(Code::NotFound, "no\u{1b}[2J", details);
                stream::iter([Err(status)]).boxed()
            },
        ),
        (
            "a status with binary words",
            &["refused", "unreachable"],
            |_| {
                let words = (0..2000u32).filter_map(char::from_u32).collect::<String>();
                stream::iter([Err(Status::new(Code::DataLoss, words))]).boxed()
            },
        ),
        ("come back in a thousand years", &["exhausted"], |_| {
            use tonic_types::{ErrorDetails, StatusExt};
            let refusal = Refusal::Exhausted {
                what: "so many".to_owned(),
                retry_after: Some(Duration::from_secs(1 << 35)),
            };
            let (reason, fields) = deltaic_format::wire::refusal_to_reason(&refusal);
            let domain = deltaic_format::wire::DOMAIN;
            let mut details = ErrorDetails::with_error_info(reason, domain, fields);
            details.set_retry_info(Some(Duration::from_secs(1 << 35)));
            let status = Status::with_error_details(Code::ResourceExhausted, "busy", details);
            stream::iter([Err(status)]).boxed()
        }),
        ("leaving for ever", &["refused", "unreachable"], |_| {
            stream::iter([Err(Status::unavailable("so it is"))]).boxed()
        }),
    ];
    for (what, expected, lie) in lies {
        for method in [
            "Transfer/Fetch",
            "Versions/GetSnapshot",
            "Session/Handshake",
        ] {
            liar.lie_in_bytes(method, lie);
            let what = format!("{what} of {method}");
            deceived.fails(&what, expected).await;
        }
    }
    deceived.recovers().await;
}

/// A server whose tree lists patches that it does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patch_ids_that_are_none_are_found_out() {
    use deltaic_format::ids::PatchId;
    use deltaic_format::object::CanonicalObject;

    let deceived = Deceived::new().await;
    let liar = &deceived.liar;
    let real = deceived.scene.snapshot(1);
    let mut forged = real.clone();
    forged.tree.tensors[0].patch = Some(PatchId([7; 32]));
    forged.commit.tree = forged.tree.id();
    forged.id = forged.commit.id();
    let (real_id, forged_id) = (real.id, forged.id);

    let ask_for_real = move |id: &mut Bytes| {
        if **id == forged_id.0 {
            *id = Bytes::copy_from_slice(&real_id.0);
        }
    };
    let asked: Arc<Mutex<Option<Bytes>>> = Arc::default();
    let noted = asked.clone();
    liar.mishear(
        "Versions/GetSnapshot",
        move |request: &mut proto::GetSnapshotRequest| {
            *noted.lock().unwrap() = Some(request.commit.clone());
            ask_for_real(&mut request.commit);
        },
    );
    liar.lie("Versions/GetSnapshot", move |answer| {
        let is_forged = asked
            .lock()
            .unwrap()
            .take()
            .is_some_and(|id| *id == forged_id.0);
        match is_forged {
            true => {
                let parts: Vec<_> = deltaic_format::wire::snapshot_parts(&forged).collect();
                stream::iter(parts.into_iter().map(Ok)).boxed()
            }
            false => answer,
        }
    });
    liar.mishear("Transfer/Plan", move |request: &mut proto::PlanRequest| {
        let fetch = request.fetch.as_mut().expect("a plan of a fetch");
        ask_for_real(&mut fetch.want);
    });
    liar.mishear(
        "Transfer/GetFile",
        move |request: &mut proto::GetFileRequest| {
            ask_for_real(&mut request.commit);
        },
    );
    let digest: Arc<Mutex<Option<RequestDigest>>> = Arc::default();
    let noted = digest.clone();
    liar.mishear(
        "Transfer/Fetch",
        move |request: &mut proto::FetchRequest| {
            let asked = FetchRequest::try_from(&*request).expect("an honest request");
            *noted.lock().unwrap() = Some(asked.digest());
            ask_for_real(&mut request.want);
        },
    );
    liar.lie("Transfer/Fetch", move |answer| {
        let asked = digest.lock().unwrap().expect("it was asked");
        chunks(move |chunk| {
            let mut token = chunk.token();
            token.request = asked;
            chunk.resume = token.to_bytes();
        })(answer)
    });

    let pull = async |trust| {
        let url = &liar.url;
        deceived.scene.pull(url, "replica", forged_id, trust).await
    };
    for trust in [Trust::Server, Trust::Edges, Trust::Content] {
        let error = pull(trust).await.expect_err("a forged patch");
        assert_eq!(kind(&error), "delivery", "{error}");
        let what = "not the one that the commit names";
        assert!(error.to_string().contains(what), "{error}");
        deceived.assert_as_before("a forged patch");
    }
    deceived.recovers().await;
}
