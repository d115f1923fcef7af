//! Old clients and new servers, and the other way round: what has no common protocol says so, and what one end does not know
//! yet is as if it had not been sent.

use bytes::{BufMut, Bytes};
use deltaic_client::asynchronous::pull;
use deltaic_client::publish::commit;
use deltaic_client::transfer::copy_branch;
use deltaic_client::{Checkpoint, ClientError, PullOptions, ReplicaFolder, Repository};
use deltaic_format::progress::Silent;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{self, proto};
use deltaic_tests::linked::{
    Hurry, Linked, collect, large_model, main_branch, policy, request_to, small_model,
};
use deltaic_tests::rewriting::{Rewrite, Towards, channel, rewriting_remote};
use deltaic_tests::stores::assert_same_files;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const HANDSHAKE: &str = "/deltaic.v1.Session/Handshake";

/// What the server answers to a client that speaks these protocols.
async fn handshake(linked: &Linked, oldest: u32, newest: u32) -> Result<u32, Status> {
    let request = proto::HandshakeRequest {
        oldest_protocol: oldest,
        newest_protocol: newest,
        software: "a client of another age".to_owned(),
        codings: Vec::new(),
    };
    let mut grpc = tonic::client::Grpc::new(channel(&linked.network));
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<proto::HandshakeRequest, proto::HandshakeResponse>::default();
    let path = PathAndQuery::from_static(HANDSHAKE);
    let answer = grpc.unary(Request::new(request), path, codec).await?;
    Ok(answer.into_inner().protocol)
}

#[tokio::test(start_paused = true)]
async fn clients_of_another_age_are_told_so() {
    let linked = Linked::direct();
    let newest = wire::PROTOCOL;
    assert_eq!(handshake(&linked, newest, newest).await.unwrap(), newest);
    assert_eq!(handshake(&linked, 0, newest + 7).await.unwrap(), newest);
    for (oldest, newest) in [
        (newest + 1, newest + 1),
        (newest + 1, newest + 9),
        (0, wire::OLDEST_PROTOCOL - 1),
    ] {
        let status = handshake(&linked, oldest, newest).await.expect_err("told");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        // The reason, as it travels in the details.
        let reason = b"INCOMPATIBLE";
        assert!(
            status
                .details()
                .windows(reason.len())
                .any(|at| at == reason)
        );
    }
}

fn rewriting(
    rewrite: impl Fn(&str, Towards, Bytes) -> Vec<Bytes> + Send + Sync + 'static,
) -> Rewrite {
    Arc::new(rewrite)
}

