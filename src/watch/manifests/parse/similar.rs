//! Finds the name that was intended.

/// Maximum length of a text that is compared.
const LONGEST: usize = 64;

/// Returns the name that is most similar to `text`; `None` if none is so similar that it must be
/// intended.
pub(super) fn similar<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.replace(['-', '_', ' '], "").to_lowercase();
    let text = plain(text);
    let distances = names
        .into_iter()
        .map(|name| (distance(&text, &plain(name)), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    // In short names a single letter makes another word.
    let most = match name.len() {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    };
    (distance <= most).then_some(name)
}

/// Counts the letters that were left out, added, exchanged for others, or swapped with the next one
/// (the restricted Damerau-Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let differ = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + differ);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_found_and_other_words_are_left_alone() {
        let names = ["ports", "selector", "clusterIP", "clusterIPs", "type", "ip"];
        for (text, expected) in [
            ("prots", Some("ports")),
            ("port", Some("ports")),
            ("clusterIp", Some("clusterIP")),
            ("cluster_ips", Some("clusterIPs")),
            ("slector", Some("selector")),
            ("Type", Some("type")),
            ("types", Some("type")),
            ("top", None),
            ("id", None),
            ("trafficDistribution", None),
            ("", None),
        ] {
            assert_eq!(similar(text, names), expected, "{text}");
        }
        assert_eq!(similar(&"x".repeat(100_000), names), None);
        assert_eq!(similar("any", []), None);
    }
}
