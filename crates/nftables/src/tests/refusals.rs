//! A refused object is named, and nothing of its transaction is carried out.

use std::sync::Arc;

use net::Family;
use nix::errno::Errno;
use testing::in_namespace;

use super::{super::*, example, sh};

fn refused(failure: Failure) -> Vec<Refused> {
    match failure {
        Failure::Refused(refused) => refused,
        other => panic!("{other}"),
    }
}

#[test]
fn every_refused_object_is_named_and_nothing_is_carried_out() {
    in_namespace(|| {
        let family = Family::V4;
        let sets = example::Sets::new(family);
        let none = Arc::new(Set::new("no-such-set", Type::Named(vec![DataType::Ipv4])));
        let one = || Element::new([10, 0, 0, 1]);
        let goto = |chain: &str| Rule::new([Statement::Verdict(Verdict::Goto(chain.into()))]);
        let key = vec![Field::SourceAddress(family)];
        let looked = Rule::new([Statement::In(key, (&*none).into())]);
        let mut transaction = Transaction::new(Table::new(family, example::TABLE));
        transaction
            .add_table()
            .add_chain(Chain::new("a"))
            .add_rule("a", goto("nowhere"))
            .add_rule("no-such-chain", Rule::new([Statement::Counter]))
            .add_rule("a", looked)
            .add_set(&sets.hairpin)
            .add_elements(&none, vec![one()])
            .delete_elements(&sets.hairpin, vec![Element::new([0; 8])])
            .delete_chain("no-such-chain");
        let mut rules = Rules::open().unwrap();
        let refused = refused(rules.run(&transaction, None).unwrap_err());
        let of = |object: &str| format!("{object} of table ip {} of nf_tables: ", example::TABLE);
        let expected = [
            (2, "add", "rule \"goto nowhere\" of chain a"),
            (3, "add", "rule \"counter\" of chain no-such-chain"),
            (4, "add", "rule \"ip saddr @no-such-set\" of chain a"),
            (6, "add", "element 10.0.0.1 of set no-such-set"),
            (7, "delete", "element 0.0.0.0 . 0.0.0.0 of set hairpin"),
            (8, "delete", "chain no-such-chain"),
        ];
        let messages: Vec<_> = refused.iter().map(|r| r.error.to_string()).collect();
        for (at, verb, object) in expected {
            let found = refused.iter().position(|r| r.step == Some(at));
            let text =
                &messages[found.unwrap_or_else(|| panic!("{object} is not in {messages:#?}"))];
            assert!(
                text.starts_with(&format!("cannot {verb} {}", of(object))),
                "{text}"
            );
        }
        assert_eq!(refused.len(), expected.len(), "{messages:#?}");
        assert!(
            refused
                .iter()
                .all(|r| r.error.errno() == Some(Errno::ENOENT))
        );
        assert_eq!(rules.tables(family).unwrap(), [], "nothing was carried out");
    });
}

#[test]
fn every_refused_element_of_thousands_is_found() {
    for family in Family::ALL {
        in_namespace(move || {
            let sets = example::Sets::new(family);
            let mut table = Transaction::new(Table::new(family, example::TABLE));
            table
                .add_table()
                .add_chain(Chain::new("pick-2"))
                .add_set(&sets.services);
            let mut rules = Rules::open().unwrap();
            rules.run(&table, None).unwrap();
            let element = |number: u16| {
                let refused = [17, 2345, 2346].contains(&number);
                let chain = if refused { "gone" } else { "pick-2" };
                let key = concat(&example::service_key(family, 1, number));
                Element::with(key, Datum::Verdict(Verdict::Goto(chain.into())))
            };
            let mut transaction = Transaction::new(table.table().clone());
            transaction.add_elements(&sets.services, (0..5000).map(element).collect());
            let refused = refused(rules.run(&transaction, None).unwrap_err());
            let found: Vec<_> = refused.iter().map(|r| (r.step, r.element)).collect();
            let expected = [17, 2345, 2346].map(|at| (Some(0), Some(at)));
            assert_eq!(found, expected);
            let text = refused[1].error.to_string();
            let ip = example::ip(family, 1);
            let name = format!("cannot add element {ip} . tcp . 2345 of map services of table ");
            assert!(text.starts_with(&name), "{text}");
            assert_eq!(rules.elements(table.table(), &sets.services).unwrap(), []);
        });
    }
}

#[test]
fn a_range_is_named_by_its_begin_wherever_the_fault_is() {
    in_namespace(|| {
        let networks = Arc::new(Set {
            interval: true,
            ..Set::new("networks", Type::Named(vec![DataType::Ipv4]))
        });
        let mut table = Transaction::new(Table::new(Family::V4, example::TABLE));
        let range = |from: u8, to: u8| Element::range([10, 0, 0, from], [10, 0, 0, to]);
        table
            .add_table()
            .add_set(&networks)
            .add_elements(&networks, vec![range(100, 120)]);
        let mut rules = Rules::open().unwrap();
        rules.run(&table, None).unwrap();
        let mut transaction = Transaction::new(table.table().clone());
        let overlapping = vec![range(1, 5), range(90, 110), range(200, 210)];
        transaction.add_elements(&networks, overlapping);
        let refused = refused(rules.run(&transaction, None).unwrap_err());
        assert_eq!(refused[0].element, Some(1), "{refused:?}");
        let text = refused[0].error.to_string();
        assert!(
            text.contains("element 10.0.0.90-10.0.0.110 of set networks"),
            "{text}"
        );
    });
}

#[test]
fn a_transaction_for_an_older_generation_is_not_carried_out() {
    in_namespace(|| {
        let mut rules = Rules::open().unwrap();
        let generation = rules.generation().unwrap();
        let whole = example::whole(Family::V4);
        sh("nft add table ip others");
        let failure = rules.run(&whole, Some(generation)).unwrap_err();
        assert!(matches!(failure, Failure::Changed), "{failure}");
        assert_eq!(rules.tables(Family::V4).unwrap().len(), 1);
        let generation = rules.generation().unwrap();
        rules.run(&whole, Some(generation)).unwrap();
        assert_eq!(rules.tables(Family::V4).unwrap().len(), 2);
    });
}

#[test]
fn thousands_of_refusals_are_all_messages() {
    in_namespace(|| {
        let mut transaction = Transaction::new(Table::new(Family::V4, example::TABLE));
        transaction.add_table();
        for number in 0..2000 {
            transaction.delete_chain(format!("no-such-chain-{number}"));
        }
        let failure = Rules::open().unwrap().run(&transaction, None).unwrap_err();
        let text = failure.to_string();
        assert!(text.ends_with("; and 1995 more"), "{text}");
        let refused = refused(failure);
        let last = refused.last().unwrap().error.to_string();
        assert!(last.contains("chain no-such-chain-1999 of table"), "{last}");
    });
}
