//! Added, removed and kept lines, for the output of programs.

use net::Family;
use xtables::Engine;

use super::*;

const SAVED: &str = "*filter\n:INPUT ACCEPT [1:2]\n:KUBE-FIREWALL - [0:0]\n:THEIRS - [0:0]\n\
                     -A INPUT -j KUBE-FIREWALL\n-A INPUT -j THEIRS\n\
                     -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP\nCOMMIT\n\
                     *nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n\
                     :KUBE-SVC-X - [0:0]\n\
                     -A PREROUTING -m comment --comment services -j KUBE-SERVICES\n\
                     -A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-X\n\
                     -A KUBE-SVC-X -j DNAT --to-destination 10.0.0.1:1\n\
                     -A KUBE-SVC-X -j DNAT --to-destination 10.0.0.1:1\nCOMMIT\n";

fn rules(text: &str) -> Holdings {
    let mut holdings = Holdings::default();
    holdings.saved(Program::Iptables(Family::V4, None), text);
    holdings
}

fn rendered(text: &str, engine: Option<Engine>) -> Holdings {
    let mut holdings = Holdings::default();
    holdings.rendered(text, |_| engine);
    holdings
}

/// The lines of a place that are added and removed, and the number of those that stay.
fn of<'a>(changes: &'a [PlaceChanges], place: &str) -> (Vec<&'a str>, Vec<&'a str>, usize) {
    let mut places = changes.iter();
    let found = places.find(|of| of.place == place);
    let found = found.unwrap_or_else(|| panic!("no {place} in {changes:?}"));
    let text = |lines: &'a [String]| lines.iter().map(String::as_str).collect();
    (text(&found.comes), text(&found.goes), found.stays)
}

#[test]
fn rules_stay_whatever_their_quotes_and_each_as_often_as_it_is_needed() {
    let desired = "# iptables-restore --noflush\n*nat\n:KUBE-SERVICES - [0:0]\n\
                   :KUBE-SVC-X - [0:0]\n-A KUBE-SERVICES -d 10.96.0.2/32 -j KUBE-SVC-X\n\
                   -A KUBE-SVC-X -j DNAT --to-destination 10.0.0.1:1\n\
                   -I PREROUTING -m comment --comment \"services\" -j KUBE-SERVICES\nCOMMIT\n";
    let changes = changes(&rules(SAVED), &rendered(desired, None));
    let come = vec!["-A KUBE-SERVICES -d 10.96.0.2/32 -j KUBE-SVC-X"];
    let go = vec![
        "-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-X",
        "-A KUBE-SVC-X -j DNAT --to-destination 10.0.0.1:1",
    ];
    assert_eq!(of(&changes, "IPv4, table nat"), (come, go, 4));
    let (_, go, stay) = of(&changes, "IPv4, table filter");
    assert_eq!((go.len(), stay), (3, 0), "{go:?}");
    assert!(!go.iter().any(|line| line.contains("THEIRS")), "{go:?}");
}

#[test]
fn what_the_kubelet_needs_stays() {
    let of_kubelet = SAVED.replace("*nat\n", "*nat\n:KUBE-KUBELET-CANARY - [0:0]\n");
    let changes = changes(&rules(&of_kubelet), &Holdings::default());
    assert_eq!(of(&changes, "IPv4, table filter"), (vec![], vec![], 3));
}

#[test]
fn rules_in_another_engine_go() {
    let text = "# iptables-restore --noflush\n*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
    let engine = Some(Engine::NfTables);
    let mut there = Holdings::default();
    let legacy = Program::Iptables(Family::V4, Some(Engine::Legacy));
    there.saved(legacy, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
    let changes = changes(&there, &rendered(text, engine));
    let line = ":KUBE-SERVICES";
    let legacy = of(&changes, "IPv4, table nat, iptables-legacy");
    assert_eq!(legacy, (vec![], vec![line], 0));
    let nft = of(&changes, "IPv4, table nat, iptables-nft");
    assert_eq!(nft, (vec![line], vec![], 0));
}

#[test]
fn sets_servers_addresses_tables_and_listeners_are_places() {
    let mut there = Holdings::default();
    there.saved(
        Program::Ipset,
        "create KUBE-A hash:ip hashsize 1\nadd KUBE-A 10.0.0.1",
    );
    there.saved(Program::Ipvsadm, "-A -t 10.0.0.1:1 -s rr\nnoise");
    there.saved(
        Program::Ip,
        "3: kube-ipvs0: <BROADCAST>\n    inet 10.0.0.1/32 scope global kube-ipvs0\n    \
         inet6 fe80::1/64 scope link\n",
    );
    there.table(Family::V4, "kube-proxy");
    let text = "# ipset restore\ncreate KUBE-A hash:ip family inet\n# ipvsadm -R\n\
                -A -t 10.0.0.1:1 -s rr\n# ip -batch -\nlink add kube-ipvs0 type dummy\n\
                addr add 10.0.0.1/32 dev kube-ipvs0\nadd table ip tripod\n\
                # listen 127.0.0.1:30080 for a/b: 10.0.0.9:1\n";
    let changes = changes(&there, &rendered(text, None));
    let none = Vec::<&str>::new;
    assert_eq!(
        of(&changes, "sets"),
        (none(), vec!["add KUBE-A 10.0.0.1"], 1)
    );
    assert_eq!(of(&changes, "virtual servers"), (none(), none(), 1));
    assert_eq!(of(&changes, "link kube-ipvs0"), (none(), none(), 1));
    let table = "table ip kube-proxy";
    assert_eq!(of(&changes, table), (none(), vec![table], 0));
    let ours = vec!["add table ip tripod"];
    assert_eq!(of(&changes, "table ip tripod"), (ours, none(), 0));
    let listens = vec!["127.0.0.1:30080 for a/b: 10.0.0.9:1"];
    assert_eq!(of(&changes, "listeners"), (listens, none(), 0));
}

proptest::proptest! {
    /// Only the existing and the desired lines matter: the kept ones are in both.
    #[test]
    fn what_comes_goes_and_stays_adds_up(
        there in proptest::collection::vec(0_u8..6, 0..12),
        desired in proptest::collection::vec(0_u8..6, 0..12),
    ) {
        let of = |numbers: &[u8]| {
            let lines = numbers.iter().map(|number| format!("-A -t 10.0.0.{number}:1 -s rr\n"));
            let mut holdings = Holdings::default();
            holdings.saved(Program::Ipvsadm, &lines.collect::<String>());
            holdings
        };
        for place in changes(&of(&there), &of(&desired)) {
            proptest::prop_assert_eq!(place.stays + place.comes.len(), desired.len());
            proptest::prop_assert_eq!(place.stays + place.goes.len(), there.len());
            let both = place.comes.iter().any(|line| place.goes.contains(line));
            proptest::prop_assert!(!both);
        }
    }
}
