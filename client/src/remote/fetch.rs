//! Fetches and files: their bytes go on where they were cut off.

use super::Remote;
use super::connection::{Connection, Incoming};
use super::status::{Failure, Fault};
use super::stream::{Next, Reader, Resumed};
use crate::error::Result;
use bytes::Bytes;
use deltaic_format::fetch::{Chunk, Delivery, FetchRequest, Position, RequestDigest, Span};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::RepoName;
use deltaic_format::wire::{self, ResumeToken, proto};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

impl Remote {
    pub(super) async fn fetch_chunks(
        &self,
        request: &FetchRequest,
        from: Position,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let fetching = Fetching::new(request, from);
        Resumed::start(self.connections.clone(), fetching).await
    }

    pub(super) async fn file_parts(
        &self,
        repo: &RepoName,
        version: CommitId,
        id: FileId,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let request = proto::GetFileRequest {
            repo: repo.to_string(),
            file: wire::id_bytes(&id),
            offset: 0,
            commit: wire::id_bytes(&version),
        };
        let reading = ReadingFile { request, version };
        Resumed::start(self.connections.clone(), reading).await
    }
}

/// Reads the answer to a fetch.
struct Fetching {
    /// With the place to go on at.
    request: proto::FetchRequest,
    digest: RequestDigest,
    version: CommitId,
    order: Order,
    /// Chunks since the beginning or the last resumption.
    chunks: u64,
}

impl Fetching {
    fn new(request: &FetchRequest, from: Position) -> Self {
        let digest = request.digest();
        let mut wire = proto::FetchRequest::from(request);
        if from != Position::default() {
            let token = ResumeToken {
                request: digest,
                position: from,
            };
            wire.resume = token.to_bytes();
        }
        Self {
            request: wire,
            digest,
            version: request.want,
            order: Order::new(request, from),
            chunks: 0,
        }
    }

    fn take_chunk(&mut self, chunk: proto::Chunk) -> Result<Chunk, Fault> {
        let resume = chunk.resume.clone();
        let delivery =
            wire::chunk_from_wire(chunk).map_err(|error| Fault::Damaged(error.to_string()))?;
        let token = ResumeToken::from_bytes(&resume)?;
        if token.request != self.digest {
            let what = "a chunk belongs to another request".to_owned();
            return Err(Fault::Protocol(what));
        }
        let next = token.position;
        self.order.take(&delivery, next).map_err(Fault::Protocol)?;
        self.request.resume = resume;
        self.chunks += 1;
        Ok(Chunk { delivery, next })
    }
}

impl Reader for Fetching {
    type Message = proto::FetchResponse;
    type Item = Chunk;

    fn version(&self) -> CommitId {
        self.version
    }

    fn open(
        &mut self,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Result<Incoming<Self::Message>, Failure>> {
        self.chunks = 0;
        let request = self.request.clone();
        Box::pin(async move {
            let mut transfer = connection.transfer();
            connection.open_stream(transfer.fetch(request)).await
        })
    }

    fn take(&mut self, message: Self::Message, items: &mut VecDeque<Chunk>) -> Result<Next, Fault> {
        use proto::fetch_response::What;
        match message.what {
            // A message of a kind that this build does not know may be ignored, as the protocol's number says.
            None | Some(What::Heartbeat(_)) => Ok(Next::More),
            Some(What::End(end)) if end.chunks == self.chunks => Ok(Next::Nothing),
            Some(What::End(end)) => Err(Fault::Protocol(format!(
                "it says that it sent {} chunks, {} came",
                end.chunks, self.chunks
            ))),
            Some(What::Chunk(chunk)) => {
                items.push_back(self.take_chunk(chunk)?);
                Ok(Next::More)
            }
        }
    }
}

/// What of an answer came: each span once, of tensors that were wished for, in the order of their elements.
struct Order {
    /// Ascending.
    wished: Vec<Range<usize>>,
    seen: HashSet<usize>,
    /// The tensor that comes, and how far.
    at: Option<(usize, u64)>,
    /// Where the answer goes on.
    next: Position,
}

impl Order {
    fn new(request: &FetchRequest, from: Position) -> Self {
        Self {
            wished: request
                .wishes
                .iter()
                .map(|run| run.tensors.clone())
                .collect(),
            seen: HashSet::new(),
            at: None,
            next: from,
        }
    }

