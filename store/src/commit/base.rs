//! Writing a content as a base, streamed through a pack.

use super::{Made, PendingBase, Writing};
use crate::error::Result;
use crate::packs::PackWriter;
use crate::records::ContentKey;
use deltaic_format::base::BaseEncoder;
use deltaic_format::ids::TensorId;
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count};
use deltaic_format::{ElementClass, Moments};

/// A content that was read from end to end.
pub(super) struct Whole {
    pub(super) id: TensorId,
    pub(super) moments: Moments,
    /// Bytes of its base.
    pub(super) base_len: u64,
}

impl Writing<'_> {
    /// Read a content piece by piece and append its base to a pack, where it is to be kept or discarded next.
    pub(super) fn stream_base(
        &self,
        class: ElementClass,
        elements: u64,
        packs: &mut PackWriter<'_>,
        mut read: impl FnMut(u64) -> Result<Vec<u8>>,
    ) -> Result<Whole> {
        packs.begin()?;
        let mut encoded = Vec::new();
        let mut encoder = BaseEncoder::new(class, elements, &mut encoded);
        let mut hasher = blake3::Hasher::new();
        let mut moments = Moments::default();
        for piece in 0..piece_count(elements) {
            self.check_cancelled()?;
            let content = read(piece)?;
            hasher.update(&content);
            moments = moments + Moments::of(class, piece * PIECE_ELEMENTS, &content);
            encoder.blocks(&content, &mut encoded);
            packs.append(&encoded)?;
            encoded.clear();
        }
        encoder.finish(&mut encoded);
        packs.append(&encoded)?;
        Ok(Whole {
            id: TensorId(*hasher.finalize().as_bytes()),
            moments,
            base_len: packs.base_len(),
        })
    }

    /// Keep the base streamed last, unless its content is stored already.
    pub(super) fn keep_base(
        &self,
        class: ElementClass,
        elements: u64,
        whole: &Whole,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        if self.is_sound(ContentKey::new(class, whole.id))? {
            return packs.discard_base();
        }
        self.add_base(class, elements, whole, packs, made)
    }

    /// Keep the base streamed last, unless that of the same content is being written already.
    pub(super) fn add_base(
        &self,
        class: ElementClass,
        elements: u64,
        whole: &Whole,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        let key = ContentKey::new(class, whole.id);
        if !self.claim(key) {
            return packs.discard_base();
        }
        let pending = PendingBase {
            elements,
            moments: whole.moments,
        };
        made.bases.insert(key, pending);
        packs.finish_base(key)
    }
}
