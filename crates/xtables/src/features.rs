//! Which matches and targets a node's iptables and kernel have.
//!
//! Found out by trying, in a network namespace that is then removed: one run of the
//! program where nothing is missing, one more for each feature otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use enumset::EnumSet;
use net::Protocol;
use netlink::{
    nfacct,
    scratch::{self, NoScratch},
};

use super::{
    Error, Family, SCRATCH, Xtables,
    rule::{CtState, Mark, Match, Negatable, Physdev, Rule, Side, Table, Target},
    transaction::{Action, Op, Transaction},
};
use crate::extension::Extension;

/// Extensions that rules may use on this node.
pub type Features = EnumSet<Extension>;

/// A probe for an extension: a table and the rule to try there.
type Probe = (Table, Rule, Extension);

/// Name of an nfacct object that exists during the probe: one for each family, because both are
/// probed at the same time.
pub fn account(family: Family) -> &'static str {
    match family {
        Family::V4 => "tripod-probe",
        Family::V6 => "tripod-probe6",
    }
}

/// Returns a rule that translates to an address for documentation (RFC 5737, RFC 3849).
pub(super) fn dnat(family: Family) -> Rule {
    let to: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let rule = Rule::new().protocol(Protocol::Tcp);
    rule.target(Target::Dnat((to, 1).into()))
}

/// Returns a rule that translates to a port of this node.
pub(super) fn redirect() -> Rule {
    let rule = Rule::new().protocol(Protocol::Tcp);
    rule.target(Target::Redirect(1))
}

fn probes(family: Family) -> Vec<Probe> {
    let with = |one| Rule::new().with(one).target(Target::Return);
    let masquerade = |random_fully| Rule::new().target(Target::Masquerade { random_fully });
    let mark = Mark::set(1 << 14);
    let marked = Rule::new().with(Match::Mark(Negatable::Is(mark)));
    let marked = marked.target(Target::Mark(mark));
    let chance = with(Match::Probability(1 << 30));
    let remembered = with(Match::RememberSource(SCRATCH.to_owned()));
    let local = with(Match::LocalAddress(Negatable::Is(Side::Destination)));
    let new = with(Match::ConnectionState(Negatable::Is(&[CtState::New])));
    let counted = with(Match::Account(account(family)));
    let refused = Rule::new().target(Target::Reject);
    let of_socket = with(Match::TransparentSocket);
    let sctp = with(Match::DestinationPorts(Protocol::Sctp, 1..=1));
    let mut probes: Vec<Probe> = vec![
        (Table::Nat, Rule::new().comment("probe"), Extension::Comment),
        (Table::Nat, chance, Extension::Statistic),
        (Table::Nat, remembered, Extension::Recent),
        (Table::Nat, local, Extension::Addrtype),
        (Table::Nat, marked, Extension::Mark),
        (Table::Filter, new, Extension::Conntrack),
        (Table::Filter, counted, Extension::Nfacct),
        (Table::Filter, refused, Extension::Reject),
        (Table::Nat, masquerade(false), Extension::Masquerade),
        (Table::Nat, masquerade(true), Extension::RandomFully),
        (Table::Nat, redirect(), Extension::Redirect),
        (Table::Mangle, of_socket, Extension::Socket),
        (Table::Nat, sctp.protocol(Protocol::Sctp), Extension::Sctp),
        (Table::Nat, dnat(family), Extension::Dnat),
    ];
    // The kernel loads br_netfilter for this match, which would change how
    // bridges treat every packet; where it is not loaded, nothing comes to
    // iptables through a bridge's port.
    if std::path::Path::new("/proc/sys/net/bridge").exists() {
        let rule = with(Match::Physdev(Negatable::Is(Physdev::IsIn)));
        probes.push((Table::Filter, rule, Extension::Physdev));
    }
    probes
}

/// The outcome of trying all features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The features that are there.
    pub there: Features,
    /// Features whose presence is unknown, because the probe failed for a temporary reason.
    pub unknown: Features,
    /// A temporary reason for which trying failed; `None`: nothing failed.
    pub why: Option<String>,
}

impl Probed {
    /// The outcome of a probe after which all features are known.
    pub fn known(there: Features) -> Probed {
        Probed {
            there,
            unknown: Features::empty(),
            why: None,
        }
    }

    /// No feature is known, because of `why`.
    fn unknown(why: String) -> Probed {
        Probed {
            there: Features::empty(),
            unknown: Features::all(),
            why: Some(why),
        }
    }

    /// A rule that counts was refused because there was no counter for it.
    fn without_account(&mut self, error: Option<netlink::Error>) {
        if let Some(error) = error.filter(netlink::Error::is_passing)
            && !self.there.contains(Extension::Nfacct)
        {
            self.unknown.insert(Extension::Nfacct);
            self.why.get_or_insert(error.to_string());
        }
    }

