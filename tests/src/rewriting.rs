//! A server between client and server that changes messages on their way: peers of another age.

use crate::linked::Linked;
use crate::network::{Conditions, Incoming, Network, Through};
use bytes::{Buf, BufMut, Bytes};
use deltaic_client::remote::Dial;
use deltaic_client::{Remote, RemoteOptions, Repository};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http;
use tonic::server::{self, NamedService, StreamingService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Messages that are passed on in place of one of them: for a path such as `/deltaic.v1.Session/Handshake`, and whether it
/// goes to the client.
pub type Rewrite = Arc<dyn Fn(&str, Towards, Bytes) -> Vec<Bytes> + Send + Sync>;

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// To the client.
    Client,
    /// To the server.
    Server,
}

/// A channel to the server behind these links.
pub fn channel(network: &Arc<Network>) -> Channel {
    let through = Through(Arc::clone(network));
    let connector = tower::service_fn(move |_| {
        let through = through.clone();
        async move { through.dial("http://server:1").await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://server:1").connect_with_connector_lazy(connector)
}

/// A client of a server whose messages, and those to it, are rewritten on their way.
///
/// # Panics
///
/// If the clock's runtime is not there.
pub fn rewriting_remote(linked: &Linked, rewrite: Rewrite) -> Arc<dyn Repository> {
    let (network, incoming) = Network::new(Conditions::default());
    let relay = Relay {
        channel: channel(&linked.network),
        rewrite,
    };
    tokio::spawn(serve(relay, incoming));
    let options = RemoteOptions::new(["http://relay:1"]);
    let remote = Remote::with_connector(options, Arc::new(Through(network)));
    Arc::new(remote.expect("valid options"))
}

async fn serve(relay: Relay, incoming: Incoming) {
    let served = Server::builder()
        .add_service(Named::<0>(relay.clone()))
        .add_service(Named::<1>(relay.clone()))
        .add_service(Named::<2>(relay.clone()))
        .add_service(Named::<3>(relay))
        .serve_with_incoming(incoming);
    served.await.expect("it can be served");
}

#[derive(Clone)]
struct Relay {
    channel: Channel,
    rewrite: Rewrite,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

/// The services by number.
const SERVICES: [&str; 4] = [
    "deltaic.v1.Session",
    "deltaic.v1.Versions",
    "deltaic.v1.Transfer",
    "deltaic.v1.Admin",
];

#[derive(Debug, Clone)]
struct Named<const SERVICE: usize>(Relay);

impl<const SERVICE: usize> NamedService for Named<SERVICE> {
    const NAME: &'static str = SERVICES[SERVICE];
}

impl<const SERVICE: usize> tower::Service<http::Request<Body>> for Named<SERVICE> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let passing = Passing {
            relay: self.0.clone(),
            path: request.uri().path().to_owned(),
        };
        let most = 64 << 20;
        let mut grpc = server::Grpc::new(Raw).apply_max_message_size_config(Some(most), None);
        async move { Ok(grpc.streaming(passing, request).await) }.boxed()
    }
}

/// One call that is passed on.
struct Passing {
    relay: Relay,
    path: String,
}

impl StreamingService<Bytes> for Passing {
    type Response = Bytes;
    type ResponseStream = BoxStream<'static, Result<Bytes, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (relay, path) = (self.relay.clone(), self.path.clone());
        async move {
            let (rewrite, to) = (Arc::clone(&relay.rewrite), path.clone());
            let requests = request.into_inner().flat_map(move |message| {
                // What cannot be read is the end of what is passed on.
                let messages = message.map(|message| rewrite(&to, Towards::Server, message));
                stream::iter(messages.unwrap_or_default())
            });
            let most = 64 << 20;
            let mut grpc = client::Grpc::new(relay.channel).max_decoding_message_size(most);
            (grpc.ready().await).map_err(|error| Status::unavailable(error.to_string()))?;
            let place = http::uri::PathAndQuery::try_from(&path).expect("it is one");
            let answer = grpc.streaming(Request::new(requests), place, Raw).await?;
            let answers = answer.into_inner().flat_map(move |message| {
                let messages = match message {
                    Ok(message) => (relay.rewrite)(&path, Towards::Client, message)
                        .into_iter()
                        .map(Ok)
                        .collect(),
                    Err(status) => vec![Err(status)],
                };
                stream::iter(messages)
            });
            Ok(Response::new(answers.boxed()))
        }
        .boxed()
    }
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}
