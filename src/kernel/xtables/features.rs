//! Which matches and targets a node's iptables and kernel have.
//!
//! Found out by trying, in a network namespace that goes again: one run of the
//! program where nothing is missing, one more for each feature otherwise.

use super::{
    Error, Family, Xtables,
    rule::{Match, Maybe, Rule, Side, Table, Target, Transport},
};
use crate::kernel::{nfacct, scratch};

/// What rules may use here; see `Match` and `Target` for what each one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// `-m comment`.
    pub comment: bool,
    /// `-m statistic --mode random`.
    pub statistic: bool,
    /// `-m recent`.
    pub recent: bool,
    /// `-m addrtype`.
    pub addrtype: bool,
    /// `-m mark` and `-j MARK`.
    pub mark: bool,
    /// `-m conntrack --ctstate`.
    pub conntrack: bool,
    /// `-m nfacct`.
    pub nfacct: bool,
    /// `-m set`.
    pub set: bool,
    /// `-m physdev`.
    pub physdev: bool,
    /// `-j REJECT`.
    pub reject: bool,
    /// `-j DNAT`.
    pub dnat: bool,
    /// `-j MASQUERADE`.
    pub masquerade: bool,
    /// `-j MASQUERADE --random-fully`.
    pub random_fully: bool,
    /// `-j REDIRECT`.
    pub redirect: bool,
    /// `-m socket --transparent` in table mangle.
    pub socket: bool,
    /// `-m sctp --dport`.
    pub sctp: bool,
}

impl Features {
    /// A kernel that lacks nothing.
    pub const ALL: Features = Features {
        comment: true,
        statistic: true,
        recent: true,
        addrtype: true,
        mark: true,
        conntrack: true,
        nfacct: true,
        set: true,
        physdev: true,
        reject: true,
        dnat: true,
        masquerade: true,
        random_fully: true,
        redirect: true,
        socket: true,
        sctp: true,
    };

    /// A kernel that lacks everything.
    pub const NONE: Features = Features {
        comment: false,
        statistic: false,
        recent: false,
        addrtype: false,
        mark: false,
        conntrack: false,
        nfacct: false,
        set: false,
        physdev: false,
        reject: false,
        dnat: false,
        masquerade: false,
        random_fully: false,
        redirect: false,
        socket: false,
        sctp: false,
    };
}

/// A feature: which table it is tried in, with what, and where to note it.
type Probe = (Table, Rule, fn(&mut Features) -> &mut bool);

/// An nfacct object that exists while it is tried: one for each family, as both
/// are tried at the same time.
fn account(family: Family) -> &'static str {
    match family {
        Family::V4 => "tripod-probe",
        Family::V6 => "tripod-probe6",
    }
}

/// The match that transparent sockets are found by.
pub const SOCKET: (&str, &str) = ("socket", "--transparent");
/// A set that exists nowhere: what complains about that knows sets.
const NO_SET: &str = "TRIPOD-PROBE";

fn probes(family: Family) -> Vec<Probe> {
    let (to, mask) = match family {
        Family::V4 => ("192.0.2.1:1", 1 << 14),
        Family::V6 => ("[2001:db8::1]:1", 1 << 14),
    };
    let list = || "TRIPOD-PROBE".to_owned();
    let with = |one| Rule::new().with(one).target(Target::Return);
    let masquerade = |random_fully| Rule::new().target(Target::Masquerade { random_fully });
    let mark = Target::Mark { value: mask, mask };
    let other = |name: &str| Rule::new().protocol(Transport::Tcp).jump(name);
    let marked = Match::Mark(Maybe::yes((mask, mask)));
    let mut probes: Vec<Probe> = vec![
        (Table::Nat, Rule::new().comment("probe"), |f| &mut f.comment),
        (Table::Nat, with(Match::Probability(1 << 30)), |f| {
            &mut f.statistic
        }),
        (Table::Nat, with(Match::NoteSource(list())), |f| {
            &mut f.recent
        }),
        (
            Table::Nat,
            with(Match::LocalAddress(Maybe::yes(Side::Destination))),
            |f| &mut f.addrtype,
        ),
        (Table::Nat, Rule::new().with(marked).target(mark), |f| {
            &mut f.mark
        }),
        (
            Table::Filter,
            with(Match::ConnectionState(Maybe::yes("NEW"))),
            |f| &mut f.conntrack,
        ),
        (Table::Filter, with(Match::Account(account(family))), |f| {
            &mut f.nfacct
        }),
        (Table::Filter, Rule::new().target(Target::Reject), |f| {
            &mut f.reject
        }),
        (Table::Nat, masquerade(false), |f| &mut f.masquerade),
        (Table::Nat, masquerade(true), |f| &mut f.random_fully),
        (Table::Nat, other("REDIRECT"), |f| &mut f.redirect),
        (
            Table::Mangle,
            with(Match::Other(SOCKET.0, SOCKET.1.to_owned())),
            |f| &mut f.socket,
        ),
        (
            Table::Nat,
            with(Match::DestinationPort(Transport::Sctp, 1)).protocol(Transport::Sctp),
            |f| &mut f.sctp,
        ),
    ];
    if let Ok(to) = to.parse() {
        let rule = Rule::new()
            .protocol(Transport::Tcp)
            .target(Target::Dnat(to));
        probes.push((Table::Nat, rule, |f| &mut f.dnat));
    }
    // The kernel loads br_netfilter for this match, which would change how
    // bridges treat every packet; where it is not loaded, nothing comes to
    // iptables through a bridge's port.
    if std::path::Path::new("/proc/sys/net/bridge").exists() {
        let rule = with(Match::CameThroughBridge);
        probes.push((Table::Filter, rule, |f| &mut f.physdev));
    }
    probes
}

