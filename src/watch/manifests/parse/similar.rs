//! Finds the name that was intended.

use strsim::osa_distance;

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
        .map(|name| (osa_distance(&text, &plain(name)), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    // In short names a single letter makes another word.
    let most = match name.len() {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    };
    (distance <= most).then_some(name)
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
