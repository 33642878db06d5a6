//! What any manifests come to in each mode: for a fuzz target in `fuzz/`.

use crate::{cli, services::Tracker, watch};

/// Reads `text` as a file of manifests, and renders what comes of it in each mode that
/// can be rendered. The result does not matter.
pub fn manifests(text: &str) {
    for (name, mode) in [
        ("a.yaml", "ipvs"),
        ("a.yaml", "nftables"),
        ("a.json", "iptables"),
    ] {
        let mode = format!("--proxy-mode={mode}");
        let line = [
            "tripod",
            "render",
            &mode,
            "--manifests=/",
            "--hostname-override=n",
        ];
        let settings = cli::read(line.map(Into::into), |_| unreachable!("no file is named"));
        let Ok(settings) = settings else {
            unreachable!("the command line is right");
        };
        let mut tracker = Tracker::new("n");
        tracker.apply(watch::manifests::read_anything(name, text));
        let _ = super::render::text(&settings, &mut tracker);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::manifests;

    const TEXT: &str = include_str!("../../examples/hello/hello.yaml");

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn no_manifests_make_a_mode_panic(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut text: Vec<char> = TEXT.chars().collect();
            for (at, with) in changes {
                let at = at.index(text.len());
                text[at] = with;
            }
            manifests(&text.iter().collect::<String>());
            text.truncate(cut.index(text.len()));
            manifests(&text.into_iter().collect::<String>());
        }
    }
}
