//! Servers that lie: they pass every call on to an honest server, and change what it answers as a test says.

use bytes::{Buf, BufMut, Bytes};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use prost::Message;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tower::{Service, service_fn};

/// Messages of a call, decoded or not.
pub type Messages<T> = BoxStream<'static, Result<T, Status>>;

type Heard = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;
type Lie = Arc<dyn Fn(Messages<Bytes>) -> Messages<Bytes> + Send + Sync>;

/// Messages as the bytes that they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// Call `method`, such as `deltaic.v1.Transfer/Fetch`, with these messages as they are.
///
/// # Errors
///
/// The status that the server answers at once.
pub async fn call(
    channel: &Channel,
    method: &str,
    messages: impl futures::Stream<Item = Bytes> + Send + 'static,
) -> Result<Messages<Bytes>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone())
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let path = PathAndQuery::try_from(format!("/{method}"))
        .map_err(|error| Status::internal(error.to_string()))?;
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = client.streaming(Request::new(messages), path, RawCodec);
    Ok(answer.await?.into_inner().boxed())
}

/// A server that lies, on a port of its own, for as long as it is kept.
pub struct Liar {
    /// Where it is.
    pub url: String,
    shared: Arc<Shared>,
    _serving: AbortOnDropHandle<()>,
}

impl fmt::Debug for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Liar")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

struct Shared {
    honest: Channel,
    /// By method.
    lies: Mutex<HashMap<&'static str, Lie>>,
    heard: Mutex<HashMap<&'static str, Heard>>,
}

impl Shared {
    fn lies(&self) -> MutexGuard<'_, HashMap<&'static str, Lie>> {
        self.lies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, HashMap<&'static str, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Liar {
    /// Stand before the server at `honest`. Until it is told to lie it passes everything on.
    ///
    /// # Panics
    ///
    /// If there is no port, or the address is none.
    pub async fn before(honest: &str) -> Self {
        let honest = Endpoint::from_shared(honest.to_owned())
            .expect("it is an address")
            .connect_lazy();
        let shared = Arc::new(Shared {
            honest,
            lies: Mutex::default(),
            heard: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let router = tonic::transport::Server::builder()
            .add_service(Sessions(shared.clone()))
            .add_service(Versions(shared.clone()))
            .add_service(Transfers(shared.clone()))
            .add_service(Admins(shared.clone()));
        let serving = tokio::spawn(async move {
            // It goes on until it is dropped.
            let _ = router
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await;
        });
        Self {
            url: format!("http://{address}"),
            shared,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Tell the truth again.
    pub fn repent(&self) {
        self.shared.lies().clear();
        self.shared.heard().clear();
    }

    /// From now on change the answers to `method`, such as `Transfer/Fetch`.
    pub fn lie<T: Message + Default + 'static>(
        &self,
        method: &'static str,
        lie: impl Fn(Messages<T>) -> Messages<T> + Send + Sync + 'static,
    ) {
        self.lie_in_bytes(method, move |answer| {
            let decode = |bytes: Result<Bytes, Status>| {
                let message = T::decode(bytes?);
                message.map_err(|error| Status::internal(error.to_string()))
            };
            let encode = |message: Result<T, Status>| Ok(message?.encode_to_vec().into());
            lie(answer.map(decode).boxed()).map(encode).boxed()
        });
    }

    /// From now on change the requests of `method` before they are passed on.
    ///
    /// # Panics
    ///
    /// When a request cannot be read.
    pub fn mishear<T: Message + Default + 'static>(
        &self,
        method: &'static str,
        change: impl Fn(&mut T) + Send + Sync + 'static,
    ) {
        let heard = move |bytes: Bytes| {
            let mut message = T::decode(bytes).expect("it can be read");
            change(&mut message);
            message.encode_to_vec().into()
        };
        self.shared.heard().insert(method, Arc::new(heard));
    }

    /// [`lie`](Self::lie) with messages as the bytes that they are.
    pub fn lie_in_bytes(
        &self,
        method: &'static str,
        lie: impl Fn(Messages<Bytes>) -> Messages<Bytes> + Send + Sync + 'static,
    ) {
        self.shared.lies().insert(method, Arc::new(lie));
    }
}

/// Ask the honest server, and answer with what becomes of its answer.
async fn answer(shared: Arc<Shared>, request: http::Request<Body>) -> http::Response<Body> {
    let method = request.uri().path().trim_start_matches('/').to_owned();
    let short = method.trim_start_matches("deltaic.v1.");
    let lie = shared.lies().get(short).cloned();
    let heard = shared.heard().get(short).cloned();
    let pass_on = |request: Request<Streaming<Bytes>>| {
        let (honest, method, lie) = (shared.honest.clone(), method.clone(), lie.clone());
        let heard = heard.clone();
        async move {
            let change = move |bytes| match &heard {
                Some(heard) => heard(bytes),
                None => bytes,
            };
            let messages = request.into_inner().filter_map(|m| async { m.ok() });
            let messages = messages.map(change);
            let answer = match call(&honest, &method, messages).await {
                Ok(answer) => answer,
                Err(status) => futures::stream::once(async { Err(status) }).boxed(),
            };
            Ok(Response::new(match lie {
                Some(lie) => lie(answer),
                None => answer,
            }))
        }
    };
    tonic::server::Grpc::new(RawCodec)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
        .streaming(service_fn(pass_on), request)
        .await
}

macro_rules! services {
    ($($service:ident $name:literal),*) => {$(
        #[derive(Clone)]
        struct $service(Arc<Shared>);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                answer(self.0.clone(), request).map(Ok).boxed()
            }
        }
    )*};
}

services!(
    Sessions "deltaic.v1.Session",
    Versions "deltaic.v1.Versions",
    Transfers "deltaic.v1.Transfer",
    Admins "deltaic.v1.Admin"
);
