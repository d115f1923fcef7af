//! Reading contents: a base, and the composed patch along a path of the delta graph, piece by piece.

use crate::database::{Database, Table};
use crate::error::{Result, StoreError};
use crate::graph::{Route, Step};
use crate::packs::{BaseFile, PackReader};
use crate::records::{
    BaseLocation, ContentKey, ContentRecord, EdgeRecord, PieceLocation, edge_key,
};
use bytes::Bytes;
use deltaic_format::base::BASE_BLOCK_ELEMENTS;
use deltaic_format::ids::TensorId;
use deltaic_format::patch::{
    BLOCK_ELEMENTS, Changes, PIECE_ELEMENTS, PatchHasher, apply, compose, piece_count, piece_len,
};
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::{FormatError, Moments};
use moka::sync::Cache;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of patch sets kept in memory as they are stored: a set holds many tensors, which are mostly wanted together.
const CACHE_BYTES: u64 = 128 << 20;

/// Changes of so many edges are held at a time,
const FOLD: usize = 16;
/// or of fewer that have so many changes.
const FOLD_CHANGES: u64 = 1 << 22;

/// Chains shorter than this are never long,
const FEW_EDGES: usize = 16;
/// and those of as many edges always.
const MANY_EDGES: usize = 512;

/// Contents, edges and patch sets of a store.
pub(crate) struct Contents {
    pub(crate) database: Arc<Database>,
    pub(crate) packs: PackReader,
    /// Patch sets by number.
    sets: Cache<u64, Bytes>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents")
            .field("packs", &self.packs)
            .finish_non_exhaustive()
    }
}

impl Contents {
    pub(crate) fn new(database: Arc<Database>, packs: PackReader) -> Self {
        let weigh = |_: &u64, set: &Bytes| set.len().try_into().unwrap_or(u32::MAX);
        let sets = Cache::builder()
            .max_capacity(CACHE_BYTES)
            .weigher(weigh)
            .build();
        Self {
            database,
            packs,
            sets,
        }
    }

    /// What is known of a content, if it is in the store.
    pub(crate) fn find(&self, key: ContentKey) -> Result<Option<ContentRecord>> {
        let object = || key.to_string();
        self.database.read(
            Table::Contents,
            &key.to_bytes(),
            object,
            ContentRecord::from_bytes,
        )
    }

    /// What is known of a content that must be there.
    pub(crate) fn record(&self, key: ContentKey) -> Result<ContentRecord> {
        self.find(key)?
            .ok_or_else(|| StoreError::corrupt(key, "it is missing"))
    }

    /// The edge from `from` to `to`, if there is one.
    pub(crate) fn edge(&self, from: ContentKey, to: TensorId) -> Result<Option<EdgeRecord>> {
        let object = || format!("edge from {from} to {to}");
        self.database.read(
            Table::Edges,
            &edge_key(from, to),
            object,
            EdgeRecord::from_bytes,
        )
    }

    /// The stored bytes of patch set `set`.
    fn set_bytes(&self, set: u64) -> Result<Bytes> {
        match self.database.get(Table::PatchSets, &set.to_be_bytes())? {
            Some(bytes) => Ok(Bytes::copy_from_slice(&bytes)),
            None => Err(StoreError::corrupt(
                format!("patch set {set}"),
                "it is missing",
            )),
        }
    }

    /// All members of a patch set, as stored, past the cache.
    pub(crate) fn read_set(&self, set: u64) -> Result<Vec<Changes>> {
        let bytes = self.set_bytes(set)?;
        PatchSetReader::new(&bytes)
            .and_then(|reader| reader.all())
            .map_err(|e| Self::damaged_set(set, e))
    }

    /// A patch set as it is stored.
    pub(crate) fn set(&self, set: u64) -> Result<Bytes> {
        if let Some(bytes) = self.sets.get(&set) {
            return Ok(bytes);
        }
        let bytes = self.set_bytes(set)?;
        self.sets.insert(set, bytes.clone());
        Ok(bytes)
    }

