//! Memory of a server, the program itself, that many slow readers hang on to.

use super::Figure;
use super::raw;
use super::scene::{Scene, repo};
use deltaic_format::fetch::{FetchRequest, wishes_between};
use deltaic_format::object::Snapshot;
use deltaic_format::wire::proto;
use deltaic_tests::program::{Program, resident};
use deltaic_tests::servers::Serving;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tonic::transport::Uri;

const READERS: usize = 200;

/// A reader takes so many bytes,
const AT_ONCE: usize = 64 << 10;
/// then none for so long,
const PAUSE: Duration = Duration::from_secs(1);
/// until so much time has gone by.
const LASTING: Duration = Duration::from_secs(12);

/// Bytes that the server may have resident.
const MOST: f64 = 1e9;

/// The same request from all, and another from each.
pub(crate) async fn measure(scene: &Scene) -> Vec<Figure> {
    let store = scene.open();
    let snapshot = |version: usize| store.snapshot(scene.versions[version]);
    let [old, new] = [0, 1].map(|version| snapshot(version).expect("it is there"));
    // The servers are other processes, and a store is one's alone.
    drop(store);
    let same = (0..READERS)
        .map(|_| FetchRequest::all(repo(), &old, None))
        .collect();
    let different = (0..READERS).map(|reader| different(&old, &new, reader));
    let patches = (0..READERS).map(|reader| without(&new, Some(&old), reader));
    vec![
        of("the same 1 GB", scene, same).await,
        of("1 GB each, none the same", scene, different.collect()).await,
        of("patches, none the same", scene, patches.collect()).await,
    ]
}

/// Half of them want what is stored as bases, half what lies a patch further.
fn different(old: &Snapshot, new: &Snapshot, reader: usize) -> FetchRequest {
    let want = if reader.is_multiple_of(2) { old } else { new };
    without(want, None, reader)
}

/// All of `want` but one or two tensors, others for each reader.
fn without(want: &Snapshot, held: Option<&Snapshot>, reader: usize) -> FetchRequest {
    let tensors = want.tree.tensors.len();
    let without = [reader, reader + reader / tensors].map(|tensor| tensor % tensors);
    let mut wishes = wishes_between(held, want);
    wishes.retain(|wish| !without.contains(&wish.tensor));
    FetchRequest::new(repo(), want, held, &wishes)
}

async fn of(what: &str, scene: &Scene, requests: Vec<FetchRequest>) -> Figure {
    let program = Program::beside_this_one().unwrap_or_else(|why| panic!("{why}"));
    let server = Serving::start(&program, scene.folder.path(), &scene.path(), &[]);
    let (idle, _) = resident(server.pid()).expect("the server runs");
    let (bytes, begun) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut readers = JoinSet::new();
    for request in requests {
        let address = server.url().trim_start_matches("http://").to_owned();
        let (bytes, begun) = (bytes.clone(), begun.clone());
        readers.spawn(read(address, (&request).into(), bytes, begun));
    }
    sleep(LASTING).await;
    let (now, most) = resident(server.pid()).expect("the server runs");
    readers.shutdown().await;
    let begun = begun.load(Ordering::Relaxed);
    let what = format!("memory of a server with {READERS} slow readers of {what}, in GB");
    let note = format!(
        "{begun} were answered; {:.0} MB idle, {:.0} MB in the end; read {:.0} MB in all",
        idle as f64 / 1e6,
        now as f64 / 1e6,
        bytes.load(Ordering::Relaxed) as f64 / 1e6
    );
    let mut figure = Figure::at_most(&what, most as f64 / 1e9, MOST / 1e9).noting(note);
    figure.met &= begun == READERS;
    figure
}

async fn read(
    address: String,
    request: proto::FetchRequest,
    bytes: Arc<AtomicU64>,
    begun: Arc<AtomicUsize>,
) {
    let url = format!("http://{address}");
    let connect = move |_: Uri| {
        let (address, bytes) = (address.clone(), bytes.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            Ok::<_, io::Error>(TokioIo::new(Slow::new(stream, bytes)))
        }
    };
    let connector = tower::service_fn(connect);
    let channel = raw::endpoint(&url).connect_with_connector(connector).await;
    let mut client = raw::client(channel.expect("the server is there"));
    let answer = client.fetch(request).await.expect("it is answered");
    begun.fetch_add(1, Ordering::Relaxed);
    let mut messages = answer.into_inner();
    while messages.message().await.expect("it goes on").is_some() {}
}

/// A connection that is read slowly.
struct Slow {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
    left: usize,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Slow {
    fn new(stream: TcpStream, bytes: Arc<AtomicU64>) -> Self {
        Self {
            stream,
            bytes,
            left: AT_ONCE,
            pause: None,
        }
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left == 0 {
            let pause = this.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            std::task::ready!(pause.as_mut().poll(context));
            (this.pause, this.left) = (None, AT_ONCE);
        }
        let most = this.left.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
        let len = part.filled().len();
        buffer.advance(len);
        this.left -= len;
        this.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Slow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
