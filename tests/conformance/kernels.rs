//! Kernels of distributions: which mode a node gets by default, and the table of conformance in that
//! mode. They are kernels of Debian's cloud images, some without the modules that another distribution
//! lacks. `make kernels` runs them and writes a part of docs/kernels.md.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::columns::{Column, IPVS, Kernel, NFTABLES, Tools, iptables, local};
use super::{
    CELL, FAILED,
    case::Flags,
    cases::{self, Topic},
    cells, matrix,
    network::Network,
    run,
};
use crate::lab::{
    self, Host, figure,
    guest::{self, Debian, Profile},
    skip, tripod_binary,
};

const IPVS_BY_NFT: Column = Column {
    tools: Tools::Nft,
    ..IPVS
};
const BY_LEGACY: Column = iptables("", Kernel::Debian, Tools::Legacy, true);
const BY_ROUTES: Column = local("", Kernel::Debian);

/// Declares a test for each kernel: its name, its folder, the modules that cannot be loaded, and a
/// column with the mode that it gets by default.
macro_rules! kernels {
    ($($test:ident: $name:literal, $folder:expr, $withheld:expr, $column:expr;)+) => {
        $(
            #[test]
            #[ignore = "part of `make kernels`"]
            fn $test() {
                on_kernel($name);
            }
        )+
        const KERNELS: &[(Debian, Column)] = &[$((
            Debian { folder: $folder, withheld: $withheld },
            Column { name: $name, kernel: Kernel::Debian, asked: "ipvs", ..$column },
        )),+];
    };
}

kernels! {
    debian_12: "Debian 12", "bookworm", &[], IPVS_BY_NFT;
    debian_12_without_ipvs: "Debian 12 without IPVS", "bookworm", &["ip_vs"], NFTABLES;
    debian_12_without_nf_tables: "Debian 12 without IPVS and nf_tables", "bookworm",
        &["ip_vs", "nf_tables"], BY_LEGACY;
    debian_13: "Debian 13", "trixie", &[], IPVS_BY_NFT;
    latest: "the latest", "trixie-backports", &[], IPVS_BY_NFT;
    latest_without_ipvs: "the latest without IPVS", "trixie-backports", &["ip_vs"], NFTABLES;
    rhel_10: "RHEL 10", "trixie", &["ip_tables", "ip6_tables", "nft_compat"], NFTABLES;
    rhel_10_without_nft_ct: "RHEL 10 without nft_ct", "trixie",
        &["ip_tables", "ip6_tables", "nft_compat", "nft_ct"], BY_ROUTES;
    bottlerocket: "Bottlerocket", "trixie", &["ip_tables", "ip6_tables"], IPVS_BY_NFT;
    talos: "Talos without module ip_vs", "trixie", &["ip_tables", "ip6_tables", "ip_vs"], NFTABLES;
    ubuntu_26_04: "Ubuntu 26.04", "trixie-backports", &["ip_tables", "ip6_tables"], IPVS_BY_NFT;
    wsl2: "WSL2 without modules", "trixie-backports",
        &["ip_vs", "dummy", "ip_set", "ip_tables", "ip6_tables", "nft_compat", "nft_ct"], BY_ROUTES;
    aarch64: "Debian 13 on aarch64", guest::AARCH64, &[], IPVS_BY_NFT;
    aarch64_without_ipvs: "Debian 13 on aarch64 without IPVS", guest::AARCH64, &["ip_vs"], NFTABLES;
}

fn kernel(name: &str) -> &'static (Debian, Column) {
    let found = KERNELS.iter().find(|(_, column)| column.name == name);
    found.unwrap_or_else(|| panic!("no kernel {name:?}"))
}

const OF_EACH_TOPIC: usize = 3;

/// The longest life of an emulated guest.
const GUEST: Duration = Duration::from_secs(3000);
const INSIDE: &str = "conformance::kernels::inside";
/// Tells [`inside`] its kernel.
const KERNEL: &str = "TRIPOD_CONFORMANCE_KERNEL";
/// Begins a line of the guest's console with the version of its kernel, or with what a mode lacks.
const LINUX: &str = "LINUX ";
const LACKS: &str = "LACKS ";

