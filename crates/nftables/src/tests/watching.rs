//! Changes by others are noticed, and ours are not.

use std::collections::BTreeSet;

use net::{Family, PerFamily};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testing::in_namespace;

use super::{super::*, example, sh};

fn waits(watcher: &Watcher) -> bool {
    let fd = std::os::fd::AsFd::as_fd(watcher);
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn what_others_change_is_noticed_and_what_we_do_is_not() {
    in_namespace(|| {
        let (v4, v6) = (Family::V4, Family::V6);
        let mut rules = Rules::open().unwrap();
        let mut watcher = Watcher::open(&[rules.port().unwrap()]).unwrap();
        for family in Family::ALL {
            rules.run(&example::whole(family), None).unwrap();
        }
        assert!(!waits(&watcher));
        assert_eq!(watcher.changes().unwrap(), Changes::default());

        // The kernel notifies of a change before the program that made it ends.
        sh("nft add table ip others; nft add chain ip others c");
        assert!(waits(&watcher));
        let changes = watcher.changes().unwrap();
        let others = BTreeSet::from([(v4, "others".to_owned())]);
        assert_eq!(
            (&changes.tables, changes.missed),
            (&others, PerFamily::default())
        );
        assert_eq!(changes.generation, Some(rules.generation().unwrap()));
        assert!(!changes.concern(v4, example::TABLE));

        let element = "10.96.0.9 . tcp . 80 : drop";
        for (change, family) in [
            (
                format!(
                    "nft add element ip {} services '{{ {element} }}'",
                    example::TABLE
                ),
                v4,
            ),
            (
                format!("nft flush chain ip6 {} services", example::TABLE),
                v6,
            ),
            (format!("nft delete table ip {}", example::TABLE), v4),
            ("nft flush ruleset".to_owned(), v6),
        ] {
            sh(&change);
            let changes = watcher.changes().unwrap();
            assert!(
                changes.concern(family, example::TABLE),
                "{change}: {changes:?}"
            );
        }
        assert_eq!(watcher.changes().unwrap(), Changes::default());
    });
}

#[test]
fn what_others_change_while_nothing_is_watched_is_noticed() {
    in_namespace(|| {
        let mut rules = Rules::open().unwrap();
        let mut watcher = Watcher::open(&[]).unwrap();
        let table = example::whole(Family::V4);
        let generation = rules.generation().unwrap();
        watcher
            .run_unwatched(&mut rules, &table, generation)
            .unwrap();
        assert_eq!(watcher.changes().unwrap(), Changes::default());

        let another = example::whole(Family::V6);
        let stale = watcher.run_unwatched(&mut rules, &another, generation);
        assert!(matches!(stale, Err(Failure::Changed)), "{stale:?}");
        let missed = watcher.changes().unwrap().missed;
        assert!(missed.v4 && !missed.v6, "tables of the other family");
        // The watcher is subscribed again, even after a failure.
        sh("nft add table ip others");
        assert!(watcher.changes().unwrap().concern(Family::V4, "others"));
    });
}

#[test]
fn more_than_the_socket_holds_counts_as_a_change_of_everything() {
    in_namespace(|| {
        let mut watcher = Watcher::open(&[]).unwrap();
        let mut rules = Rules::open().unwrap();
        let mut transaction = Transaction::new(Table::new(Family::V4, example::TABLE));
        transaction.add_table();
        for number in 0..20_000 {
            transaction.add_chain(Chain::new(format!("{number:0>200}")));
        }
        rules.run(&transaction, None).unwrap();
        let changes = watcher.changes().unwrap();
        assert!(changes.missed.v4 && changes.concern(Family::V6, "anything"));
        sh("nft add table ip later");
        assert!(!watcher.changes().unwrap().missed.v6);
    });
}
