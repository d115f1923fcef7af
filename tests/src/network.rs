//! Servers that are reached over links which delay, limit, cut, stall, corrupt and half-close, all within this process, so
//! that a paused clock rules the time.

use deltaic_client::remote::{Dial, Link};
use futures::future::BoxFuture;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

/// Bytes that an end writes before the link takes them up.
const END_BUFFER: usize = 256 << 10;

/// Bytes that are on their way at most: a window for long fat links.
const IN_FLIGHT: usize = 256 << 20;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From a server to a client.
    ToClient,
    /// From a client to a server.
    ToServer,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is gone, both ways.
    Cut,
    /// Nothing comes any more this way, and nobody is told.
    Stall,
    /// The receiver is told that nothing more comes; the other way goes on.
    HalfClose,
    /// One bit is another one.
    Corrupt,
}

/// A fault that happens once.
#[derive(Debug, Clone, Copy)]
pub struct FaultAt {
    /// Which bytes it befalls.
    pub way: Way,
    /// After so many of them, counted over all connections since the last [`Network::plan`].
    pub after: u64,
    /// What happens.
    pub fault: Fault,
}

/// How a link is when nothing goes wrong.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// From one end to the other.
    pub delay: Duration,
    /// Bytes per second each way; `None` for no limit.
    pub rate: Option<u64>,
}

/// Links to one server.
#[derive(Debug)]
pub struct Network {
    conditions: Conditions,
    server: Mutex<mpsc::UnboundedSender<io::Result<ServerEnd>>>,
    faults: Mutex<Vec<FaultAt>>,
    to_client: AtomicU64,
    to_server: AtomicU64,
    read_by_server: Arc<AtomicU64>,
    connections: AtomicU64,
}

/// The connections that arrive at a server.
pub type Incoming = tokio_stream::wrappers::UnboundedReceiverStream<io::Result<ServerEnd>>;

impl Network {
    /// Links of these conditions, and where their connections arrive.
    pub fn new(conditions: Conditions) -> (Arc<Self>, Incoming) {
        let (server, incoming) = mpsc::unbounded_channel();
        let network = Self {
            conditions,
            server: Mutex::new(server),
            faults: Mutex::default(),
            to_client: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            read_by_server: Arc::default(),
            connections: AtomicU64::new(0),
        };
        (Arc::new(network), Incoming::new(incoming))
    }

    /// Where connections arrive from now on: at another server, as after a restart.
    pub fn reroute(&self) -> Incoming {
        let (server, incoming) = mpsc::unbounded_channel();
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
        Incoming::new(incoming)
    }

    /// Let these faults happen, and count bytes and connections from 0.
    pub fn plan(&self, faults: Vec<FaultAt>) {
        *self.faults() = faults;
        let counters = [&self.to_client, &self.to_server, &self.connections];
        for counter in counters.into_iter().chain([&*self.read_by_server]) {
            counter.store(0, Ordering::SeqCst);
        }
    }

    /// Bytes that have gone a way.
    pub fn bytes(&self, way: Way) -> u64 {
        self.counter(way).load(Ordering::SeqCst)
    }

    /// Bytes that the server has read: of those that have gone to it, all but what a cut has lost on its way.
    pub fn read_by_server(&self) -> u64 {
        self.read_by_server.load(Ordering::SeqCst)
    }

    /// Connections that were made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Faults that have not happened yet.
    pub fn faults_left(&self) -> usize {
        self.faults().len()
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Vec<FaultAt>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counter(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::ToClient => &self.to_client,
            Way::ToServer => &self.to_server,
        }
    }

    /// The fault that befalls the next `len` bytes of a way, if one does, and how many of them go before it.
    fn next_fault(&self, way: Way, len: usize) -> (usize, Option<Fault>) {
        let mut faults = self.faults();
        let counter = self.counter(way);
        let begin = counter.load(Ordering::SeqCst);
        let end = begin + len as u64;
        let due = (faults.iter().enumerate())
            .filter(|(_, at)| at.way == way && at.after < end)
            .min_by_key(|(_, at)| at.after)
            .map(|(number, _)| number);
        let Some(number) = due else {
            counter.store(end, Ordering::SeqCst);
            return (len, None);
        };
        let at = faults.remove(number);
        let before = at.after.saturating_sub(begin) as usize;
        counter.store(begin + before as u64, Ordering::SeqCst);
        (before, Some(at.fault))
    }

