//! The two ends of a fetch with nothing of ours in them: a client that counts, a server that sends what it has in memory.

use deltaic_client::remote::rpc::transfer_client::TransferClient;
use deltaic_format::wire::{MAX_MESSAGE_BYTES, proto};
use deltaic_server::serve::made::transfer_server::{Transfer, TransferServer};
use futures::stream::{self, BoxStream};
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming, async_trait};

/// The windows of the client of ours.
const STREAM_WINDOW: u32 = 32 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const FRAME_BYTES: u32 = 1 << 18;

/// How a client of ours sets up its connections.
pub(crate) fn endpoint(url: &str) -> Endpoint {
    Endpoint::from_shared(url.to_owned())
        .expect("the URL is valid")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
}

/// A client on a connection.
pub(crate) fn client(channel: Channel) -> TransferClient<Channel> {
    TransferClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// A client of a server, connected.
pub(crate) async fn connect(url: &str) -> TransferClient<Channel> {
    client(endpoint(url).connect().await.expect("the server is there"))
}

/// Bytes of weights in a message.
pub(crate) fn payload(message: &proto::FetchResponse) -> u64 {
    use proto::chunk::What;
    match &message.what {
        Some(proto::fetch_response::What::Chunk(chunk)) => match &chunk.what {
            Some(What::Patches(bytes) | What::Content(bytes)) => bytes.len() as u64,
            None => 0,
        },
        _ => 0,
    }
}

/// Take a whole answer, giving each message to `take`.
pub(crate) async fn drain(
    client: &mut TransferClient<Channel>,
    request: proto::FetchRequest,
    mut take: impl FnMut(proto::FetchResponse),
) {
    let answer = client.fetch(request).await.expect("it is answered");
    let mut messages = answer.into_inner();
    while let Some(message) = messages.message().await.expect("it goes on") {
        take(message);
    }
}

/// Sends the same messages to everybody.
pub(crate) struct Bare(Arc<[proto::FetchResponse]>);

impl Bare {
    /// Serve `messages` on a free port for as long as the runtime lives.
    pub(crate) async fn start(messages: Vec<proto::FetchResponse>) -> String {
        let service =
            TransferServer::new(Self(messages.into())).max_encoding_message_size(MAX_MESSAGE_BYTES);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = TcpIncoming::bind(any).expect("a port is free");
        let incoming = incoming.with_nodelay(Some(true));
        let address = incoming.local_addr().expect("it has an address");
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming),
        );
        format!("http://{address}")
    }
}

#[async_trait]
impl Transfer for Bare {
    type PlanStream = BoxStream<'static, Result<proto::PlanResponse, Status>>;
    type FetchStream = BoxStream<'static, Result<proto::FetchResponse, Status>>;
    type GetFileStream = BoxStream<'static, Result<proto::GetFileResponse, Status>>;
    type UploadStream = BoxStream<'static, Result<proto::UploadResponse, Status>>;

    async fn fetch(
        &self,
        _: Request<proto::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let messages = self.0.clone();
        let next = move |at: usize| {
            let message = messages.get(at).cloned();
            std::future::ready(message.map(|message| (Ok(message), at + 1)))
        };
        Ok(Response::new(Box::pin(stream::unfold(0, next))))
    }

    async fn plan(
        &self,
        _: Request<proto::PlanRequest>,
    ) -> Result<Response<Self::PlanStream>, Status> {
        Err(Status::unimplemented("it only sends"))
    }

    async fn get_file(
        &self,
        _: Request<proto::GetFileRequest>,
    ) -> Result<Response<Self::GetFileStream>, Status> {
        Err(Status::unimplemented("it only sends"))
    }

    async fn upload(
        &self,
        _: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<Self::UploadStream>, Status> {
        Err(Status::unimplemented("it only sends"))
    }
}
