//! Generators for property tests. They draw a small recipe, which is what a failing test prints and shrinks;
//! contents follow from it.

use crate::weights::{self, Density, Update};
use deltaic_format::ElementClass;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed};

/// Runs `cases` cases, the same ones every time.
pub fn cases(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(0xde17a1c),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Any element class.
pub fn class() -> impl Strategy<Value = ElementClass> {
    select(ElementClass::ALL)
}

/// Lengths around which something begins or ends: runs of the moments, blocks in memory, blocks of a set.
pub const BOUNDARIES: [u64; 16] = [
    0,
    1,
    2,
    63,
    64,
    65,
    511,
    512,
    513,
    (1 << 16) - 1,
    1 << 16,
    (1 << 16) + 1,
    (1 << 17) + 1,
    (1 << 18) - 1,
    1 << 18,
    (1 << 18) + 1,
];

/// Lengths around that of a piece, for the few cases that are as large.
pub const PIECE_BOUNDARIES: [u64; 3] = [(1 << 22) - 1, 1 << 22, (1 << 22) + 1];

/// Number of elements of a tensor.
pub fn elements() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..2000u64,
        3 => select(&BOUNDARIES[..9]),
        1 => select(&BOUNDARIES[9..]),
    ]
}

/// How much an update changes.
pub fn density() -> impl Strategy<Value = Density> {
    prop_oneof![
        Just(Density::None),
        Just(Density::One),
        Just(Density::Ends),
        Just(Density::Share(0.0005)),
        Just(Density::Share(0.01)),
        Just(Density::Share(0.5)),
        Just(Density::All),
    ]
}

/// What an update does.
pub fn update() -> impl Strategy<Value = Update> {
    select(&[
        Update::Step,
        Update::Rewrite,
        Update::Extremes,
        Update::Specials,
    ])
}

/// How the next content of a [`History`] comes about.
#[derive(Debug, Clone)]
pub enum Next {
    /// By an update of the last one.
    Updated(Density, Update, u64),
    /// An earlier content again, so that shifts cancel.
    Back(usize),
}

/// A tensor's contents, one after the other.
#[derive(Debug, Clone)]
pub struct History {
    /// What the elements are.
    pub class: ElementClass,
    /// How many there are.
    pub elements: u64,
    /// Seed of the first content.
    pub seed: u64,
    /// How the others follow.
    pub next: Vec<Next>,
}

impl History {
    /// The contents.
    pub fn contents(&self) -> Vec<Vec<u8>> {
        let mut contents = vec![weights::content(self.class, self.elements, self.seed)];
        for next in &self.next {
            let last = &contents[contents.len() - 1];
            let content = match *next {
                Next::Updated(density, update, seed) => {
                    weights::updated(self.class, last, density, update, seed)
                }
                Next::Back(back) => contents[back % contents.len()].clone(),
            };
            contents.push(content);
        }
        contents
    }
}

/// A history of one to `most` updates.
pub fn history(most: usize) -> impl Strategy<Value = History> {
    let next = prop_oneof![
        5 => (density(), update(), any::<u64>()).prop_map(|(d, u, s)| Next::Updated(d, u, s)),
        1 => any::<usize>().prop_map(Next::Back),
    ];
    let next = proptest::collection::vec(next, 1..=most);
    (class(), elements(), any::<u64>(), next).prop_map(|(class, elements, seed, next)| History {
        class,
        elements,
        seed,
        next,
    })
}

/// A member of a patch set: its elements, and the changes that a seed stands for.
#[derive(Debug, Clone)]
pub struct MemberRecipe {
    /// Elements of the piece.
    pub elements: u32,
    /// How many changed.
    pub density: Density,
    /// How far.
    pub update: Update,
    /// Seed.
    pub seed: u64,
}

/// Members of one patch set, short ones and long ones in any order.
pub fn members(most: usize) -> impl Strategy<Value = Vec<MemberRecipe>> {
    let elements = prop_oneof![
        6 => 1..3000u32,
        2 => select(&BOUNDARIES[1..9]).prop_map(|n| n as u32),
        1 => select(&BOUNDARIES[9..]).prop_map(|n| n as u32),
    ];
    let member = (elements, density(), update(), any::<u64>()).prop_map(
        |(elements, density, update, seed)| MemberRecipe {
            elements,
            density,
            update,
            seed,
        },
    );
    proptest::collection::vec(member, 0..=most)
}
