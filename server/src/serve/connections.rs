//! Connections: how many at a time, how long a new one may be silent, and their end.

use super::ServeOptions;
use futures::{Stream, StreamExt, stream};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Wait after an accept that failed, such as for want of file descriptors: it would fail again at once.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Bytes that every client of HTTP/2 begins with.
const GREETING_BYTES: usize = 24;

/// Who is let in.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    most: usize,
    greeting: Duration,
    now: CancellationToken,
}

impl Gate {
    /// Of a server with these options; all connections end when `now` says so.
    pub(crate) fn new(options: &ServeOptions, now: CancellationToken) -> Self {
        let most = options.max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(most)),
            most,
            greeting: options.greeting,
            now,
        }
    }

    fn admit<IO>(&self, io: IO) -> Option<Connection<IO>> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            tracing::warn!(
                connections = self.most,
                "a connection was refused, there are too many"
            );
            return None;
        };
        Some(Connection {
            io,
            _place: place,
            greeted: 0,
            patience: Some(Box::pin(tokio::time::sleep(self.greeting))),
            now: Box::pin(self.now.clone().cancelled_owned()),
            ended: self.now.clone(),
        })
    }
}

/// The connections that come to a listener.
pub(crate) fn accept(
    listener: TcpListener,
) -> impl Stream<Item = io::Result<TcpStream>> + Send + 'static {
    stream::unfold(listener, |listener| async move {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => {
                    // Small messages go out at once. What cannot be set only costs time.
                    let _ = connection.set_nodelay(true);
                    return Some((Ok(connection), listener));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
    })
}

/// Those of `incoming` that are let in. It never ends: that would end the connections that there are.
pub(crate) fn admit<IO>(
    gate: Gate,
    incoming: impl Stream<Item = io::Result<IO>> + Send + 'static,
) -> impl Stream<Item = io::Result<Connection<IO>>> + Send + 'static
where
    IO: Send + 'static,
{
    let admitted = incoming.filter_map(move |io| {
        let admitted = match io {
            Ok(io) => gate.admit(io).map(Ok),
            Err(error) => Some(Err(error)),
        };
        std::future::ready(admitted)
    });
    admitted.chain(stream::pending())
}

/// A connection that was let in.
pub(crate) struct Connection<IO> {
    io: IO,
    _place: OwnedSemaphorePermit,
    greeted: usize,
    /// Until it has greeted.
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
    now: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: CancellationToken,
}

impl<IO: Connected> Connected for Connection<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the server ends")
}

impl<IO: AsyncRead + Unpin> AsyncRead for Connection<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.now.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(closed()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(context, buffer);
        if let Some(patience) = &mut this.patience {
            this.greeted += buffer.filled().len() - before;
            if this.greeted >= GREETING_BYTES {
                this.patience = None;
            } else if read.is_pending() && patience.as_mut().poll(context).is_ready() {
                tracing::debug!("a connection was closed that said nothing");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Connection<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.ended.is_cancelled() {
            return Poll::Ready(Err(closed()));
        }
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.ended.is_cancelled() {
            return Poll::Ready(Err(closed()));
        }
        Pin::new(&mut self.io).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ended.is_cancelled() {
            return Poll::Ready(Err(closed()));
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
