//! The service `Leases`: who claims which version. They are kept in memory and end with the server.

use super::made::leases_server;
use super::state::State;
use super::status::{invalid, status};
use super::work::Work;
use deltaic_format::Version;
use deltaic_format::ids::CommitId;
use deltaic_format::name::RepoName;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{commit_id, id_bytes, optional_commit_id, proto};
use deltaic_store::Store;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use tonic::{Request, Response, Status, async_trait};

/// Leases at a time; a list of them fits in one message.
const MAX_LEASES: usize = 32_768;

/// Bytes of a holder's name.
const MAX_HOLDER: usize = 256;

/// Time to live where none is asked for, and what may be.
const DEFAULT_TTL: Duration = Duration::from_secs(60);
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// When there may be room for another one.
const RETRY_AFTER: Duration = Duration::from_secs(10);

type LeaseId = [u8; 16];

/// One claim.
#[derive(Debug, Clone)]
struct Lease {
    repo: RepoName,
    commit: CommitId,
    version: Version,
    holder: String,
    proof: Proof,
    since: SystemTime,
    ttl: Duration,
    ends: Instant,
}

/// What its holder has proven of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    None,
    Touched,
    Full,
}

impl Proof {
    fn named(name: &str) -> Result<Self, Refusal> {
        match name {
            "" | "none" => Ok(Self::None),
            "touched" => Ok(Self::Touched),
            "full" => Ok(Self::Full),
            _ => {
                let what = format!("a proof is none, touched or full, not {name:?}");
                Err(Refusal::Invalid { what })
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Touched => "touched",
            Self::Full => "full",
        }
    }
}

impl Lease {
    fn to_wire(&self, id: LeaseId) -> proto::Lease {
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = self.ends.saturating_duration_since(Instant::now());
        proto::Lease {
            id: id.to_vec().into(),
            repo: self.repo.to_string(),
            commit: id_bytes(&self.commit),
            version: self.version.0,
            holder: self.holder.clone(),
            proof: self.proof.name().to_owned(),
            since_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// All claims.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<HashMap<LeaseId, Lease>>);

fn not_found(id: &[u8]) -> Refusal {
    let hex: String = id
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Refusal::NotFound {
        kind: "lease".to_owned(),
        name: format!("{hex}: it has ended, or never was"),
    }
}

/// An id that was not given before, nor by another server.
fn made_id() -> LeaseId {
    let random = |half: u64| u128::from(RandomState::new().hash_one(half));
    (random(0) << 64 | random(1)).to_le_bytes()
}

fn lease_id(bytes: &[u8]) -> Result<LeaseId, Refusal> {
    bytes.try_into().map_err(|_| not_found(bytes))
}

impl Registry {
    /// Those that have not ended.
    fn live(&self) -> MutexGuard<'_, HashMap<LeaseId, Lease>> {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        leases.retain(|_, lease| lease.ends > now);
        leases
    }

    fn acquire(&self, lease: Lease) -> Result<proto::Lease, Refusal> {
        let mut leases = self.live();
        if leases.len() >= MAX_LEASES {
            return Err(Refusal::Exhausted {
                what: format!("there are {MAX_LEASES} leases, as many as may be"),
                retry_after: Some(RETRY_AFTER),
            });
        }
        let id = made_id();
        let wire = lease.to_wire(id);
        leases.insert(id, lease);
        Ok(wire)
    }

    fn renew(
        &self,
        id: LeaseId,
        held: Option<(CommitId, Version)>,
        proof: Option<Proof>,
    ) -> Result<proto::Lease, Refusal> {
        let mut leases = self.live();
        let lease = leases.get_mut(&id).ok_or_else(|| not_found(&id))?;
        if let Some((commit, version)) = held {
            if lease.commit != commit {
                lease.since = SystemTime::now();
                // It was a proof of the other version.
                lease.proof = Proof::None;
            }
            (lease.commit, lease.version) = (commit, version);
        }
        if let Some(proof) = proof {
            lease.proof = proof;
        }
        lease.ends = Instant::now() + lease.ttl;
        Ok(lease.to_wire(id))
    }

    fn repo_of(&self, id: LeaseId) -> Result<RepoName, Refusal> {
        let leases = self.live();
        let lease = leases.get(&id).ok_or_else(|| not_found(&id))?;
        Ok(lease.repo.clone())
    }

    fn release(&self, id: LeaseId) -> Result<(), Refusal> {
        let released = self.live().remove(&id);
        released.map(drop).ok_or_else(|| not_found(&id))
    }

    /// By repository, holder and id.
    fn list(&self, repo: Option<&RepoName>) -> Vec<proto::Lease> {
        let leases = self.live();
        let mut wire: Vec<_> = (leases.iter())
            .filter(|(_, lease)| repo.is_none_or(|repo| lease.repo == *repo))
            .map(|(id, lease)| lease.to_wire(*id))
            .collect();
        wire.sort_by(|a, b| (&a.repo, &a.holder, &a.id).cmp(&(&b.repo, &b.holder, &b.id)));
        wire
    }
}

/// The service.
#[derive(Debug)]
pub(crate) struct Leases {
    state: Arc<State>,
}

impl Leases {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self {
            state: state.clone(),
        }
    }

    async fn version(&self, repo: RepoName, commit: CommitId) -> Result<Version, Refusal> {
        let read = move |store: &Store| {
            store.must_reach(&repo, commit)?;
            store.read_commit(commit)
        };
        let read = self.state.with_store(Work::Short, read);
        Ok(self.state.in_time(read).await?.version)
    }

    async fn acquire(&self, request: proto::AcquireLeaseRequest) -> Result<proto::Lease, Refusal> {
        let repo = RepoName::new(request.repo).map_err(invalid)?;
        let commit = commit_id(&request.commit).map_err(invalid)?;
        let proof = Proof::named(&request.proof)?;
        if request.holder.len() > MAX_HOLDER || request.holder.chars().any(char::is_control) {
            let what =
                format!("a holder is named in {MAX_HOLDER} bytes, without control characters");
            return Err(Refusal::Invalid { what });
        }
        let ttl = match request.ttl_ms {
            0 => DEFAULT_TTL,
            ms => Duration::from_millis(ms).clamp(MIN_TTL, MAX_TTL),
        };
        let version = self.version(repo.clone(), commit).await?;
        self.state.leases.acquire(Lease {
            repo,
            commit,
            version,
            holder: request.holder,
            proof,
            since: SystemTime::now(),
            ttl,
            ends: Instant::now() + ttl,
        })
    }

    async fn renew(&self, request: proto::RenewLeaseRequest) -> Result<proto::Lease, Refusal> {
        let id = lease_id(&request.id)?;
        let held = match optional_commit_id(&request.commit).map_err(invalid)? {
            Some(commit) => {
                let repo = self.state.leases.repo_of(id)?;
                Some((commit, self.version(repo, commit).await?))
            }
            None => None,
        };
        let proof = match request.proof.as_str() {
            "" => None,
            name => Some(Proof::named(name)?),
        };
        self.state.leases.renew(id, held, proof)
    }
}

#[async_trait]
impl leases_server::Leases for Leases {
    async fn acquire(
        &self,
        request: Request<proto::AcquireLeaseRequest>,
    ) -> Result<Response<proto::AcquireLeaseResponse>, Status> {
        let lease = self.acquire(request.into_inner()).await.map_err(status)?;
        let lease = Some(lease);
        Ok(Response::new(proto::AcquireLeaseResponse { lease }))
    }

