//! The delta graph: contents joined by edges that may be taken both ways, and the cheapest paths through it.

use crate::contents::Contents;
use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::records::{ContentKey, ContentRecord, EdgeRecord, Origin, edge_ends};
use deltaic_format::ids::TensorId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// One edge of a path.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) edge: Arc<EdgeRecord>,
    /// Whether it is taken from its `to` to its `from`.
    pub(crate) backwards: bool,
}

/// A path from a content to the one that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Where it begins: a content with a base, or one that the asker holds.
    pub(crate) base: ContentKey,
    /// The edges to take, in order.
    pub(crate) steps: Vec<Step>,
    /// Bytes of the edges as stored.
    pub(crate) cost: u64,
}

/// What an edge costs beside its bytes: a lookup and a decode, so that fewer edges win among equals.
const STEP_COST: u64 = 8;

/// No chain of edges is this long, since contents get new bases in time.
const LONGEST_WALK: usize = 1 << 16;

/// Paths this cheap are looked for whatever the whole content takes, which may be a few bytes.
const ALWAYS_WORTH: u64 = 4096;

impl Contents {
    /// The way to `key` from a base: back along the edges by which each content came to be, or, where that is broken,
    /// whatever way there is.
    pub(crate) fn route_from_base(&self, key: ContentKey, record: ContentRecord) -> Result<Route> {
        match self.walk_back(key, record) {
            Err(StoreError::Corrupt { .. }) => {}
            other => return other,
        }
        let has_base = |at| {
            let found = self.find(at)?;
            Ok(found.is_some_and(|record| record.origin.base().is_some()))
        };
        self.search(key, u64::MAX, has_base)?
            .ok_or_else(|| StoreError::corrupt(key, "no base can be reached from it"))
    }

    fn walk_back(&self, key: ContentKey, record: ContentRecord) -> Result<Route> {
        let mut at = key;
        let mut origin = record.origin;
        let mut steps = Vec::new();
        let mut cost = 0u64;
        while let Origin::Edge(from) = origin {
            let from = ContentKey::new(key.class, from);
            let edge = self.edge(from, at.id)?.ok_or_else(|| {
                StoreError::corrupt(format!("edge from {from} to {}", at.id), "it is missing")
            })?;
            if steps.len() >= LONGEST_WALK {
                return Err(StoreError::corrupt(key, "its edges lead in a circle"));
            }
            cost = cost.saturating_add(edge.bytes + STEP_COST);
            steps.push(Step {
                edge: Arc::new(edge),
                backwards: false,
            });
            origin = self.record(from)?.origin;
            at = from;
        }
        steps.reverse();
        Ok(Route {
            base: at,
            steps,
            cost,
        })
    }

    /// The cheapest path from `from` to `to`, unless there is none that takes less than twice the `whole` content:
    /// composing may make a path smaller, but not by much more.
    pub(crate) fn route_between(
        &self,
        from: TensorId,
        to: ContentKey,
        whole: u64,
    ) -> Result<Option<Route>> {
        let limit = ALWAYS_WORTH.max(whole.saturating_mul(2));
        self.search(to, limit, |at| Ok(at.id == from))
    }

    /// Dijkstra's search backwards from `target` to the nearest content that is a `goal`.
    fn search(
        &self,
        target: ContentKey,
        limit: u64,
        goal: impl Fn(ContentKey) -> Result<bool>,
    ) -> Result<Option<Route>> {
        /// How a content was reached: the next content towards the target, and the edge there.
        type Reached = HashMap<TensorId, (u64, Option<(TensorId, Step)>)>;
        let mut reached: Reached = HashMap::from([(target.id, (0, None))]);
        let mut queue = BinaryHeap::from([(Reverse(0), target.id)]);
        while let Some((Reverse(cost), id)) = queue.pop() {
            if reached.get(&id).is_some_and(|(best, _)| *best < cost) {
                continue;
            }
            let at = ContentKey::new(target.class, id);
            if goal(at)? {
                let mut steps = Vec::new();
                let mut here = id;
                while let Some((_, Some((next, step)))) = reached.get(&here) {
                    steps.push(step.clone());
                    here = *next;
                }
                return Ok(Some(Route {
                    base: at,
                    steps,
                    cost,
                }));
            }
            for (neighbour, step) in self.steps_to(at)? {
                let total = cost.saturating_add(step.edge.bytes + STEP_COST);
                let better = reached
                    .get(&neighbour)
                    .is_none_or(|(best, _)| total < *best);
                if better && total <= limit {
                    reached.insert(neighbour, (total, Some((id, step))));
                    queue.push((Reverse(total), neighbour));
                }
            }
        }
        Ok(None)
    }

    /// Every edge that can be taken to `at`, with the content that it comes from.
    fn steps_to(&self, at: ContentKey) -> Result<Vec<(TensorId, Step)>> {
        let prefix = at.to_bytes();
        let damaged = |e| StoreError::corrupt(format!("an edge of {at}"), e);
        let mut steps = Vec::new();
        for row in self.database.scan(Table::Edges, &prefix) {
            let (key, value) = row?;
            let (_, to) = edge_ends(&key).map_err(damaged)?;
            let edge = Arc::new(EdgeRecord::from_bytes(&value).map_err(damaged)?);
            let backwards = true;
            steps.push((to, Step { edge, backwards }));
        }
        for row in self.database.scan(Table::EdgesBack, &prefix) {
            let (key, _) = row?;
            let (_, from) = edge_ends(&key).map_err(damaged)?;
            let edge = self
                .edge(ContentKey::new(at.class, from), at.id)?
                .ok_or_else(|| {
                    StoreError::corrupt(format!("edge from {from} to {at}"), "it is missing")
                })?;
            let (edge, backwards) = (Arc::new(edge), false);
            steps.push((from, Step { edge, backwards }));
        }
        Ok(steps)
    }
}
