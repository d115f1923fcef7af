//! Ref record: which commit a branch stands at; the thing that signatures cover.

use super::{CanonicalObject, MAX_STRING};
use crate::bytes::{ByteReader, put_string, put_varint};
use crate::error::Result;
use crate::ids::{CommitId, RefRecordId};
use crate::name::{BranchName, RepoName};
use crate::version::Version;

const WHAT: &str = "ref record";
const MAX_SIGNATURES: u64 = 64;

/// Which commit a branch stands at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RefRecord {
    /// The repository.
    pub repo: RepoName,
    /// The branch.
    pub branch: BranchName,
    /// Its newest commit.
    pub commit: CommitId,
    /// That commit's version.
    pub version: Version,
    /// When it was set, milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// When it is no longer to be trusted as the newest, likewise; `None`: never.
    pub expiry_ms: Option<i64>,
}

impl CanonicalObject for RefRecord {
    const WHAT: &'static str = WHAT;
    const CONTEXT: &'static str = "deltaic 2026-11-30 ref v1";
    type Id = RefRecordId;

    fn put(&self, out: &mut Vec<u8>) {
        put_string(out, self.repo.as_str());
        put_string(out, self.branch.as_str());
        out.extend(self.commit.0);
        put_varint(out, self.version.0);
        out.extend(self.time_ms.to_le_bytes());
        out.extend(self.expiry_ms.unwrap_or(0).to_le_bytes());
    }

    fn get(reader: &mut ByteReader<'_>) -> Result<Self> {
        Ok(Self {
            repo: RepoName::new(reader.string("repository", MAX_STRING)?)?,
            branch: BranchName::new(reader.string("branch", MAX_STRING)?)?,
            commit: CommitId(reader.array()?),
            version: Version(reader.varint()?),
            time_ms: reader.i64()?,
            expiry_ms: Some(reader.i64()?).filter(|&ms| ms != 0),
        })
    }

    fn id_from(hash: [u8; 32]) -> RefRecordId {
        RefRecordId(hash)
    }
}

/// A detached ed25519 signature over a ref record's canonical bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RefSignature {
    /// Who signed.
    pub public_key: [u8; 32],
    /// The signature.
    pub signature: [u8; 64],
}

/// A ref record as it is stored, with its signatures.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SignedRef {
    /// What is signed.
    pub record: RefRecord,
    /// Who signed it.
    pub signatures: Vec<RefSignature>,
}

impl SignedRef {
    /// The stored bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let record = self.record.to_bytes();
        let mut out = Vec::with_capacity(record.len() + 8);
        put_varint(&mut out, record.len() as u64);
        out.extend(record);
        put_varint(&mut out, self.signatures.len() as u64);
        for RefSignature {
            public_key,
            signature,
        } in &self.signatures
        {
            out.extend(public_key);
            out.extend(signature);
        }
        out
    }

    /// Read the stored bytes. Signatures are not verified here.
    ///
    /// # Errors
    ///
    /// If they break a rule of SPEC.md §8.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = ByteReader::new(WHAT, bytes);
        let length = reader.count("length of the record", u64::MAX, 1)?;
        let record = RefRecord::from_bytes(reader.bytes(length)?)?;
        let count = reader.count("number of signatures", MAX_SIGNATURES, 96)?;
        let mut signatures = Vec::with_capacity(count);
        for _ in 0..count {
            signatures.push(RefSignature {
                public_key: reader.array()?,
                signature: reader.array()?,
            });
        }
        reader.finish()?;
        Ok(Self { record, signatures })
    }
}