    /// Take a delivery after which the answer goes on at `next`.
    fn take(&mut self, delivery: &Delivery, next: Position) -> Result<(), String> {
        if next <= self.next {
            return Err("an answer does not get on".to_owned());
        }
        match delivery {
            Delivery::Patches { members, .. } => {
                members.iter().try_for_each(|span| self.span(span))
            }
            Delivery::Content { span, .. } => self.span(span),
        }?;
        self.next = next;
        Ok(())
    }

    fn span(&mut self, span: &Span) -> Result<(), String> {
        let Span { tensor, first, .. } = *span;
        if span.elements == 0 {
            return Err(format!("it sends no elements of tensor {tensor}"));
        }
        match self.at {
            Some((at, end)) if at == tensor && first < end => {
                return Err(format!("it sends elements of tensor {tensor} twice"));
            }
            Some((at, _)) if at == tensor => {}
            _ => {
                let run = self.wished.partition_point(|run| run.end <= tensor);
                if !self
                    .wished
                    .get(run)
                    .is_some_and(|run| run.contains(&tensor))
                {
                    return Err(format!("it sends tensor {tensor}, which was not asked for"));
                }
                if !self.seen.insert(tensor) {
                    return Err(format!("it sends tensor {tensor} twice"));
                }
            }
        }
        self.at = Some((tensor, span.end()));
        Ok(())
    }
}

/// Reads a file.
struct ReadingFile {
    /// With the place to go on at.
    request: proto::GetFileRequest,
    version: CommitId,
}

impl Reader for ReadingFile {
    type Message = proto::GetFileResponse;
    type Item = Bytes;

    fn version(&self) -> CommitId {
        self.version
    }

