//! Objects that were sent are read again, and `nft` lists them.

use std::{sync::Arc, time::Duration};

use net::Family;
use testing::in_namespace;

use super::{
    super::{transaction::Grouping, *},
    example, nft, sh,
};

/// The elements in a fixed order, without the parts that change by themselves.
fn plain(elements: Vec<Element>) -> Vec<Element> {
    let comparable = elements.into_iter().map(Element::comparable);
    let mut elements: Vec<Element> = comparable.collect();
    elements.sort_by(|a, b| a.key.cmp(&b.key));
    elements
}

/// Checks that the kernel has the whole example and no other objects.
fn check(rules: &mut Rules, family: Family) {
    let sets = example::Sets::new(family);
    let whole = example::whole(family);
    let found = rules.contents(family, example::TABLE).unwrap().unwrap();
    assert_eq!(&found.table, whole.table());
    assert_eq!(found.generation, rules.generation().unwrap());
    let chains = example::chains(family, &sets);
    assert_eq!(found.chains.len(), chains.len());
    let mut rules = found.rules.clone();
    for rule in &mut rules {
        // `nft` 1.0.6 turns round the one octet of a protocol.
        rule.expressions.retain(|e| e.name != "byteorder");
    }
    let mut listed = rules.iter();
    for (chain, desired) in chains {
        let there = found.chains.iter().find(|c| c.chain.name == chain.name);
        assert_eq!(there.map(|there| &there.chain), Some(&chain));
        let mut of_chain = listed.clone().filter(|rule| rule.chain == chain.name);
        for rule in desired {
            let there = of_chain.next().unwrap();
            listed.next();
            let compiled = rule.expressions().into_iter().map(Expression::comparable);
            assert!(
                there.is(&rule),
                "{rule}\n  sent {:?}\n read {:?}",
                compiled.collect::<Vec<_>>(),
                there.expressions
            );
        }
        assert_eq!(of_chain.next(), None);
    }
    assert_eq!(listed.next(), None);
    let mut elements = sets.elements(family);
    for set in sets.all() {
        let there = found.sets.iter().find(|(s, _)| s.name == set.name);
        let (listed, listed_elements) = there.unwrap();
        assert!(listed.is(set), "{set:?}\n{listed:?}");
        let desired = elements.iter_mut().find(|(s, _)| s.name == set.name);
        let desired = desired.map(|(_, elements)| std::mem::take(elements));
        assert_eq!(
            plain(listed_elements.clone()),
            plain(desired.unwrap_or_default()),
            "{}",
            set.name
        );
    }
    assert_eq!(found.sets.len(), sets.all().len());
}

/// Makes `transaction` flush the chains that its table has.
fn flush(transaction: &mut Transaction, rules: &mut Rules) {
    let family = transaction.table().family;
    let found = rules.contents(family, example::TABLE).unwrap().unwrap();
    for listed in found.chains {
        transaction.flush_chain(listed.chain.name);
    }
}

#[test]
fn what_was_sent_is_read_again() {
    for family in Family::ALL {
        in_namespace(move || {
            let mut rules = Rules::open().unwrap();
            assert_eq!(rules.contents(family, example::TABLE).unwrap(), None);
            let whole = example::whole(family);
            rules.run(&whole, None).unwrap();
            check(&mut rules, family);
            // Everything except rules may be sent again.
            let mut again = Transaction::new(whole.table().clone());
            again.add_table();
            flush(&mut again, &mut rules);
            rules.run(&again, None).unwrap();
            rules.run(&whole, None).unwrap();
            check(&mut rules, family);
            // Deleted elements are not there any more.
            let sets = example::Sets::new(family);
            let mut deletion = Transaction::new(whole.table().clone());
            for (set, elements) in sets.elements(family) {
                deletion.delete_elements(&set, elements);
            }
            rules.run(&deletion, None).unwrap();
            for set in sets.all() {
                let left = rules.elements(whole.table(), set).unwrap();
                assert_eq!(left, [], "{}", set.name);
            }
            let mut deletion = Transaction::new(whole.table().clone());
            flush(&mut deletion, &mut rules);
            rules.run(&deletion, None).unwrap();
            let left = rules.contents(family, example::TABLE).unwrap().unwrap();
            assert_eq!(left.rules, []);
        });
    }
}

#[test]
fn what_nft_loads_from_the_text_is_read_as_the_same() {
    for family in Family::ALL {
        in_namespace(move || {
            nft(&[], &example::whole(family).to_string());
            check(&mut Rules::open().unwrap(), family);
        });
    }
}

#[test]
fn nft_lists_names_types_and_comments_and_takes_its_own_list() {
    for family in Family::ALL {
        in_namespace(move || {
            Rules::open()
                .unwrap()
                .run(&example::whole(family), None)
                .unwrap();
            let ours = sh("nft list ruleset");
            for printed in [
                "comment \"made by a test\"",
                "comment \"default/web:http\" : goto pick-2",
                "comment \"all addresses of Services\"",
                "comment \"by the client's address\"",
                "comment \"callers that may\"",
                ". inet_proto . inet_service : verdict",
                "daddr . meta l4proto . th dport . numgen random mod 5 : ",
                "daddr . meta l4proto . th dport . numgen inc mod 2 map @endpoints",
                "mod 2 offset 1 map @endpoints",
                "type filter hook forward priority filter - 10; policy drop;",
                "udp . 30000-32767 : return",
                "timeout 1h",
            ] {
                assert!(ours.contains(printed), "{printed} is not in\n{ours}");
            }
            // `nft` lists its own reading of the text in exactly the same way, except for the rest
            // of a timeout.
            sh("nft flush ruleset");
            nft(&[], &example::whole(family).to_string());
            let theirs = sh("nft list ruleset");
            let stripped = |text: &str| {
                let mut before = "";
                let words = text.split(' ').filter(|word| {
                    let is_left = std::mem::replace(&mut before, word) == "expires";
                    !is_left
                });
                words.collect::<Vec<_>>().join(" ")
            };
            assert_eq!(stripped(&ours), stripped(&theirs));
        });
    }
}

