//! Arbitrary values are read as they were sent, and changed octets make nothing panic.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use net::Family;
use netlink::{Message, Messages};
use proptest::prelude::*;

use super::{
    super::{transaction::Grouping, *},
    example,
};

fn wire(transaction: &Transaction) -> Vec<u8> {
    let mut wire = Vec::new();
    for request in transaction.requests(None, Grouping::Many) {
        request.write(&mut wire, 0, 0);
    }
    wire
}

/// Reads elements from the form in which they are sent: the kernel's answers have the same form.
fn again(set: Set, elements: &[Element]) -> Vec<Element> {
    let set = Arc::new(set);
    let mut transaction = Transaction::new(Table::new(Family::V4, "t"));
    transaction.add_elements(&set, elements.to_vec());
    let wire = wire(&transaction);
    let messages = Messages::new(&wire).map(Result::unwrap);
    let of_set = messages.filter(|message| message.kind > 0xff);
    let found = of_set.map(|message| element::Found::read(message).unwrap());
    let mut elements = element::Found::elements(found.collect(), set.ranges_of_one());
    elements.sort_by(|a, b| a.key.cmp(&b.key));
    elements
}

/// The kernel sends one twice when a hash table grows while it is listed.
#[test]
fn an_element_that_is_sent_twice_is_noticed() {
    let set = Arc::new(Set::new("s", Type::Named(vec![DataType::Ipv4])));
    let repeats = |elements: &[Vec<[u8; 4]>]| {
        let mut transaction = Transaction::new(Table::new(Family::V4, "t"));
        for message in elements {
            let all = message.iter().map(|key| Element::new(*key)).collect();
            transaction.add_elements(&set, all);
        }
        let wire = wire(&transaction);
        let messages = Messages::new(&wire).map(Result::unwrap);
        let of_set = messages.filter(|message| message.kind > 0xff);
        let found: Vec<_> = of_set
            .map(|message| element::Found::read(message).unwrap())
            .collect();
        element::Found::repeats(&found)
    };
    let (a, b, c) = ([1; 4], [2; 4], [3; 4]);
    assert!(!repeats(&[vec![a, b], vec![c]]));
    assert!(repeats(&[vec![a, b], vec![a]]));
    assert!(repeats(&[vec![a, a]]));
}

fn comment() -> impl Strategy<Value = Option<Comment>> {
    proptest::option::of("[a-z0-9-]{1,63}/[a-z0-9-]{1,63}:[a-z]{1,15}")
        .prop_map(|text| text.map(|text| Comment::new(&text)))
}

fn datum() -> impl Strategy<Value = Option<Datum>> {
    let chain = "[a-z-]{1,255}".prop_map(|name| Verdict::Goto(name.into()));
    let verdict = prop_oneof![Just(Verdict::Drop), Just(Verdict::Return), chain];
    let octets = prop::collection::vec(any::<u8>(), 8).prop_map(|o| Datum::Value(o.into()));
    proptest::option::of(prop_oneof![verdict.prop_map(Datum::Verdict), octets])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn elements_are_read_as_they_were_sent(
        sent in prop::collection::btree_map(any::<[u8; 4]>(), (comment(), datum()), 1..400),
    ) {
        let elements: Vec<Element> = sent
            .into_iter()
            .map(|(key, (comment, data))| Element { comment, data, ..Element::new(key) })
            .collect();
        let set = Set::new("s", Type::Named(vec![DataType::Ipv4]));
        prop_assert_eq!(again(set, &elements), elements);
    }

    /// Ranges of single values, adjacent ones and the least and greatest value
    /// among them.
    #[test]
    fn ranges_are_read_as_they_were_sent(
        sent in prop::collection::btree_set(prop_oneof![0..300u16, 65_200..=u16::MAX], 2..80),
        data in datum(),
    ) {
        let ends: Vec<u16> = sent.into_iter().collect();
        let ranges: Vec<Element> = ends
            .chunks_exact(2)
            .map(|ends| Element {
                data: data.clone(),
                end: Some(ends[1].to_be_bytes().into()),
                ..Element::new(ends[0].to_be_bytes())
            })
            .collect();
        let set = Set {
            interval: true,
            ..Set::new("s", Type::Named(vec![DataType::Port]))
        };
        prop_assert_eq!(again(set, &ranges), ranges);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Messages of every kind, with some octets changed.
    #[test]
    fn changed_octets_make_no_reader_panic(
        v6 in any::<bool>(),
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        static WIRES: LazyLock<[Vec<u8>; 2]> =
            LazyLock::new(|| Family::ALL.map(|family| wire(&example::whole(family))));
        let wire = &WIRES[usize::from(v6)];
        let messages: Vec<Message<'_>> = Messages::new(wire).map(Result::unwrap).collect();
        let message = which.get(&messages);
        let mut body = message.body.to_vec();
        for (at, octet) in changes {
            let at = at.index(body.len());
            body[at] = octet;
        }
        if cut {
            body.truncate(length.index(body.len()));
        }
        read_anything(Message { body: &body, ..*message });
    }
}

/// Expressions of all rules are read as they were sent.
#[test]
fn expressions_are_read_as_they_were_sent() {
    for family in Family::ALL {
        let sets = example::Sets::new(family);
        let desired = example::chains(family, &sets)
            .into_iter()
            .flat_map(|(_, rules)| rules);
        let wire = wire(&example::whole(family));
        let new_rule = |message: &Message<'_>| message.kind == kind(libc::NFT_MSG_NEWRULE);
        let mut sent = Messages::new(&wire).map(Result::unwrap).filter(new_rule);
        let mut kinds = BTreeMap::new();
        for rule in desired {
            let read = ListedRule::read(sent.next().unwrap()).unwrap();
            assert!(read.is(&rule), "{rule}: {read:?}");
            for expression in read.expressions {
                *kinds.entry(expression.name).or_insert(0) += 1;
            }
        }
        assert!(sent.next().is_none());
        // The example has every kind but `byteorder`.
        assert_eq!(kinds.len(), 18, "{kinds:?}");
    }
}

/// Ends of ranges are compared octet by octet; a single octet has no order.
#[test]
fn values_in_host_order_are_turned_round_before_ranges_are_looked_up() {
    for (field, turned) in [(Meta::Mark, 1), (Meta::L4Proto, 0)] {
        let key = vec![Field::Meta(field), Field::SourceAddress(Family::V4)];
        let set = Set {
            interval: true,
            ..Set::new("ranges", Type::Of(key.clone()))
        };
        let rule = Rule::new([Statement::In(key, (&set).into())]);
        let expressions = rule.expressions();
        let found = expressions.iter().filter(|e| e.name == "byteorder");
        assert_eq!(found.count(), turned, "{rule}");
    }
}