    fn open(
        &mut self,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Result<Incoming<Self::Message>, Failure>> {
        let request = self.request.clone();
        Box::pin(async move {
            let mut transfer = connection.transfer();
            connection.open_stream(transfer.get_file(request)).await
        })
    }

    fn take(&mut self, part: Self::Message, items: &mut VecDeque<Bytes>) -> Result<Next, Fault> {
        let (data, complete) = wire::file_part_from_wire(self.request.offset, part)
            .map_err(|error| Fault::Damaged(error.to_string()))?;
        if data.is_empty() && !complete {
            let what = "it sends an empty part of a file".to_owned();
            return Err(Fault::Protocol(what));
        }
        if !data.is_empty() {
            let length = data.len() as u64;
            self.request.offset = (self.request.offset.checked_add(length))
                .ok_or_else(|| Fault::Protocol("a file without end".to_owned()))?;
            items.push_back(data);
        }
        Ok(match complete {
            true => Next::Nothing,
            false => Next::More,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::fetch::{HeldContents, WishRun};
    use std::collections::BTreeMap;

    fn request() -> FetchRequest {
        let run = |tensors| WishRun {
            tensors,
            held: HeldContents::Nothing,
        };
        FetchRequest {
            repo: RepoName::new("acme/policy").expect("valid"),
            want: CommitId([1; 32]),
            held: None,
            wishes: vec![run(0..2), run(4..6)],
            slices: BTreeMap::new(),
        }
    }

    fn fetching() -> Fetching {
        Fetching::new(&request(), Position::default())
    }

    fn place(wish: u64, element: u64) -> Position {
        Position {
            wish,
            element,
            kind: None,
        }
    }

    fn token(position: Position) -> Bytes {
        let request = request().digest();
        ResumeToken { request, position }.to_bytes()
    }

    /// Eight elements, after which the answer goes on at `resume`.
    fn chunk(tensor: usize, first: u64, resume: Bytes) -> proto::FetchResponse {
        let span = Span {
            tensor,
            first,
            elements: 8,
        };
        let bytes = Bytes::from_static(b"base");
        let chunk = wire::chunk_to_wire(&Delivery::Content { span, bytes }, resume);
        let what = Some(proto::fetch_response::What::Chunk(chunk));
        proto::FetchResponse { what }
    }

    fn end(chunks: u64) -> proto::FetchResponse {
        let end = proto::FetchEnd { chunks };
        let what = Some(proto::fetch_response::What::End(end));
        proto::FetchResponse { what }
    }

    #[test]
    fn chunks_are_taken_in_order_and_move_the_place_to_go_on_at() {
        let mut fetching = fetching();
        assert!(fetching.request.resume.is_empty());
        let mut items = VecDeque::new();
        for message in [
            chunk(4, 0, token(place(0, 8))),
            chunk(4, 8, token(place(1, 0))),
            proto::FetchResponse { what: None },
            chunk(0, 0, token(place(2, 0))),
        ] {
            assert_eq!(fetching.take(message, &mut items), Ok(Next::More));
        }
        assert_eq!(fetching.request.resume, token(place(2, 0)));
        assert_eq!(fetching.take(end(3), &mut items), Ok(Next::Nothing));
        let next = items.iter().map(|chunk| chunk.next);
        assert!(next.eq([place(0, 8), place(1, 0), place(2, 0)]));
    }

    #[test]
    fn a_fetch_begins_where_it_is_told_to() {
        let from = place(1, 8);
        let mut fetching = Fetching::new(&request(), from);
        assert_eq!(fetching.request.resume, token(from));
        let mut items = VecDeque::new();
        let back = fetching.take(chunk(1, 8, token(from)), &mut items);
        assert!(matches!(back, Err(Fault::Protocol(_))));
    }

    #[test]
    fn repeats_and_strangers_are_faults() {
        let wrong = |messages: Vec<proto::FetchResponse>, why: &str| {
            let (mut fetching, mut items) = (fetching(), VecDeque::new());
            let last = messages.len() - 1;
            for (index, message) in messages.into_iter().enumerate() {
                match fetching.take(message, &mut items) {
                    Ok(_) => assert!(index < last, "{why} was taken"),
                    Err(Fault::Protocol(what)) => {
                        assert_eq!(index, last);
                        assert!(what.contains(why), "{what}");
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        };
        let at = |wish, element| token(place(wish, element));
        wrong(vec![chunk(0, 0, at(0, 8)), chunk(0, 8, at(0, 8))], "get on");
        wrong(vec![chunk(0, 0, at(1, 0)), chunk(1, 0, at(0, 8))], "get on");
        wrong(vec![chunk(0, 0, Bytes::new())], "resume token");
        let (request, position) = (RequestDigest([9; 32]), place(0, 8));
        let foreign = ResumeToken { request, position }.to_bytes();
        wrong(vec![chunk(0, 0, foreign)], "another request");
        wrong(vec![chunk(0, 0, at(0, 8)), chunk(0, 0, at(0, 16))], "twice");
        let again = vec![
            chunk(0, 0, at(1, 0)),
            chunk(1, 0, at(2, 0)),
            chunk(0, 8, at(3, 0)),
        ];
        wrong(again, "twice");
        for stranger in [2, 3, 6, usize::MAX] {
            wrong(vec![chunk(stranger, 0, at(1, 0))], "not asked for");
        }
        wrong(vec![chunk(0, 0, at(0, 8)), end(2)], "2 chunks, 1 came");
    }

    #[test]
    fn parts_of_a_file_move_the_place_to_go_on_at_and_are_not_empty() {
        let mut reading = ReadingFile {
            request: proto::GetFileRequest::default(),
            version: CommitId([1; 32]),
        };
        let mut items = VecDeque::new();
        let mut take = |data: &'static [u8], complete| {
            let part = |offset| wire::file_part(offset, Bytes::from_static(data), complete);
            let elsewhere = part(reading.request.offset + 1);
            let fault = reading.take(elsewhere, &mut items).expect_err("damaged");
            assert!(matches!(fault, Fault::Damaged(_)), "{fault:?}");
            reading.take(part(reading.request.offset), &mut items)
        };
        assert_eq!(take(b"abc", false), Ok(Next::More));
        assert!(matches!(take(b"", false), Err(Fault::Protocol(_))));
        assert_eq!(take(b"", true), Ok(Next::Nothing));
        assert_eq!((reading.request.offset, items.len()), (3, 1));
    }

    #[test]
    fn a_damaged_chunk_moves_nothing() {
        let (mut fetching, mut items) = (fetching(), VecDeque::new());
        let good = || chunk(0, 0, token(place(0, 8)));
        let mut bad = good();
        if let Some(proto::fetch_response::What::Chunk(chunk)) = &mut bad.what {
            chunk.crc32 ^= 1;
        }
        let fault = fetching.take(bad, &mut items).expect_err("damaged");
        assert!(matches!(fault, Fault::Damaged(_)));
        for change in [
            |c: &mut proto::Chunk| c.spans[0].tensor = 1,
            |c: &mut proto::Chunk| c.resume = Bytes::from_static(b"elsewhere"),
        ] {
            let mut bad = good();
            if let Some(proto::fetch_response::What::Chunk(chunk)) = &mut bad.what {
                change(chunk);
            }
            let fault = fetching.take(bad, &mut items).expect_err("damaged");
            assert!(matches!(fault, Fault::Damaged(_)), "{fault:?}");
        }
        assert!(items.is_empty() && fetching.request.resume.is_empty());
        assert_eq!(fetching.take(good(), &mut items), Ok(Next::More));
    }
}