#[test]
fn elements_are_read_again_however_many() {
    in_namespace(|| {
        let mut rules = Rules::open().unwrap();
        let family = Family::V4;
        let sets = example::Sets::new(family);
        let mut table = Transaction::new(Table::new(family, example::TABLE));
        table
            .add_table()
            .add_chain(Chain::new("pick-2"))
            .add_set(&sets.services);
        rules.run(&table, None).unwrap();
        let element = |number: u32| {
            let ip = Value::Ip(std::net::Ipv4Addr::from(0x0a60_0000 + number / 5).into());
            let port = Value::Port(80 + (number % 5) as u16);
            let goto = Datum::Verdict(Verdict::Goto("pick-2".into()));
            Element::with(concat(&[ip, Value::Protocol(6), port]), goto)
                .commented(&format!("namespace-{number}/service:http"))
        };
        let all: Vec<Element> = (0..30_000).map(element).collect();
        let mut transaction = Transaction::new(Table::new(family, example::TABLE));
        transaction.add_elements(&sets.services, all.clone());
        assert_eq!(transaction.len(), 30_000);
        assert!(
            transaction.requests(None, Grouping::Many).count() > 100,
            "many messages"
        );
        let before = rules.generation().unwrap();
        rules.run(&transaction, Some(before)).unwrap();
        assert_eq!(rules.generation().unwrap(), before + 1, "one transaction");
        let found = rules.elements(transaction.table(), &sets.services).unwrap();
        assert_eq!(found.len(), all.len());
        assert!(plain(found) == plain(all.clone()));
        let mut transaction = Transaction::new(Table::new(family, example::TABLE));
        transaction.delete_elements(&sets.services, all);
        rules.run(&transaction, None).unwrap();
        let found = rules.elements(transaction.table(), &sets.services).unwrap();
        assert_eq!(found, []);
    });
}

#[test]
fn an_owned_table_ends_with_its_socket_and_only_its_owner_changes_it() {
    in_namespace(|| {
        let mut table = Table::new(Family::V4, example::TABLE);
        table.owned = true;
        let mut transaction = Transaction::new(table.clone());
        transaction.add_table();
        let mut owner = Rules::open().unwrap();
        owner.run(&transaction, None).unwrap();
        let mut other = Rules::open().unwrap();
        assert_eq!(other.tables(Family::V4).unwrap(), [table]);
        let refused = other.delete_table(Family::V4, example::TABLE).unwrap_err();
        assert_eq!(refused.errno(), Some(nix::errno::Errno::EPERM));
        drop(owner);
        assert_eq!(other.tables(Family::V4).unwrap(), []);
    });
}

/// `nft` 1.0.6 takes none of these in a text: it breaks off at data of 20 octets, requires a type
/// of the connection's port, and does not take a mask in a key. It lists them in the same words
/// nevertheless.
#[test]
fn nft_lists_what_it_would_not_take() {
    for family in Family::ALL {
        in_namespace(move || {
            let mut transaction = example::whole(family);
            let sets = example::Sets::new(family);
            let original = |ct| Field::Ct(ct, Some(Direction::Original));
            let endpoint = vec![Field::DestinationAddress(family), Field::DestinationPort];
            let mut key = example::service(family);
            key.insert(0, Field::SourceAddress(family));
            let clients = Arc::new(Set {
                dynamic: true,
                timeouts: true,
                size: Some(65_536),
                ..Set::map(
                    "clients",
                    Type::Of(key.clone()),
                    Data::Values(Type::Of(endpoint.clone())),
                )
            });
            let update = |key: Vec<Field>| {
                Statement::Dynset(Dynset {
                    set: (&*clients).into(),
                    key,
                    timeout: Duration::from_secs(30),
                    data: endpoint.clone(),
                })
            };
            let translated = vec![
                original(Ct::SourceAddress(family)),
                original(Ct::DestinationAddress(family)),
                Field::Meta(Meta::L4Proto),
                original(Ct::DestinationPort),
            ];
            let mut by_port = example::service(family);
            by_port.push(Field::Masked(Box::new(Field::SourcePort), 3));
            let to = |key, map: &Arc<Set>| Statement::Dnat(family, key, (&**map).into());
            let statements = [
                update(key.clone()),
                update(translated),
                to(key, &clients),
                to(by_port, &sets.endpoints),
            ];
            transaction.add_set(&clients).add_chain(Chain::new("more"));
            for statement in &statements {
                transaction.add_rule("more", Rule::new([statement.clone()]));
            }
            Rules::open().unwrap().run(&transaction, None).unwrap();
            let listed = sh("nft list ruleset");
            for statement in statements {
                // It prints masks of ports as numbers, not as octets.
                let text = statement.to_string().replace("0x3", "3");
                assert!(listed.contains(&text), "{text} is not in\n{listed}");
            }
        });
    }
}
