use super::*;
use crate::config::DetectLocal;

fn service(name: &str) -> ServiceName {
    ServiceName {
        namespace: "default".into(),
        name: name.into(),
    }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn take(usage: &Usage, last: u8) {
    assert!(usage.take(None) && usage.add(ip(last), Protocol::Tcp, |_, _| true));
}

#[test]
fn a_word_names_limits() {
    let most = |word| {
        ConnectionLimits::per_client(word).map(|l| (l.client.map(NonZeroU32::get), l.leaves_room))
    };
    assert_eq!(most("auto"), Ok((None, true)));
    assert_eq!(most("none"), Ok((None, false)));
    assert_eq!(most("100"), Ok((Some(100), true)));
    for word in ["0", "-1", "", "many"] {
        assert!(most(word).is_err(), "{word:?}");
    }
    let asked = Preferences {
        max_connections: NonZeroU32::new(7),
        max_connections_per_client: NonZeroU32::new(3),
        ..Preferences::default()
    };
    let named = ConnectionLimits::per_client("100")
        .expect("limits")
        .of_service(&asked);
    let limits = (named.service, named.client);
    assert_eq!(limits, (NonZeroU32::new(7), NonZeroU32::new(3)));
    assert_eq!(named.of_service(&Preferences::default()), named);
}

#[test]
fn what_is_counted_goes_with_who_has_it() {
    let shown = IntGauge::new("clients", "clients").expect("a gauge");
    let usages = Usages::new(shown.clone());
    let (web, same) = (usages.of(&service("web")), usages.of(&service("web")));
    assert!(Arc::ptr_eq(&web, &same));
    let other = usages.of(&service("other"));
    for (usage, last) in [(&web, 1), (&web, 1), (&web, 2), (&other, 1)] {
        take(usage, last);
    }
    assert_eq!((web.all(), other.all(), shown.get()), (3, 1, 3));
    assert!(web.take(None));
    let has_udp = web.add(ip(1), Protocol::Udp, |has, together| {
        assert_eq!((has.all(), has.udp(), has.descriptors()), (2, 0, 4));
        assert_eq!(together.descriptors(), 6);
        true
    });
    assert!(web.take(None));
    let has_more = web.add(ip(1), Protocol::Tcp, |has, _| {
        assert_eq!((has.all(), has.udp(), has.descriptors()), (3, 1, 5));
        false
    });
    assert!(has_udp && !has_more);
    web.give_back(None, Protocol::Tcp);
    assert_eq!(web.all(), 4);
    web.give_back(Some(ip(1)), Protocol::Udp);
    for (usage, last) in [(&web, 1), (&web, 1), (&web, 2), (&other, 1)] {
        usage.give_back(Some(ip(last)), Protocol::Tcp);
    }
    assert_eq!((web.all(), other.all(), shown.get()), (0, 0, 0));
    assert!(web.clients.lock().has.is_empty());
    assert_eq!(web.clients.lock().together, Has::default());
}

#[test]
fn a_service_has_no_more_than_it_may() {
    let usages = Usages::new(IntGauge::new("clients", "clients").expect("a gauge"));
    let web = usages.of(&service("web"));
    let two = NonZeroU32::new(2);
    assert!(web.take(two) && web.take(two) && !web.take(two));
    assert!(web.take(None));
    for _ in 0..2 {
        web.give_back(None, Protocol::Tcp);
    }
    assert!(web.take(two) && !web.take(two));
}

#[test]
fn services_that_are_gone_are_forgotten() {
    let usages = Usages::new(IntGauge::new("clients", "clients").expect("a gauge"));
    for number in 0..10_000 {
        usages.of(&service(&number.to_string()));
    }
    assert!(usages.services.lock().len() < 100);
}

/// Clients that take as much as they may of 20,000.
#[test]
fn several_clients_leave_room_to_another_one() {
    const TOTAL: usize = 20_000;
    for (clients, each) in [(1, 12_000), (2, 6_668), (10, 1_468), (40, 376)] {
        let mut has = vec![0; clients];
        let mut took = true;
        while took {
            took = false;
            for n in 0..clients {
                let together: usize = has.iter().sum();
                let room = Room {
                    free: TOTAL - together,
                    total: TOTAL,
                };
                if !room.is_for_other_clients(has[n], together) {
                    has[n] += PER_CONNECTION as usize;
                    took = true;
                }
                assert!(!room.is_for_other_clients(0, together));
            }
        }
        let (least, most) = (has.iter().min(), has.iter().max());
        let near = |n: Option<&usize>| n.is_some_and(|n| n.abs_diff(each) <= 8);
        assert!(near(least) && near(most), "{clients}: {least:?}, {most:?}");
        let left = TOTAL - has.iter().sum::<usize>();
        assert!(left > TOTAL / 4 + 80, "{clients}: {left} left");
    }
}

#[test]
fn where_others_have_nearly_all_a_client_of_a_small_service_has_its_part() {
    let room = Room {
        free: 3_000,
        total: 20_000,
    };
    // A client may have half of its Service's share.
    assert!(!room.is_for_other_clients(4_498, 4_498));
    assert!(room.is_for_other_clients(4_502, 4_502));
    // A large Service has nothing left, and each client of it may only have little.
    assert!(!room.is_for_other_clients(310, 10_000));
    assert!(room.is_for_other_clients(314, 10_000));
    let few = Room { free: 0, total: 10 };
    assert!(!few.is_for_other_clients(LEAST - 1, 10));
    assert!(few.is_for_other_clients(LEAST, 10));
}

/// Services that take as much as they may of 20,000.
#[test]
fn several_services_leave_room_to_another_one() {
    const TOTAL: usize = 20_000;
    let free = |has: &[usize]| TOTAL - has.iter().sum::<usize>();
    let take = |has: &mut [usize], n: usize| {
        let room = Room {
            free: free(has),
            total: TOTAL,
        };
        let takes = !room.is_for_others(has[n]);
        has[n] += usize::from(takes) * PER_CONNECTION as usize;
        takes
    };
    for services in [1, 2, 6, 20] {
        let mut has = vec![0; services];
        while (0..services).filter(|n| take(&mut has, *n)).count() > 0 {}
        let each = 3 * TOTAL / (1 + 3 * services);
        let near = |has: &usize| has.abs_diff(each) <= 8;
        assert!(has.iter().all(near), "{services}: {has:?}, not {each}");
        assert!(free(&has).abs_diff(each / 3) <= 8 * services);
    }
    // Later Services get three quarters of what earlier ones left.
    let mut has = [0; 4];
    for n in 0..has.len() {
        while take(&mut has, n) {}
    }
    for (has, expected) in has.into_iter().zip([15_000, 3_750, 938, 234]) {
        assert!(has.abs_diff(expected) <= 4, "{has}, not {expected}");
    }
}

#[test]
fn a_client_of_ipv6_is_a_network_unless_it_is_a_pod() {
    let pods = DetectLocal::ClusterCidr(vec!["fd00:244::/64".parse().expect("a network")]);
    let known = ClusterLocal::new(pods);
    for (from, expected) in [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2:3:4", "2001:db8::"),
        ("fd00:244::5", "fd00:244::5"),
        ("::1", "::1"),
    ] {
        let flow = Flow {
            client: (from.parse::<IpAddr>().expect("an address"), 1).into(),
            destination: IpAddr::from([10, 96, 0, 1]),
        };
        let expected: IpAddr = expected.parse().expect("an address");
        assert_eq!(client(&flow, &known), expected, "{from}");
    }
}
