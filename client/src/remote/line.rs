//! The bytes between two ends: how a server is dialled, and a line that can be hung up.

use futures::future::BoxFuture;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::Uri;

/// A byte stream in both directions.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// How a server is reached.
pub trait Dial: Send + Sync {
    /// Open a byte stream to the server at `endpoint`, `http://HOST:PORT`.
    fn dial<'a>(&'a self, endpoint: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>>;
}

/// Dials over TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, endpoint: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>> {
        Box::pin(async move {
            let uri: Uri = endpoint.parse().map_err(io::Error::other)?;
            let host = uri.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Link>)
        })
    }
}

/// What is seen of the other end of a line.
#[derive(Debug, Default)]
pub(super) struct Signs {
    ended: AtomicBool,
    came: AtomicU64,
}

impl Signs {
    /// Whether the other end is gone.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How many bytes have come, whatever they were for.
    pub(super) fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

/// A link that ends when it is hung up, whatever its other end does, and that tells what it sees of that.
pub(super) struct Line {
    link: Box<dyn Link>,
    hung_up: CancellationToken,
    hanging_up: Pin<Box<WaitForCancellationFutureOwned>>,
    signs: Arc<Signs>,
}

impl Line {
    pub(super) fn new(link: Box<dyn Link>, hung_up: CancellationToken, signs: Arc<Signs>) -> Self {
        Self {
            link,
            hanging_up: Box::pin(hung_up.clone().cancelled_owned()),
            hung_up,
            signs,
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.hung_up.is_cancelled() {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.hanging_up.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = (buffer.filled().len(), buffer.remaining());
        let read = ready!(Pin::new(&mut self.link).poll_read(cx, buffer));
        let came = buffer.filled().len() - before.0;
        self.signs.came.fetch_add(came as u64, Ordering::Relaxed);
        if read.is_err() || (before.1 > 0 && came == 0) {
            self.signs.ended.store(true, Ordering::Release);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.link).poll_write(cx, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.link).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.link.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}