    fn record(&mut self, feature: Extension, tried: Result<(), Error>) {
        match tried {
            Ok(()) => {
                self.there.insert(feature);
            }
            Err(error) if error.is_unanswered() => {
                self.unknown.insert(feature);
                self.why.get_or_insert(error.to_string());
            }
            Err(_) => {}
        }
    }
}

/// Probes the features of `xtables`. Changes nothing; if no network namespace can be made, rules
/// are tried among the node's own.
pub async fn probe(xtables: &Xtables) -> Probed {
    let there = xtables.isolated();
    match scratch::awaited(async move || in_scratch(&there).await).await {
        Ok(probed) => probed,
        Err(NoScratch::Impossible(_)) => here(xtables).await,
        Err(error @ NoScratch::ForNow(_)) => Probed::unknown(error.to_string()),
    }
}

/// Tries in a namespace in which nothing matters: all at once, and one by one where
/// something is missing.
async fn in_scratch(xtables: &Xtables) -> Probed {
    let account = nfacct::create(&[account(xtables.family())]);
    let ops = Table::ALL.map(|table| {
        let mut probes = probes(xtables.family());
        probes.retain(|(of, ..)| *of == table);
        let rules = probes.into_iter().map(|(_, rule, _)| rule);
        Op::new(table, SCRATCH, Action::Fill(rules.collect()))
    });
    let batch = Transaction::common(xtables.family(), ops.into());
    let mut probed = match xtables.tried(&batch.to_string()).await {
        Ok(_) => all(xtables),
        Err(_) => one_by_one(xtables).await,
    };
    complete(&mut probed, xtables, account).await;
    probed
}

/// Tries among the node's own rules, in a chain that is removed again.
async fn here(xtables: &Xtables) -> Probed {
    let account = account(xtables.family());
    let created = nfacct::create(&[account]);
    let is_created = created.is_ok();
    let mut probed = one_by_one(xtables).await;
    complete(&mut probed, xtables, created).await;
    if is_created {
        let _ = nfacct::delete(account);
    }
    probed
}

/// Returns all features that are probed for by a rule.
fn all(xtables: &Xtables) -> Probed {
    let mut probed = Probed::known(Features::empty());
    for (_, _, feature) in probes(xtables.family()) {
        probed.record(feature, Ok(()));
    }
    probed
}

/// Tries each feature that is probed for by a rule.
async fn one_by_one(xtables: &Xtables) -> Probed {
    let mut probed = Probed::known(Features::empty());
    for (table, rule, feature) in probes(xtables.family()) {
        probed.record(feature, xtables.check(table, &rule).await);
    }
    probed
}

/// Adds to `probed` the features that no rule alone shows. `account`: outcome of making the
/// counter.
async fn complete(probed: &mut Probed, xtables: &Xtables, account: Result<(), netlink::Error>) {
    probed.without_account(account.err());
    probed.record(Extension::Set, knows_sets(xtables).await);
}

/// Finds out whether rules in table mangle can mark packets for transparent sockets, for
/// kernels that have no table nat. Changes nothing.
///
/// # Errors
/// Why they cannot, or why that is not known.
pub async fn marks_sockets(xtables: &Xtables) -> Result<(), Error> {
    let mark = Target::Mark(Mark::set(1));
    let rule = Rule::new().with(Match::TransparentSocket).target(mark);
    xtables.try_rule(Table::Mangle, &rule).await
}

/// Finds out whether rules can match against sets: the program resolves the name before the kernel
/// sees the rule.
async fn knows_sets(xtables: &Xtables) -> Result<(), Error> {
    let set = Match::Set {
        name: SCRATCH.to_owned(),
        sides: vec![Side::Source],
    };
    let rule = Rule::new().with(set).target(Target::Return);
    match xtables.check(Table::Filter, &rule).await {
        Err(Error::Failed { message, .. }) if message.contains("doesn't exist") => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use testing::{block_on, in_namespace};

    use super::{super::engine::Search, *};

    /// The kernel that tests run on has everything but, perhaps, br_netfilter.
    #[test]
    fn this_kernel_has_everything_and_probing_leaves_nothing() {
        in_namespace(|| {
            block_on(async {
                for family in Family::ALL {
                    let (xtables, _) = Xtables::chosen(&Search::new(family)).await.unwrap();
                    let begun = std::time::Instant::now();
                    let Probed {
                        there: features, ..
                    } = probe(&xtables).await;
                    println!("{family}: probed in {:?}", begun.elapsed());
                    let without = Features::all() - Extension::Physdev;
                    assert!(features.is_superset(without), "{features:?}");
                    for table in ["nat", "filter"] {
                        let saved = xtables.saved(table).await.unwrap();
                        assert!(!saved.contains("PROBE"), "{saved}");
                    }
                    assert_eq!(here(&xtables).await, Probed::known(features));
                    let saved = xtables.saved("nat").await.unwrap();
                    assert!(!saved.contains("PROBE"), "{saved}");
                }
            });
        });
    }
}
