//! What several ask for at a time is computed once, and kept for those who ask later while there is room.

use deltaic_format::refusal::Refusal;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::Instrument;

/// A computation under way. All who wait for it get what it ends with.
pub(crate) type Flight<V> = Shared<BoxFuture<'static, Result<V, Refusal>>>;

/// Computations under way, one for each key.
pub(crate) struct Flights<K, V>(Arc<Mutex<HashMap<K, Flight<V>>>>);

impl<K, V> Clone for Flights<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> fmt::Debug for Flights<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").finish_non_exhaustive()
    }
}

impl<K, V> Flights<K, V> {
    fn flying(&self) -> MutexGuard<'_, HashMap<K, Flight<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Flights<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Join those who wait for the value of `key`, or begin to compute it unless it turns out to be `kept`. `compute` sees
    /// to it that the value is kept, and goes on if the caller goes away.
    pub(crate) fn join<F>(
        &self,
        key: K,
        kept: impl FnOnce(&K) -> Option<V>,
        compute: impl FnOnce() -> F,
    ) -> Flight<V>
    where
        F: Future<Output = Result<V, Refusal>> + Send + 'static,
    {
        let mut flying = self.flying();
        if let Some(flight) = flying.get(&key) {
            return flight.clone();
        }
        // It may have landed since the caller looked.
        if let Some(value) = kept(&key) {
            return std::future::ready(Ok(value)).boxed().shared();
        }
        let landing = Landing {
            flights: self.clone(),
            key: key.clone(),
        };
        let computed = compute();
        let task = async move {
            let _landing = landing;
            computed.await
        };
        let task = tokio::spawn(task.in_current_span());
        let joined = async move {
            task.await.unwrap_or_else(|_| {
                Err(Refusal::Failed {
                    what: "it stopped unexpectedly; the server's log says why".to_owned(),
                })
            })
        };
        let flight = joined.boxed().shared();
        flying.insert(key, flight.clone());
        flight
    }
}

/// Takes a flight off the list when it ends, however it does.
struct Landing<K: Hash + Eq, V> {
    flights: Flights<K, V>,
    key: K,
}

impl<K: Hash + Eq, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.flights.flying().remove(&self.key);
    }
}

/// Values that were asked for most recently, up to a weight in all.
#[derive(Debug, Clone)]
pub(crate) struct Kept<K, V>(Cache<K, V>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static;

impl<K, V> Kept<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Room for a `weight` of `capacity`.
    pub(crate) fn new(capacity: u64, weight: impl Fn(&V) -> u64 + Send + Sync + 'static) -> Self {
        // A stream comes back for the rest of what it had computed: what is newest is always taken in.
        let cache = Cache::builder()
            .max_capacity(capacity)
            .weigher(move |_: &K, value: &V| u32::try_from(weight(value)).unwrap_or(u32::MAX))
            .eviction_policy(EvictionPolicy::lru())
            .build();
        Self(cache)
    }

    /// The value of `key` if it is kept.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.0.get(key)
    }

    /// Keep a value for those who ask for it.
    pub(crate) fn keep(&self, key: K, value: V) {
        self.0.insert(key, value);
        // Not some time later: values may be large.
        self.0.run_pending_tasks();
    }
}

/// Values that are computed once for all who ask at a time, and kept.
#[derive(Debug, Clone)]
pub(crate) struct Coalesced<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    kept: Kept<K, V>,
    flights: Flights<K, V>,
}

impl<K, V> Coalesced<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Keep values of a `weight` of `capacity` in all.
    pub(crate) fn new(capacity: u64, weight: impl Fn(&V) -> u64 + Send + Sync + 'static) -> Self {
        Self {
            kept: Kept::new(capacity, weight),
            flights: Flights::default(),
        }
    }

    /// The value of `key`: as it is kept, as it is being computed for someone else, or by `compute`.
    ///
    /// # Errors
    ///
    /// Whatever the computation fails with, which is not kept.
    pub(crate) async fn get<F>(&self, key: K, compute: impl FnOnce() -> F) -> Result<V, Refusal>
    where
        F: Future<Output = Result<V, Refusal>> + Send + 'static,
    {
        match self.kept.get(&key) {
            Some(value) => Ok(value),
            None => self.join(key, compute).await,
        }
    }

    fn join<F>(&self, key: K, compute: impl FnOnce() -> F) -> Flight<V>
    where
        F: Future<Output = Result<V, Refusal>> + Send + 'static,
    {
        let kept = self.kept.clone();
        let place = key.clone();
        let compute = || {
            let computed = compute();
            async move {
                let value = computed.await?;
                kept.keep(place, value.clone());
                Ok(value)
            }
        };
        (self.flights).join(key, |key| self.kept.get(key), compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::oneshot;

    fn counted(count: &Arc<AtomicUsize>) -> usize {
        count.fetch_add(1, Ordering::SeqCst) + 1
    }

    #[tokio::test]
    async fn all_who_ask_at_a_time_share_one_computation() {
        let shared: Coalesced<u32, u32> = Coalesced::new(100, |_| 1);
        let (go, gate) = oneshot::channel::<()>();
        let computed = Arc::new(AtomicUsize::new(0));
        let count = computed.clone();
        let leader = shared.join(7, || async move {
            counted(&count);
            gate.await.expect("the test lets it go");
            Ok(42)
        });
        let followers: Vec<_> = (0..10)
            .map(|_| shared.join(7, || async { unreachable!("it is being computed") }))
            .collect();
        // The leader hangs up, which harms nobody.
        drop(leader);
        go.send(()).expect("it waits");
        for follower in followers {
            assert_eq!(follower.await, Ok(42));
        }
        let later = shared.get(7, || async { unreachable!("it is kept") });
        assert_eq!(later.await, Ok(42));
        assert_eq!(computed.load(Ordering::SeqCst), 1);
        assert!(shared.flights.flying().is_empty());
    }

    #[tokio::test]
    async fn failures_and_panics_reach_all_and_are_not_kept() {
        let shared: Coalesced<u32, u32> = Coalesced::new(100, |_| 1);
        let failing = shared.join(1, || async { Err(Refusal::Interrupted) });
        let other = shared.join(1, || async { unreachable!("it is being computed") });
        assert_eq!(failing.await, Err(Refusal::Interrupted));
        assert_eq!(other.await, Err(Refusal::Interrupted));
        assert_eq!(shared.get(1, || async { Ok(5) }).await, Ok(5));
        let panicking = shared.join(2, || async { panic!("as the test wants it") });
        assert!(matches!(panicking.await, Err(Refusal::Failed { .. })));
        assert_eq!(shared.get(2, || async { Ok(6) }).await, Ok(6));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let shared: Coalesced<u32, Vec<u8>> =
            Coalesced::new(1000, |value: &Vec<u8>| value.len() as u64);
        for key in 0..100 {
            let value = shared.get(key, || async { Ok(vec![0; 100]) }).await;
            assert_eq!(value, Ok(vec![0; 100]));
        }
        assert!(shared.kept.0.weighted_size() <= 1000);
        assert!(shared.kept.get(&99).is_some(), "the newest is kept");
        assert!(shared.kept.get(&0).is_none());
    }
}
