//! Reading requests: a message is looked through before it is decoded, so that a few bytes for each of millions of empty parts do
//! not become gigabytes.

use bytes::Buf;
use deltaic_format::wire::proto;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::any::TypeId;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// Parts of one request at most: spans of a patch set, runs of wishes, slices.
const MAX_PARTS: usize = 1 << 20;

/// As [`ProstCodec`], with bounds on what it decodes.
#[derive(Debug)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes requests.
#[derive(Debug)]
pub(crate) struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Default + 'static> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = message.copy_to_bytes(message.remaining());
        check_parts(&bytes, parts_of::<U>())?;
        let decoded = U::decode(bytes);
        // In the words of tonic, which clients know.
        decoded
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// Fields of a message that are messages and of which there may be many, or that have such fields.
#[derive(Debug)]
struct Parts(&'static [(u32, Parts)]);

const NONE: Parts = Parts(&[]);

/// Wishes; slices with their ranges.
const FETCH: Parts = Parts(&[(4, NONE), (5, Parts(&[(1, NONE), (2, NONE)]))]);

/// The fetch that is planned.
const PLAN: Parts = Parts(&[(1, FETCH)]);

/// The spans of the chunk of an item.
const UPLOAD: Parts = Parts(&[(2, Parts(&[(6, Parts(&[(1, NONE)]))]))]);

fn parts_of<U: 'static>() -> &'static Parts {
    let message = TypeId::of::<U>();
    if message == TypeId::of::<proto::FetchRequest>() {
        &FETCH
    } else if message == TypeId::of::<proto::PlanRequest>() {
        &PLAN
    } else if message == TypeId::of::<proto::UploadRequest>() {
        &UPLOAD
    } else {
        // Of what is repeated in others, each takes about as much room here as there.
        &NONE
    }
}

/// Fail if a message has too many parts. One that cannot be read has none: decoding it says why.
fn check_parts(message: &[u8], parts: &Parts) -> Result<(), Status> {
    if parts.0.is_empty() {
        return Ok(());
    }
    match count(message, parts) {
        Some(count) if count > MAX_PARTS => Err(Status::invalid_argument(format!(
            "a request of more than {MAX_PARTS} parts"
        ))),
        _ => Ok(()),
    }
}

/// How many parts there are; `None` if the message cannot be read.
fn count(mut message: &[u8], parts: &Parts) -> Option<usize> {
    let mut found = 0;
    while message.has_remaining() {
        let (tag, wire) = decode_key(&mut message).ok()?;
        let part = parts.0.iter().find(|(number, _)| *number == tag);
        match (part, wire) {
            (Some((_, inner)), WireType::LengthDelimited) => {
                let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
                let bytes = message.get(..length)?;
                message = &message[length..];
                found += 1 + count(bytes, inner)?;
            }
            _ => skip_field(wire, tag, &mut message, DecodeContext::default()).ok()?,
        }
        if found > MAX_PARTS {
            break;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted<U: Message + 'static>(message: &U) -> Option<usize> {
        count(&message.encode_to_vec(), parts_of::<U>())
    }

    #[test]
    fn parts_are_counted_where_they_are() {
        let fetch = proto::FetchRequest {
            wishes: vec![proto::WishRun::default(); 7],
            slices: vec![
                proto::Slice {
                    ranges: vec![proto::Range::default(); 3],
                    ..Default::default()
                };
                2
            ],
            codings: vec![1, 2, 3],
            ..Default::default()
        };
        assert_eq!(counted(&fetch), Some(7 + 2 + 6));
        let plan = proto::PlanRequest {
            fetch: Some(fetch),
            exactly: true,
        };
        assert_eq!(counted(&plan), Some(1 + 15));
        let chunk = proto::Chunk {
            spans: vec![proto::Span::default(); 5],
            what: Some(proto::chunk::What::Patches(vec![10, 0, 10, 0].into())),
            ..Default::default()
        };
        let item = proto::UploadItem {
            what: Some(proto::upload_item::What::Chunk(chunk)),
            ..Default::default()
        };
        let upload = proto::UploadRequest {
            what: Some(proto::upload_request::What::Item(item)),
        };
        assert_eq!(counted(&upload), Some(1 + 1 + 5));
    }

    #[test]
    fn too_many_parts_are_refused_before_they_take_room() {
        let runs: Vec<u8> = [4 << 3 | 2, 0].repeat(MAX_PARTS + 1);
        let refused = check_parts(&runs, &FETCH).expect_err("too many");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        check_parts(&runs[2..], &FETCH).expect("as many as may be");
        check_parts(&runs, &NONE).expect("another message");
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_decoder() {
        assert_eq!(count(&[4 << 3 | 2, 200], &FETCH), None);
        assert_eq!(count(&[0xff; 20], &FETCH), None);
        assert_eq!(count(&[], &FETCH), Some(0));
    }
}
