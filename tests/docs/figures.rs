//! The figures for Tripod and kube-proxy in the documents and the picture are those of the last
//! measurement.

use std::{collections::BTreeMap, fs};

use super::root;

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Rounds a figure to two digits, as in the documents.
fn rounded(figure: f64) -> String {
    match figure {
        ..1.0 => format!("{figure:.2}"),
        ..10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

/// Reads the time of the first sync in seconds, that of one change in milliseconds, and the memory
/// in MiB, of `mode` with 5,000 Services.
fn measured(mode: &str) -> [String; 3] {
    let text = read("docs/benchmarks/scale.csv");
    let mut lines = text.lines().map(|line| line.split(','));
    let names: Vec<&str> = lines.next().expect("names").collect();
    let rows = lines.map(|row| names.iter().copied().zip(row).collect::<BTreeMap<_, _>>());
    let mut rows = rows.filter(|row| row["mode"] == mode && row["services"] == "5000");
    let row = rows.next().unwrap_or_else(|| panic!("no {mode}"));
    ["first_sync_s", "change_p50_ms", "resident_mib"]
        .map(|name| rounded(row[name].parse().expect("a number")))
}

#[test]
fn the_comparison_with_kube_proxy_has_the_figures_of_the_bench() {
    let modes = read("docs/modes.md");
    let cells = |begin: &str| {
        let row = modes.lines().find(|line| line.starts_with(begin));
        let row = row.unwrap_or_else(|| panic!("no {begin}"));
        let cells = row.trim_matches('|').split('|').map(str::trim);
        <[&str; 5]>::try_from(cells.collect::<Vec<_>>()).expect("five cells")
    };
    let (picture, readme) = (read("docs/images/scale.svg"), read("README.md"));
    let (_, readme) = readme.split_once("![5,000 Services,").expect("the picture");
    let (readme, _) = readme.split_once(']').expect("its text");
    let readme: Vec<&str> = readme.split_whitespace().collect();
    let rows = [
        ("| first sync, from the start", "s"),
        ("| one endpoint changed | 350", "ms"),
        ("| resident memory |", "MiB"),
    ];
    let (iptables, nftables) = (measured("iptables-nft"), measured("nftables"));
    for (at, (begin, unit)) in rows.into_iter().enumerate() {
        let [
            _,
            kube_iptables,
            kube_nftables,
            ours_iptables,
            ours_nftables,
        ] = cells(begin);
        assert_eq!(ours_iptables, format!("{} {unit}", iptables[at]), "{begin}");
        assert_eq!(ours_nftables, format!("{} {unit}", nftables[at]), "{begin}");
        for cell in [kube_iptables, kube_nftables, ours_iptables, ours_nftables] {
            assert!(picture.contains(&format!(">{cell}</text>")), "{cell}");
            let (number, _) = cell.rsplit_once(' ').expect("a unit");
            let mut words = number.split(' ');
            assert!(
                words.all(|word| readme.contains(&word)),
                "{number}: {readme:?}"
            );
        }
    }
}