    pub(crate) fn damaged_set(set: u64, error: FormatError) -> StoreError {
        StoreError::corrupt(format!("patch set {set}"), error)
    }

    /// Changes of one piece of an edge, as they are stored.
    pub(crate) fn changes_at(&self, location: PieceLocation) -> Result<Changes> {
        let PieceLocation { set, member, .. } = location;
        PatchSetReader::new(&self.set(set)?)
            .and_then(|reader| reader.member(member as usize))
            .map_err(|e| Self::damaged_set(set, e))
    }

    /// Whether a stored edge is what its id says.
    pub(crate) fn check_edge_id(
        &self,
        from: ContentKey,
        to: TensorId,
        edge: &EdgeRecord,
    ) -> Result<()> {
        let elements = self.record(from)?.elements;
        let mut hasher = PatchHasher::new(from.class, from.id, to, elements);
        for location in &edge.pieces {
            hasher.piece(location.piece, &self.changes_at(*location)?);
        }
        if hasher.finish() == edge.patch {
            return Ok(());
        }
        let object = format!("edge from {from} to {to}");
        Err(StoreError::corrupt(
            object,
            "it does not hash to its patch id",
        ))
    }

    /// The composed changes of piece `piece` along `steps`.
    pub(crate) fn compose_piece(
        &self,
        key: ContentKey,
        steps: &[Step],
        piece: u64,
    ) -> Result<Changes> {
        let mut parts: Vec<Changes> = Vec::new();
        let fold = |parts: &mut Vec<Changes>| -> Result<()> {
            let sum = compose(key.class, &parts.iter().collect::<Vec<_>>())
                .map_err(|e| StoreError::corrupt(format!("a path to {key}"), e))?;
            parts.clear();
            parts.push(sum);
            Ok(())
        };
        let is_much = |parts: &[Changes]| {
            let added = parts.iter().skip(1).map(Changes::len).sum::<u64>();
            parts.len() >= FOLD || added >= FOLD_CHANGES
        };
        for step in steps {
            if let Some(location) = step.edge.piece(piece) {
                let mut changes = self.changes_at(location)?;
                if step.backwards {
                    changes.negate();
                }
                parts.push(changes);
            }
            // A long path is added up as it goes, so that memory does not grow with it.
            if is_much(&parts) {
                fold(&mut parts)?;
            }
        }
        fold(&mut parts)?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// Open a content for reading by the cheapest way there is.
    pub(crate) fn open(&self, key: ContentKey) -> Result<ContentReader<'_>> {
        let record = self.record(key)?;
        let Route { base, steps, .. } = self.route_from_base(key, record)?;
        let location = self
            .record(base)?
            .origin
            .base()
            .ok_or_else(|| StoreError::corrupt(base, "its base is gone"))?;
        self.reader(key, record, base, location, steps)
    }

    /// Read back a base that is not named yet, and compare it with what it is to be named.
    pub(crate) fn prove_base(&self, key: ContentKey, record: ContentRecord) -> Result<()> {
        let location =
            (record.origin.base()).ok_or_else(|| StoreError::corrupt(key, "its base is gone"))?;
        self.reader(key, record, key, location, Vec::new())?
            .prove(|_| Ok(()))
    }

