//! A reading shows the state of one moment, also while others change it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use net::Family;
use nix::sched::{CloneFlags, setns};
use testing::in_namespace;

use super::{super::*, example};

/// In each transaction all of this has the same number: a chain's name, its
/// rule's mark, and the elements of two sets.
fn state(number: u32, before: Option<u32>, numbers: &Arc<Set>, copies: &Arc<Set>) -> Transaction {
    let elements = |number: u32| -> Vec<Element> {
        let each = |at: u32| Element::new(concat(&[Value::Number(number), Value::Number(at)]));
        (0..300).map(each).collect()
    };
    let mut transaction = Transaction::new(Table::new(Family::V4, example::TABLE));
    if let Some(before) = before {
        transaction
            .flush_chain(format!("c{before}"))
            .delete_chain(format!("c{before}"))
            .delete_elements(numbers, elements(before))
            .delete_elements(copies, elements(before));
    } else {
        transaction.add_table().add_set(numbers).add_set(copies);
    }
    let chain = format!("c{number}");
    let mark = Statement::SetMark(MarkValue::Or(number));
    transaction
        .add_elements(numbers, elements(number))
        .add_chain(Chain::new(&chain))
        .add_rule(&chain, Rule::new([mark]))
        .add_elements(copies, elements(number));
    transaction
}

#[test]
fn a_table_that_another_process_keeps_changing_is_read_as_of_one_moment() {
    in_namespace(|| {
        let pair = Type::Named(vec![DataType::Mark, DataType::Mark]);
        let numbers = Arc::new(Set::new("numbers", pair.clone()));
        let copies = Arc::new(Set::new("copies", pair));
        let end = Arc::new(AtomicBool::new(false));
        let (begun, begins) = mpsc::channel();
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let other = thread::spawn({
            let (numbers, copies, end) = (numbers.clone(), copies.clone(), end.clone());
            move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                let mut rules = Rules::open().unwrap();
                rules.run(&state(0, None, &numbers, &copies), None).unwrap();
                begun.send(()).unwrap();
                let mut number = 0;
                while !end.load(Ordering::Relaxed) {
                    // Without a pause now and then no reader would ever finish.
                    if number % 4 == 0 {
                        thread::yield_now();
                        rules.generation().unwrap();
                        rules
                            .elements(&Table::new(Family::V4, example::TABLE), &numbers)
                            .ok();
                        rules.contents(Family::V4, example::TABLE).unwrap();
                    }
                    let next = state(number + 1, Some(number), &numbers, &copies);
                    rules.run(&next, None).unwrap();
                    number += 1;
                }
                number
            }
        });
        begins.recv().unwrap();
        let mut rules = Rules::open().unwrap();
        let (mut read, mut seen) = (0, Vec::new());
        while read < 40 {
            let found = match rules.contents(Family::V4, example::TABLE) {
                // Attempts are limited: the caller may ask again.
                Err(error) if error.is_passing() => continue,
                found => found.unwrap().unwrap(),
            };
            read += 1;
            let [chain] = &found.chains[..] else {
                panic!("{:?}", found.chains)
            };
            let number: u32 = chain.chain.name[1..].parse().unwrap();
            let mark = Statement::SetMark(MarkValue::Or(number));
            assert!(found.rules[0].is(&Rule::new([mark])) && found.rules.len() == 1);
            assert_eq!(found.sets.len(), 2);
            for (set, elements) in &found.sets {
                let key = number.to_ne_bytes();
                let same = elements.iter().all(|e| e.key.starts_with(&key));
                assert!(same && elements.len() == 300, "{number}: {}", set.name);
            }
            seen.push(number);
        }
        end.store(true, Ordering::Relaxed);
        let made = other.join().unwrap();
        seen.dedup();
        assert!(made > 0 && seen.len() > 1, "{made} changes, {seen:?}");
    });
}
