//! The two 64-bit moments of a tensor, which prove patches before and after they are written (SPEC.md §5).

use crate::dtype::ElementClass;
use crate::ord::{Element, with_element};
use std::ops::{Add, Sub};
use std::sync::LazyLock;

/// Elements that share one run weight G.
const RUN: usize = 512;

/// The splitmix64 finaliser.
#[inline(always)]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// G(j): the weight of run j.
#[inline(always)]
const fn run_weight(run: u64) -> u64 {
    mix(run.wrapping_add(GOLDEN)) | 1
}

/// A: the weights within a run, published as data.
static PRIMES: LazyLock<[u32; RUN]> = LazyLock::new(|| {
    let mut lines = include_str!("../vectors/moment-primes.txt").lines();
    std::array::from_fn(|_| {
        (lines.next().and_then(|line| line.parse().ok()))
            .expect("moment-primes.txt holds 512 numbers; a test checks them")
    })
});

/// h: what the second moment sums.
#[inline(always)]
pub(crate) fn second<E: Element>(ord: u64) -> u64 {
    if E::WIDTH <= 2 {
        ord.wrapping_mul(ord)
    } else {
        mix(ord)
    }
}

/// The weights r(i), quick for indexes that mostly stay within a run.
pub(crate) struct Weights {
    primes: &'static [u32; RUN],
    run: u64,
    weight: u64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            primes: &PRIMES,
            run: 0,
            weight: run_weight(0),
        }
    }
}

impl Weights {
    #[inline(always)]
    pub(crate) fn at(&mut self, element: u64) -> u64 {
        let run = element / RUN as u64;
        if run != self.run {
            self.run = run;
            self.weight = run_weight(run);
        }
        let prime = self.primes[(element % RUN as u64) as usize];
        self.weight.wrapping_mul(u64::from(prime))
    }
}

/// The moments L and Q of a tensor, of a part of it, or a difference of such; sums mod 2⁶⁴.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Moments {
    /// Sum of r(i)·ord(wᵢ).
    pub l: u64,
    /// Sum of r(i)·h(ord(wᵢ)).
    pub q: u64,
}

impl Moments {
    /// What `bytes` adds to a tensor's moments, its first element having flat index `first`.
    ///
    /// Bytes beyond the last whole element are not looked at.
    ///
    /// # Panics
    ///
    /// If `first` is not a multiple of 512.
    pub fn of(class: ElementClass, first: u64, bytes: &[u8]) -> Self {
        assert!(first.is_multiple_of(RUN as u64), "a scan begins at a run");
        with_element!(class, E => scan::<E>(first / RUN as u64, bytes))
    }
}

/// Sum whole runs, with the widest vectors that the processor has: the same code, compiled for each.
fn scan<E: Element>(first_run: u64, bytes: &[u8]) -> Moments {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn scan_avx512<E: Element>(first_run: u64, bytes: &[u8]) -> Moments {
            scan_runs::<E>(first_run, bytes)
        }

        #[target_feature(enable = "avx2")]
        fn scan_avx2<E: Element>(first_run: u64, bytes: &[u8]) -> Moments {
            scan_runs::<E>(first_run, bytes)
        }

        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the processor has these features.
            return unsafe { scan_avx512::<E>(first_run, bytes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has this feature.
            return unsafe { scan_avx2::<E>(first_run, bytes) };
        }
    }
    scan_runs::<E>(first_run, bytes)
}

#[inline(always)]
fn scan_runs<E: Element>(first_run: u64, bytes: &[u8]) -> Moments {
    let primes: &[u32; RUN] = &PRIMES;
    let mut sum = Moments::default();
    for (run, bytes) in bytes.chunks(RUN * E::WIDTH).enumerate() {
        let (mut l, mut q) = (0u64, 0u64);
        for (word, &prime) in bytes.chunks_exact(E::WIDTH).zip(primes) {
            let ord = E::ord(E::load(word));
            l = l.wrapping_add(u64::from(prime).wrapping_mul(ord));
            q = q.wrapping_add(u64::from(prime).wrapping_mul(second::<E>(ord)));
        }
        let weight = run_weight(first_run + run as u64);
        sum = sum
            + Moments {
                l: weight.wrapping_mul(l),
                q: weight.wrapping_mul(q),
            };
    }
    sum
}

impl Add for Moments {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            l: self.l.wrapping_add(other.l),
            q: self.q.wrapping_add(other.q),
        }
    }
}

impl Sub for Moments {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            l: self.l.wrapping_sub(other.l),
            q: self.q.wrapping_sub(other.q),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_primes_follow_their_rule() {
        let is_prime = |n: u64| {
            n % 2 == 1
                && (3..)
                    .step_by(2)
                    .take_while(|d| d * d <= n)
                    .all(|d| !n.is_multiple_of(d))
        };
        let mut used = Vec::new();
        for k in 0..RUN as u64 {
            let start = (1 << 31) + (mix(k.wrapping_add(GOLDEN)) >> 33);
            let prime = (start..)
                .find(|&n| is_prime(n) && !used.contains(&n))
                .expect("primes go on");
            used.push(prime);
        }
        assert!(
            used.iter().eq(PRIMES
                .iter()
                .map(|p| u64::from(*p))
                .collect::<Vec<_>>()
                .iter())
        );
        assert!(used.iter().all(|p| *p > 1 << 31 && *p < 1 << 32));
    }

    #[test]
    fn moments_worked_by_the_definition() {
        let bytes: Vec<u8> = (0..3000u64).map(|i| mix(i) as u8).collect();
        for &class in ElementClass::ALL {
            let mut weights = Weights::default();
            let mut expected = Moments::default();
            for (i, word) in bytes.chunks_exact(class.width()).enumerate() {
                let r = weights.at(1024 + i as u64);
                let ord = crate::ord::ord(class, word);
                let h = if class.width() <= 2 {
                    ord * ord
                } else {
                    mix(ord)
                };
                expected.l = expected.l.wrapping_add(r.wrapping_mul(ord));
                expected.q = expected.q.wrapping_add(r.wrapping_mul(h));
            }
            assert_eq!(Moments::of(class, 1024, &bytes), expected, "{class}");
        }
    }
}
