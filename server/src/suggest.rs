//! Names near the one that was not found.

/// The names most like `wanted`, best first, three at most.
pub fn near<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let allowed = (wanted.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = (names.into_iter())
        .filter_map(|name| {
            let lower = name.to_lowercase();
            // A part of a name, such as `policy` of `acme/policy`, is near it however long the rest is.
            let part = wanted.chars().count() > 2 && lower.contains(&wanted);
            let distance = if part { 1 } else { distance(&wanted, &lower) };
            (distance <= allowed).then_some((distance, name))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// `did you mean a, b or c?`, or nothing if no name is near.
pub fn did_you_mean<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    match near(wanted, names).as_slice() {
        [] => None,
        [only] => Some(format!("did you mean {only}?")),
        [first @ .., last] => Some(format!("did you mean {} or {last}?", first.join(", "))),
    }
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut previous = None;
    for (i, x) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if j > 0 && previous == Some(y) && b[j - 1] == x {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
        previous = Some(x);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("main", "main", 0),
            ("mian", "main", 1),
            ("mainn", "main", 1),
            ("man", "main", 1),
            ("kitten", "sitting", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn near_names_come_best_first() {
        let names = ["main", "dev", "best-so-far", "acme/policy"];
        assert_eq!(near("mian", names), ["main"]);
        assert_eq!(near("policy", names), ["acme/policy"]);
        assert_eq!(near("Best-so-fa", names), ["best-so-far"]);
        assert!(near("quite-different", names).is_empty());
        assert_eq!(
            did_you_mean("de", ["dev", "den", "xyz"]).as_deref(),
            Some("did you mean den or dev?")
        );
        assert_eq!(did_you_mean("q", ["main"]), None);
    }
}