fn incompatible<T: std::fmt::Debug>(result: Result<T, ClientError>) {
    let error = result.expect_err("they have no common protocol");
    let told = matches!(error, ClientError::Refused(Refusal::Incompatible { .. }));
    assert!(told, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn this_client_refuses_what_it_does_not_speak() {
    let linked = Linked::direct();
    for protocol in [0, wire::PROTOCOL + 1, u32::MAX] {
        let remote = rewriting_remote(
            &linked,
            rewriting(move |path, towards, message| {
                if path != HANDSHAKE || towards != Towards::Client {
                    return vec![message];
                }
                let mut answer = proto::HandshakeResponse::decode(message).unwrap();
                answer.protocol = protocol;
                vec![answer.encode_to_vec().into()]
            }),
        );
        incompatible(remote.repos().await);
    }
    // And what the server tells an older or newer client is what that client tells.
    for (oldest, newest) in [(0, 0), (2, 2), (2, 9)] {
        let remote = rewriting_remote(
            &linked,
            rewriting(move |path, towards, message| {
                if path != HANDSHAKE || towards != Towards::Server {
                    return vec![message];
                }
                let mut request = proto::HandshakeRequest::decode(message).unwrap();
                (request.oldest_protocol, request.newest_protocol) = (oldest, newest);
                vec![request.encode_to_vec().into()]
            }),
        );
        incompatible(remote.repos().await);
    }
}

/// Fields that no message has, one of each wire type.
fn unknown_fields() -> Vec<u8> {
    let mut fields = Vec::new();
    let tag = |fields: &mut Vec<u8>, number: u64, kind: u64| {
        prost::encoding::encode_varint(number << 3 | kind, fields);
    };
    tag(&mut fields, 1000, 0);
    prost::encoding::encode_varint(u64::MAX, &mut fields);
    tag(&mut fields, 1001, 1);
    fields.put_u64_le(7);
    tag(&mut fields, 1002, 2);
    let text = b"not known yet";
    prost::encoding::encode_varint(text.len() as u64, &mut fields);
    fields.extend(text);
    tag(&mut fields, 1003, 5);
    fields.put_u32_le(7);
    fields
}

/// The message with unknown fields before and after its own, and inside of those with one of these numbers, all of which are
/// messages themselves.
fn with_unknown(message: &[u8], messages: &[u64]) -> Bytes {
    let mut out = unknown_fields();
    let mut rest = message;
    while !rest.is_empty() {
        let begin = rest;
        let key = prost::encoding::decode_varint(&mut rest).unwrap();
        match key & 7 {
            0 => {
                prost::encoding::decode_varint(&mut rest).unwrap();
            }
            1 => rest = &rest[8..],
            5 => rest = &rest[4..],
            _ => {
                let length = prost::encoding::decode_varint(&mut rest).unwrap() as usize;
                let (content, after) = rest.split_at(length);
                rest = after;
                if messages.contains(&(key >> 3)) {
                    let content = with_unknown(content, &[]);
                    prost::encoding::encode_varint(key, &mut out);
                    prost::encoding::encode_varint(content.len() as u64, &mut out);
                    out.extend(content);
                    continue;
                }
            }
        }
        out.extend(&begin[..begin.len() - rest.len()]);
    }
    out.extend(unknown_fields());
    out.into()
}

/// Everything that travels has fields that the other end does not know, and in answers that are rows of messages some are of
/// kinds that it does not know.
fn with_unknown_everywhere() -> Rewrite {
    rewriting(|path, towards, message| {
        let method = path.rsplit('/').next().unwrap();
        let messages: &[u64] = match (method, towards) {
            ("Fetch", Towards::Client) | ("Upload", Towards::Server) => &[1, 2, 3],
            ("Upload", Towards::Client) => &[1, 2, 3, 4],
            ("Watch", Towards::Client) => &[1],
            ("Fetch", Towards::Server) => &[4, 5],
            _ => &[],
        };
        let message = with_unknown(&message, messages);
        match (method, towards) {
            ("Fetch" | "Upload" | "Watch", Towards::Client) => {
                vec![unknown_fields().into(), message]
            }
            _ => vec![message],
        }
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_yet_is_passed_over() {
    for model in [small_model(), large_model()] {
        let linked = Linked::direct();
        let _hurry = Hurry::start();
        let folders: Vec<_> = (model.into_iter().enumerate())
            .map(|(version, tensors)| linked.checkpoint(&format!("v{version}"), tensors))
            .collect();
        let remote = rewriting_remote(&linked, with_unknown_everywhere());
        let shadow = linked.path("shadow");
        let request = request_to(&policy(), &main_branch(), "over the wire");
        let silent = || Arc::new(Silent);
        let mut ids = Vec::new();
        for folder in &folders {
            let checkpoint = Checkpoint::open(folder).unwrap();
            let remote = Arc::clone(&remote);
            let made = commit(
                remote,
                checkpoint,
                request.clone(),
                shadow.clone(),
                silent(),
            );
            let made = made.await.unwrap();
            linked.assert_stored(made.id, folder);
            ids.push(made.id);
        }
        read_everything(&linked, &remote, &ids).await;
        for version in [0, 2] {
            let want = remote.snapshot(&policy(), ids[version]).await.unwrap();
            let replica = ReplicaFolder::open_or_create(linked.path("replica"), &Silent).unwrap();
            let (from, options) = (Arc::clone(&remote), PullOptions::default());
            let pulled = pull(replica, from, policy(), want, options, silent()).await;
            drop(pulled.unwrap());
            assert_same_files(&linked.path("replica"), &folders[version]);
        }
        let to = Linked::direct();
        let receiver = rewriting_remote(&to, with_unknown_everywhere());
        let copied = copy_branch(remote, receiver, &policy(), &main_branch(), silent()).await;
        assert_eq!(copied.unwrap().head, ids[2]);
        for (&id, folder) in ids.iter().zip(&folders) {
            to.assert_stored(id, folder);
        }
    }
}

/// What is read is what the store has in process.
async fn read_everything(
    linked: &Linked,
    remote: &Arc<dyn Repository>,
    ids: &[deltaic_format::ids::CommitId],
) {
    let local = linked.local();
    let (repo, branch) = (policy(), main_branch());
    assert_eq!(remote.repos().await.unwrap(), [policy()]);
    let branches = remote.branches(&repo).await.unwrap();
    assert_eq!(branches, local.branches(&repo).await.unwrap());
    let (old, new) = (linked.snapshot(ids[0]), linked.snapshot(ids[2]));
    let request = deltaic_format::fetch::FetchRequest::all(policy(), &new, Some(&old));
    let (here, there) = (Arc::clone(&local), Arc::clone(remote));
    let chunks = collect(there, &request).await.unwrap();
    assert!(chunks == collect(here, &request).await.unwrap());
    let silent = || Arc::new(Silent);
    for exactly in [false, true] {
        let plan = remote.plan(&request, exactly, silent()).await.unwrap();
        assert_eq!(plan, local.plan(&request, exactly, silent()).await.unwrap());
    }
    let diff = remote.diff(&repo, &old, &new, silent()).await.unwrap();
    assert_eq!(diff, local.diff(&repo, &old, &new, silent()).await.unwrap());
    let history = remote.history(&repo, ids[2], None).await.unwrap();
    let history: Vec<_> = history.map_ok(|(id, _)| id).try_collect().await.unwrap();
    assert!(history.iter().eq(ids.iter().rev()));
    let mut watch = remote.watch(&repo, &branch, Some(ids[0])).await.unwrap();
    for id in &ids[1..] {
        assert_eq!(watch.next().await.unwrap().unwrap().0, *id);
    }
    let more = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    assert!(more.is_err(), "{more:?}");
    let stats = remote.version_stats(&repo, &new).await.unwrap();
    assert_eq!(stats, local.version_stats(&repo, &new).await.unwrap());
}