fn on_kernel(name: &str) {
    let (debian, column) = kernel(name);
    let profile = Profile::Debian(*debian);
    if let Some(reason) = guest::unavailable(profile) {
        return skip(&reason);
    }
    lab::run(|| {
        let arguments = ["--exact", INSIDE, "--include-ignored", "--nocapture"];
        let only = std::env::var(run::ONLY).unwrap_or_default();
        let environment = [(KERNEL, name), (run::ONLY, &*only)];
        let outcome = guest::run(profile, &arguments, &environment, GUEST);
        figure(&format!("kernel {name}"), format!("{:?}", outcome.took));
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        let words = [LINUX, LACKS, CELL];
        let seen = outcome.console.lines();
        let seen = seen.filter(|line| words.iter().any(|word| line.starts_with(word)));
        let seen: Vec<_> = seen.collect();
        let failed = format!("\t{FAILED}");
        let failed: Vec<_> = seen.iter().filter(|line| line.ends_with(&failed)).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        if only.is_empty() {
            std::fs::write(matrix::results(column.name), seen.join("\n")).expect("writing results");
        }
    });
}

#[test]
#[ignore = "run inside a guest"]
fn inside() {
    let Ok(name) = std::env::var(KERNEL) else {
        return;
    };
    println!();
    let (_, column) = kernel(&name);
    let linux = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    println!("{LINUX}{}", linux.trim());
    {
        let node = Host::new(
            "probed",
            [192, 0, 2, 10].into(),
            [0, 0, 0, 0, 0, 0, 0, 1].into(),
        );
        let probed = node.show(&format!(
            "{} probe --output json",
            tripod_binary().display()
        ));
        let probed: Value = serde_json::from_str(&probed).expect("JSON");
        assert_eq!(probed["default"], column.mode, "{probed:#}");
        for mode in probed["modes"].as_array().expect("a list") {
            let lacks = |list: &str| mode[list].as_array().cloned().unwrap_or_default();
            let lacks = [lacks("missing"), lacks("lost"), lacks("unknown")].concat();
            let lacks = lacks
                .iter()
                .map(|lack| lack["what"].as_str().unwrap_or_default());
            let lacks = lacks.collect::<Vec<_>>().join(", ");
            println!(
                "{LACKS}{}\t{lacks}",
                mode["mode"].as_str().unwrap_or_default()
            );
        }
    }
    let chosen = chosen();
    let seen = run::run_in(&Network::new(), column, |case| chosen.contains(&case.name));
    let cells = cells(column, &seen).into_iter();
    for (case, cell) in cells.filter(|(case, _)| chosen.contains(&&**case)) {
        println!("{CELL}{case}\t{cell}");
    }
}

/// Some cases of each topic: an emulated processor takes half an hour for all of them.
fn chosen() -> Vec<&'static str> {
    let only = std::env::var(run::ONLY).unwrap_or_default();
    let of_topic = |topic: Topic| {
        let cases = topic.cases.into_iter();
        let named = cases.filter(|case| case.flags == Flags::Usual && case.name.contains(&only));
        named
            .map(|case| case.name)
            .take(OF_EACH_TOPIC)
            .collect::<Vec<_>>()
    };
    cases::topics().into_iter().flat_map(of_topic).collect()
}

/// Writes the table in docs/kernels.md from the results of the latest run of each kernel.
#[test]
#[ignore = "part of `make kernels`"]
fn write() {
    const BEGIN: &str = "<!-- kernels: make kernels -->\n";
    const END: &str = "<!-- end of kernels -->";
    let mut table = String::from(
        "\n| kernel | Linux | modules that it lacks | mode | what other modes lack | cases |\n\
         |---|---|---|---|---|---|\n",
    );
    for (debian, column) in KERNELS {
        let seen = std::fs::read_to_string(matrix::results(column.name));
        let seen = seen.unwrap_or_else(|_| format!("{LINUX}not run yet"));
        let of = |word: &'static str| seen.lines().filter_map(move |line| line.strip_prefix(word));
        let linux = of(LINUX).next().unwrap_or_default();
        let withheld = debian.withheld.iter().map(|module| format!("`{module}`"));
        let withheld = withheld.collect::<Vec<_>>().join(", ");
        let lacks = of(LACKS).filter_map(|line| line.split_once('\t'));
        let lacks = lacks.filter(|(_, lacks)| !lacks.is_empty());
        let lacks = lacks.map(|(mode, lacks)| format!("{mode}: {lacks}"));
        let lacks = lacks.collect::<Vec<_>>().join("; ");
        let (name, cases) = (column.name, of(CELL).count());
        let mode = if cases > 0 { column.mode } else { "" };
        let _ = writeln!(
            table,
            "| {name} | {linux} | {withheld} | {mode} | {lacks} | {cases} |"
        );
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/kernels.md");
    let document = std::fs::read_to_string(&path).expect("the document");
    let (before, rest) = document.split_once(BEGIN).expect("where the table begins");
    let (_, after) = rest.split_once(END).expect("where it ends");
    std::fs::write(&path, format!("{before}{BEGIN}{table}\n{END}{after}")).expect("writing it");
}
