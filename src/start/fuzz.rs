//! Rendering of arbitrary manifests in each mode, for fuzz targets in `fuzz/`.

use std::sync::LazyLock;

use crate::{
    cli::{self, Settings},
    services::Tracker,
    watch,
};

/// The settings of each mode, with a file name.
static EACH: LazyLock<[(&str, Settings); 3]> = LazyLock::new(|| {
    let modes = [
        ("a.yaml", "ipvs"),
        ("a.yaml", "nftables"),
        ("a.json", "iptables"),
    ];
    modes.map(|(name, mode)| (name, settings(mode)))
});

fn settings(mode: &str) -> Settings {
    let mode = format!("--proxy-mode={mode}");
    let line = [
        "tripod",
        "render",
        &mode,
        "--manifests=/",
        "--hostname-override=n",
    ];
    let settings = cli::read(line.map(Into::into), |_| unreachable!("no file is named"));
    settings.unwrap_or_else(|_| unreachable!("the command line is right"))
}

/// Reads `text` as a file of manifests, and renders the result in each mode that can be rendered.
/// The output is discarded.
pub fn manifests(text: &str) {
    for (name, settings) in &*EACH {
        let mut tracker = Tracker::new("n");
        tracker.apply(watch::manifests::read_anything(name, text));
        let _ = super::render::text(settings, &mut tracker);
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
