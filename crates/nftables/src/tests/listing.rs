//! Listing chains, and removing tables of others.

use net::Family;
use testing::in_namespace;

use super::{super::*, sh};

#[test]
fn changes_and_uses_are_seen() {
    in_namespace(|| {
        let nft = |line: &str| {
            let mut command = std::process::Command::new("iptables-nft");
            let status = command.args(line.split(' ')).status().unwrap();
            assert!(status.success(), "{line}");
        };
        let mut rules = Rules::open().unwrap();
        let x = |rules: &mut Rules| {
            let mut found = None;
            let each = |c: ListedChain| found = (c.chain.name == "X").then_some(c).or(found.take());
            rules.chains(Family::V4, each).unwrap();
            found.unwrap()
        };
        nft("-t nat -N X");
        let (first, empty) = (rules.generation().unwrap(), x(&mut rules));
        assert_eq!(
            (empty.table.as_str(), empty.uses, empty.base),
            ("nat", 0, false)
        );
        assert_eq!(rules.generation().unwrap(), first);
        nft("-t nat -A X -j RETURN");
        nft("-t nat -A PREROUTING -j X");
        assert_eq!(
            x(&mut rules).uses,
            2,
            "its rule and the one that leads here"
        );
        assert_ne!(rules.generation().unwrap(), first);
    });
}

fn names(rules: &mut Rules, family: Family) -> Vec<String> {
    let tables = rules.tables(family).unwrap().into_iter();
    tables.map(|table| table.name).collect()
}

/// Makes a table, with a chain that the kernel calls and one for rules to jump to.
fn make(rules: &mut Rules, family: Family, name: &str) {
    let mut transaction = Transaction::new(Table::new(family, name));
    transaction
        .add_table()
        .add_chain(Chain::base("base", ChainType::Filter, Hook::Prerouting, 0))
        .add_chain(Chain::new("services"));
    rules.run(&transaction, None).unwrap();
}

#[test]
fn nothing_leads_to_the_chains_of_an_unlinked_table() {
    in_namespace(|| {
        let mut rules = Rules::open().unwrap();
        make(&mut rules, Family::V4, "kube-proxy");
        make(&mut rules, Family::V4, "other");
        let uses = |rules: &mut Rules| {
            let mut found = Vec::new();
            let each = |c: ListedChain| found.push((c.table, c.chain.name, c.uses));
            rules.chains(Family::V4, each).unwrap();
            found.sort();
            found.into_iter().map(|c| c.2).collect::<Vec<_>>()
        };
        for (table, chain) in [
            ("kube-proxy", "base"),
            ("kube-proxy", "services"),
            ("other", "base"),
        ] {
            let mut one = Transaction::new(Table::new(Family::V4, table));
            one.add_rule(chain, Rule::new([Statement::Counter]));
            rules.run(&one, None).unwrap();
        }
        assert_eq!(uses(&mut rules), [1, 1, 1, 0]);
        rules.unlink_table(Family::V4, "kube-proxy").unwrap();
        assert_eq!(uses(&mut rules), [0, 1, 1, 0]);
        rules.unlink_table(Family::V6, "kube-proxy").unwrap();
    });
}

#[test]
fn a_table_goes_with_its_chains_and_no_other_does() {
    in_namespace(|| {
        let mut rules = Rules::open().unwrap();
        sh("nft add table inet kube-proxy");
        for family in Family::ALL {
            make(&mut rules, family, "kube-proxy");
            make(&mut rules, family, "kube-proxy-2");
        }
        for family in Family::ALL {
            assert_eq!(names(&mut rules, family), ["kube-proxy", "kube-proxy-2"]);
            assert!(rules.delete_table(family, "kube-proxy").unwrap());
            assert!(!rules.delete_table(family, "kube-proxy").unwrap(), "again");
            assert_eq!(names(&mut rules, family), ["kube-proxy-2"]);
        }
        let tables = sh("nft list tables");
        assert!(tables.contains("table inet kube-proxy\n"), "{tables}");
    });
}