    async fn renew(
        &self,
        request: Request<proto::RenewLeaseRequest>,
    ) -> Result<Response<proto::RenewLeaseResponse>, Status> {
        let lease = self.renew(request.into_inner()).await.map_err(status)?;
        let lease = Some(lease);
        Ok(Response::new(proto::RenewLeaseResponse { lease }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseLeaseRequest>,
    ) -> Result<Response<proto::ReleaseLeaseResponse>, Status> {
        let id = lease_id(&request.into_inner().id).map_err(status)?;
        self.state.leases.release(id).map_err(status)?;
        Ok(Response::new(proto::ReleaseLeaseResponse {}))
    }

    async fn list(
        &self,
        request: Request<proto::ListLeasesRequest>,
    ) -> Result<Response<proto::ListLeasesResponse>, Status> {
        let name = request.into_inner().repo;
        let repo = (!name.is_empty()).then(|| RepoName::new(name)).transpose();
        let repo = repo.map_err(|error| status(invalid(error)))?;
        let leases = self.state.leases.list(repo.as_ref());
        Ok(Response::new(proto::ListLeasesResponse { leases }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ttl: Duration) -> Lease {
        Lease {
            repo: RepoName::new("acme/policy").expect("valid"),
            commit: CommitId([1; 32]),
            version: Version(3),
            holder: "worker 7".to_owned(),
            proof: Proof::Full,
            since: SystemTime::now(),
            ttl,
            ends: Instant::now() + ttl,
        }
    }

    #[tokio::test]
    async fn a_lease_lives_until_it_is_released_or_not_renewed() {
        let registry = Registry::default();
        let ended = registry
            .acquire(lease(Duration::ZERO))
            .expect("there is room");
        let kept = registry.acquire(lease(MAX_TTL)).expect("there is room");
        assert_eq!((kept.version, kept.proof.as_str()), (3, "full"));
        assert_eq!(registry.list(None).len(), 1, "the other has ended");
        let id = lease_id(&ended.id).expect("an id");
        assert!(matches!(
            registry.renew(id, None, None),
            Err(Refusal::NotFound { .. })
        ));
        let id = lease_id(&kept.id).expect("an id");
        let moved = registry.renew(id, Some((CommitId([2; 32]), Version(4))), None);
        let moved = moved.expect("it lives");
        assert_eq!((moved.version, moved.proof.as_str()), (4, "none"));
        let other = RepoName::new("acme/other").expect("valid");
        assert!(registry.list(Some(&other)).is_empty());
        registry.release(id).expect("it lives");
        assert!(matches!(
            registry.release(id),
            Err(Refusal::NotFound { .. })
        ));
        assert!(registry.list(None).is_empty());
    }
}