    fn reader(
        &self,
        key: ContentKey,
        record: ContentRecord,
        base: ContentKey,
        location: BaseLocation,
        steps: Vec<Step>,
    ) -> Result<ContentReader<'_>> {
        let file = self.packs.open(base, location)?;
        if file.elements() != record.elements {
            let what = "its base has another number of elements";
            return Err(StoreError::corrupt(base, what));
        }
        Ok(ContentReader {
            contents: self,
            key,
            record,
            file,
            steps,
        })
    }

    /// The edge between two contents, whichever way it is stored, if its changes are what its id says; a damaged one
    /// is as good as none, and stored anew by whoever has both contents.
    pub(crate) fn sound_edge(&self, from: ContentKey, to: TensorId) -> Result<Option<EdgeRecord>> {
        let back = ContentKey::new(from.class, to);
        for (from, to) in [(from, to), (back, from.id)] {
            let Some(edge) = self.edge(from, to)? else {
                continue;
            };
            match self.check_edge_id(from, to, &edge) {
                Ok(()) => return Ok(Some(edge)),
                Err(StoreError::Corrupt { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }
}

/// A content being read piece by piece.
pub(crate) struct ContentReader<'a> {
    contents: &'a Contents,
    key: ContentKey,
    record: ContentRecord,
    file: BaseFile<'a>,
    steps: Vec<Step>,
}

impl ContentReader<'_> {
    pub(crate) fn elements(&self) -> u64 {
        self.record.elements
    }

    /// Whether its chain has become so long that a content made from it gets a base of its own: the chain then takes
    /// half as much as the base, or very many edges.
    pub(crate) fn is_long(&self) -> bool {
        let edges = self.steps.iter().map(|step| step.edge.bytes);
        let bytes = edges.fold(0u64, u64::saturating_add);
        self.steps.len() >= FEW_EDGES && bytes >= self.record.whole_bytes / 2
            || self.steps.len() >= MANY_EDGES
    }

    pub(crate) fn pieces(&self) -> u64 {
        piece_count(self.record.elements)
    }

    fn blocks(&self, piece: u64) -> Range<u64> {
        0..piece_len(self.record.elements, piece).div_ceil(BASE_BLOCK_ELEMENTS)
    }

    /// The bytes of piece `piece`.
    pub(crate) fn piece(&self, piece: u64) -> Result<Vec<u8>> {
        self.part(piece, self.blocks(piece))
    }

    /// The bytes of blocks `blocks` of piece `piece`, of which it has that many.
    pub(crate) fn part(&self, piece: u64, blocks: Range<u64>) -> Result<Vec<u8>> {
        let class = self.key.class;
        let end = (blocks.end * BASE_BLOCK_ELEMENTS).min(piece_len(self.record.elements, piece));
        let elements = end - blocks.start * BASE_BLOCK_ELEMENTS;
        let mut content = vec![0; elements as usize * class.width()];
        let first = piece * (PIECE_ELEMENTS / BASE_BLOCK_ELEMENTS);
        self.file
            .decode(first + blocks.start..first + blocks.end, &mut content)?;
        if self.steps.is_empty() {
            return Ok(content);
        }
        let mut changes = self.contents.compose_piece(self.key, &self.steps, piece)?;
        if blocks != self.blocks(piece) {
            const EACH: u64 = BASE_BLOCK_ELEMENTS / BLOCK_ELEMENTS;
            changes = changes.cut((blocks.start * EACH) as u32..(blocks.end * EACH) as u32);
        }
        apply(class, &mut content, &changes).map_err(|e| StoreError::corrupt(self.key, e))?;
        Ok(content)
    }

    /// The content's own base, if it has one, so that what is stored can be sent as it is.
    pub(crate) fn own_base(&self) -> Option<&BaseFile<'_>> {
        self.steps.is_empty().then_some(&self.file)
    }

    /// Give every piece to `receive`, in order, and fail at the end if they do not hash to the content's id:
    /// what was received is to be used only after that.
    pub(crate) fn read(&self, mut receive: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        for piece in 0..self.pieces() {
            let content = self.piece(piece)?;
            hasher.update(&content);
            receive(&content)?;
        }
        self.check_hash(&hasher)
    }

    /// The same, and the moments must be those that are known of the content.
    pub(crate) fn prove(&self, mut receive: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut moments = Moments::default();
        let mut first = 0;
        self.read(|content| {
            moments = moments + Moments::of(self.key.class, first, content);
            first += PIECE_ELEMENTS;
            receive(content)
        })?;
        if moments == self.record.moments {
            return Ok(());
        }
        Err(StoreError::corrupt(
            self.key,
            "its moments are not those that are known of it",
        ))
    }

    pub(crate) fn check_hash(&self, hasher: &blake3::Hasher) -> Result<()> {
        if hasher.finalize().as_bytes() == self.key.id.as_bytes() {
            return Ok(());
        }
        Err(StoreError::corrupt(
            self.key,
            "what is stored does not hash to its id",
        ))
    }
}
