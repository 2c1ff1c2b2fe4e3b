//! The word a misspelt one was meant to be.

/// The candidate nearest to `word`, when it is near enough to be meant: a third of its letters may differ.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).clamp(1, 4))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?` or nothing.
pub(super) fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |candidate| format!("; did you mean {candidate:?}?"))
}

/// Edits between two words: insertions, deletions, replacements, and exchanges of neighbours.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    if one.len().abs_diff(two.len()) > 8 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = vec![0; two.len() + 1];
    let mut above: Vec<usize> = (0..=two.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1; two.len() + 1];
        for (j, b) in two.iter().enumerate() {
            row[j + 1] = (above[j] + usize::from(a != b)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == two[j - 1] && one[i - 1] == *b {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_find_what_was_meant() {
        let fields = ["n_parallel", "host", "ctx_size", "ubatch_size", "batch_size"];
        for (word, meant) in [
            ("n_paralel", Some("n_parallel")),
            ("N-Parallel", Some("n_parallel")),
            ("hots", Some("host")),
            ("batchsize", Some("batch_size")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, fields), meant, "{word:?}");
        }
        assert_eq!((distance("", "abc"), distance("ab", "ba"), distance("kitten", "sitting")), (3, 1, 3));
    }
}