    fn connect(self: &Arc<Self>) -> io::Result<DuplexStream> {
        let (client, client_far) = tokio::io::duplex(END_BUFFER);
        let (server_far, server) = tokio::io::duplex(END_BUFFER);
        let sender = self
            .server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let server = ServerEnd {
            end: server,
            read: Arc::clone(&self.read_by_server),
        };
        sender
            .send(Ok(server))
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        self.connections.fetch_add(1, Ordering::SeqCst);
        let (from_client, to_client) = tokio::io::split(client_far);
        let (from_server, to_server) = tokio::io::split(server_far);
        let cut = CancellationToken::new();
        tokio::spawn(Arc::clone(self).carry(Way::ToServer, from_client, to_server, cut.clone()));
        tokio::spawn(Arc::clone(self).carry(Way::ToClient, from_server, to_client, cut));
        Ok(client)
    }

    /// Carry bytes one way until an end closes or a fault ends it.
    async fn carry(
        self: Arc<Self>,
        way: Way,
        from: ReadHalf<DuplexStream>,
        to: WriteHalf<DuplexStream>,
        cut: CancellationToken,
    ) {
        let (sender, arriving) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(IN_FLIGHT));
        let arrive = arrive(to, arriving, Arc::clone(&room));
        let depart = self.depart(way, from, sender, room, cut.clone());
        tokio::select! {
            () = cut.cancelled() => {}
            _ = async { tokio::join!(depart, arrive) } => {}
        }
    }

    async fn depart(
        &self,
        way: Way,
        mut from: ReadHalf<DuplexStream>,
        arriving: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
        room: Arc<Semaphore>,
        cut: CancellationToken,
    ) {
        let mut buffer = vec![0; 64 << 10];
        let mut free = Instant::now();
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            let mut at = 0;
            while at < len {
                let (before, fault) = self.next_fault(way, len - at);
                let mut bytes = buffer[at..at + before].to_vec();
                at += before;
                if fault == Some(Fault::Corrupt) {
                    bytes.push(buffer[at] ^ 4);
                    self.counter(way).fetch_add(1, Ordering::SeqCst);
                    at += 1;
                }
                if let Some(rate) = self.conditions.rate {
                    let time = Duration::from_secs_f64(bytes.len() as f64 / rate as f64);
                    free = free.max(Instant::now()) + time;
                } else {
                    free = Instant::now();
                }
                if let Ok(permit) = room.acquire_many(bytes.len() as u32).await {
                    permit.forget();
                }
                if arriving
                    .send((free + self.conditions.delay, bytes))
                    .is_err()
                {
                    return;
                }
                match fault {
                    Some(Fault::Cut) => {
                        // What is on its way still arrives, as with a closed socket.
                        tokio::time::sleep_until(free + self.conditions.delay).await;
                        let all = room.acquire_many(IN_FLIGHT as u32).await;
                        drop(all);
                        cut.cancel();
                        return;
                    }
                    Some(Fault::Stall) => std::future::pending::<()>().await,
                    Some(Fault::HalfClose) => return,
                    Some(Fault::Corrupt) | None => {}
                }
            }
        }
    }
}

async fn arrive(
    mut to: WriteHalf<DuplexStream>,
    mut arriving: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    room: Arc<Semaphore>,
) {
    while let Some((due, bytes)) = arriving.recv().await {
        tokio::time::sleep_until(due).await;
        let written = to.write_all(&bytes).await;
        room.add_permits(bytes.len());
        if written.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// A server's end of a connection, which counts what is read of it.
#[derive(Debug)]
pub struct ServerEnd {
    end: DuplexStream,
    read: Arc<AtomicU64>,
}

impl Connected for ServerEnd {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for ServerEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.end).poll_read(context, buffer);
        let len = buffer.filled().len() - before;
        self.read.fetch_add(len as u64, Ordering::SeqCst);
        read
    }
}

impl AsyncWrite for ServerEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(context)
    }
}

/// A client's way through a [`Network`].
#[derive(Debug, Clone)]
pub struct Through(pub Arc<Network>);

impl Dial for Through {
    fn dial<'a>(&'a self, _endpoint: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>> {
        let connected = self.0.connect();
        Box::pin(async move { connected.map(|end| Box::new(end) as Box<dyn Link>) })
    }
}