/// What there is for `xtables`. Changes nothing.
pub async fn probe(xtables: &Xtables) -> Features {
    let there = xtables.aside();
    match scratch::awaited(async move || in_scratch(&there).await).await {
        Some(features) => features,
        None => here(xtables).await,
    }
}

/// In a namespace in which nothing matters.
async fn in_scratch(xtables: &Xtables) -> Features {
    let v6 = xtables.family() == Family::V6;
    let _ = nfacct::create(&[account(xtables.family())]);
    let probes = probes(xtables.family());
    let mut batch = String::new();
    for table in Table::ALL {
        batch += &format!("*{table}\n:TRIPOD-PROBE - [0:0]\n");
        for (_, rule, _) in probes.iter().filter(|(of, ..)| *of == table) {
            batch += &format!("-A TRIPOD-PROBE {}\n", rule.words(v6));
        }
        batch += "COMMIT\n";
    }
    let all = xtables.tried(&batch).await.is_ok();
    let mut features = Features::NONE;
    for (table, rule, feature) in probes {
        let line = format!("-A TRIPOD-PROBE {}", rule.words(v6));
        let alone = format!("*{table}\n:TRIPOD-PROBE - [0:0]\n{line}\nCOMMIT\n");
        *feature(&mut features) = all || xtables.tried(&alone).await.is_ok();
    }
    features.set = knows_sets(xtables).await;
    features
}

/// Among the node's own rules, in a chain that goes again.
async fn here(xtables: &Xtables) -> Features {
    let v6 = xtables.family() == Family::V6;
    let mut features = Features::NONE;
    let account = account(xtables.family());
    let created = nfacct::create(&[account]);
    for (table, rule, feature) in probes(xtables.family()) {
        let words = rule.words(v6).to_string();
        *feature(&mut features) = xtables.check(table.name(), &words).await.is_ok();
    }
    if created.is_ok() {
        let _ = nfacct::delete(account);
    }
    features.set = knows_sets(xtables).await;
    features
}

/// Whether rules in table mangle can mark packets for transparent sockets, for
/// kernels that have no table nat. Changes nothing.
pub async fn marks_sockets(xtables: &Xtables) -> bool {
    let (name, options) = SOCKET;
    let rule = format!("-m {name} {options} -j MARK --set-xmark 0x1/0x1");
    xtables.try_rule("mangle", &rule).await.is_ok()
}

/// The program looks the set up before the kernel sees the rule.
async fn knows_sets(xtables: &Xtables) -> bool {
    let rule = format!("-m set --match-set {NO_SET} src -j RETURN");
    match xtables.check("filter", &rule).await {
        Ok(()) => true,
        Err(Error::Failed { message, .. }) => message.contains("doesn't exist"),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespace::in_namespace;

    /// The kernel that tests run on lacks nothing but, perhaps, br_netfilter.
    #[test]
    fn this_kernel_has_everything_and_probing_leaves_nothing() {
        in_namespace(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                for family in Family::ALL {
                    let (xtables, _) = Xtables::chosen(family).await.unwrap();
                    let begun = std::time::Instant::now();
                    let features = probe(&xtables).await;
                    println!("{family}: probed in {:?}", begun.elapsed());
                    let physdev = features.physdev;
                    assert_eq!(
                        features,
                        Features {
                            physdev,
                            ..Features::ALL
                        }
                    );
                    for table in ["nat", "filter"] {
                        let saved = xtables.save(table).await.unwrap();
                        assert!(!saved.contains("PROBE"), "{saved}");
                    }
                    assert_eq!(here(&xtables).await, features);
                    let saved = xtables.save("nat").await.unwrap();
                    assert!(!saved.contains("PROBE"), "{saved}");
                }
            });
        });
    }
}
