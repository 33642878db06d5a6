//! Health and metrics, and what happens while syncs fail.

use super::*;

#[tokio::test(start_paused = true)]
async fn health_ends_when_syncs_stop_succeeding_and_comes_back() {
    let bench = Bench::new();
    bench.send(Vec::new()).await;
    let families = bench.health.snapshot().families;
    assert!(
        families
            .iter()
            .all(|(_, health)| health.last_updated.is_some())
    );
    assert_eq!(families.len(), 2);

    // No object changes: the full sync every 30 s is what fails.
    bench.behaviour.lock().unwrap().fails = true;
    pass(30_000 * MS).await;
    for _ in 0..59 {
        pass(1_000 * MS).await;
        assert!(bench.health.snapshot().healthy);
    }
    pass(1_000 * MS).await;
    assert!(!bench.health.snapshot().healthy);
    bench.behaviour.lock().unwrap().fails = false;
    for _ in 0..30 {
        pass(1_000 * MS).await;
    }
    assert!(bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_hangs_is_no_health() {
    let bench = Bench::new();
    bench.send(Vec::new()).await;
    bench.behaviour.lock().unwrap().takes = 1_000_000 * MS;
    pass(30_000 * MS).await;
    pass(59_000 * MS).await;
    assert!(bench.health.snapshot().healthy);
    pass(1_000 * MS).await;
    assert!(!bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn it_is_known_how_far_a_sync_is_until_it_ends() {
    let bench = Bench::new();
    let known = |family| {
        let families = bench.status.families();
        let position = families.get(family).position;
        position.map(|position| (position.done, position.planned))
    };
    bench.behaviour.lock().unwrap().takes = 1_000 * MS;
    assert_eq!(known(Family::V4), None);
    bench.send(Vec::new()).await;
    assert_eq!(known(Family::V4), Some((3, 7)));
    assert_eq!(known(Family::V6), Some((3, 7)));
    pass(1_000 * MS).await;
    assert_eq!(known(Family::V4), None, "none is under way");
}

#[tokio::test(start_paused = true)]
async fn syncs_are_counted_by_family_and_kind() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    pass(1_000 * MS).await;
    let service = bench.service("web", "10.0.0.1");
    let endpoint = SocketAddr::new(IpAddr::from([10, 1, 0, 1]), 8080);
    let slice = bench.slice("web", endpoint);
    bench.send(vec![service, slice]).await;
    for (name, v4, v6) in [
        ("kubeproxy_sync_proxy_rules_duration_seconds", 2.0, 1.0),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", 1.0, 1.0),
        (
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            1.0,
            0.0,
        ),
    ] {
        assert_eq!(
            bench.value(name, &[("ip_family", "IPv4")]),
            Some(v4),
            "{name}"
        );
        assert_eq!(
            bench.value(name, &[("ip_family", "IPv6")]),
            Some(v6),
            "{name}"
        );
    }
    let endpoints = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
    assert_eq!(bench.value(endpoints, &[]), Some(1.0));
    // Its internal policy is Local, and its endpoint is elsewhere.
    let none = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let internal = [("ip_family", "IPv4"), ("traffic_policy", "internal")];
    assert_eq!(bench.value(none, &internal), Some(1.0));
    let gone = Event::Gone(ObjectName::Service(service_name("ns/web")));
    bench.send(vec![gone]).await;
    pass(10 * MS).await;
    assert_eq!(bench.value(none, &internal), Some(0.0));
}

/// Times, in milliseconds, at which a sync of `family` was requested.
fn times(asked: &[SyncCall], family: Family) -> Vec<u128> {
    let of_family = asked.iter().filter(|asked| asked.family == family);
    of_family.map(|asked| asked.at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_family_that_fails_is_retried_with_growing_pauses_and_delays_nothing_of_the_other() {
    let mut bench = Bench::new();
    bench.behaviour.lock().unwrap().ipv6_fails = true;
    bench.send(Vec::new()).await;
    pass(100 * MS).await;
    let service = bench.dual_stack("dns");
    bench.send(vec![service]).await;
    let followed = std::mem::take(&mut *bench.followed.lock().unwrap());
    let dns = || names(&["dns"]);
    assert_eq!(followed, [(Family::V4, names(&[])), (Family::V4, dns())]);
    let last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
    assert!(bench.value(last, &[("ip_family", "IPv4")]) > Some(0.0));
    assert_eq!(bench.value(last, &[("ip_family", "IPv6")]), None);
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending";
    assert_eq!(bench.value(pending, &[]), Some(1.0));

    for _ in 0..75 {
        pass(1_000 * MS).await;
    }
    let health = bench.health.snapshot();
    assert!(health.is_healthy(Family::V4) && !health.is_healthy(Family::V6));
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    // Later pauses are as long as the sync period.
    assert_eq!(
        times(&asked, Family::V6)[..5],
        [0, 1_100, 3_100, 7_100, 15_100]
    );
    let retried = asked.iter().filter(|asked| asked.family == Family::V6);
    assert!(retried.skip(1).all(|asked| asked.retry));
    let in_time = times(&asked, Family::V4).into_iter();
    let in_time: Vec<_> = in_time.filter(|at| *at < 30_000).collect();
    assert_eq!(in_time, [0, 100], "nothing of it failed");

    bench.behaviour.lock().unwrap().ipv6_fails = false;
    bench.followed.lock().unwrap().clear();
    pass(30_000 * MS).await;
    let followed = bench.followed.lock().unwrap().clone();
    assert!(followed.contains(&(Family::V6, dns())), "{followed:?}");
    assert_eq!(bench.value(pending, &[]), Some(0.0));
    assert!(bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn a_family_that_the_node_cannot_serve_is_not_updated() {
    let mut bench = Bench::new();
    bench.behaviour.lock().unwrap().ipv6_is_unserved = true;
    let service = bench.dual_stack("dns");
    bench.send(vec![service]).await;
    let health = bench.health.snapshot();
    assert!(health.healthy && health.is_healthy(Family::V4));
    assert!(!health.is_healthy(Family::V6));
    let only = |v4, v6| health.is_healthy_for(PerFamily { v4, v6 });
    assert!(only(true, true) && only(true, false) && !only(false, true));
    let last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
    assert!(bench.value(last, &[("ip_family", "IPv4")]) > Some(0.0));
    assert_eq!(bench.value(last, &[("ip_family", "IPv6")]), None);
    // Followers are called for both families.
    assert_eq!(bench.followed.lock().unwrap().len(), 2);
    for _ in 0..100 {
        pass(1_000 * MS).await;
    }
    assert!(bench.health.snapshot().healthy);
    assert_eq!(bench.health.waiting().v6, Duration::ZERO);

    bench.behaviour.lock().unwrap().ipv6_is_unserved = false;
    for _ in 0..31 {
        pass(1_000 * MS).await;
    }
    assert!(bench.health.snapshot().is_healthy(Family::V6));
}

#[test]
fn a_sync_that_is_tried_again_for_long_is_logged_once_and_when_it_is_in_force() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let fails_for_long = async {
        let bench = Bench::new();
        bench.behaviour.lock().unwrap().ipv6_fails = true;
        bench.send(Vec::new()).await;
        for _ in 0..20 {
            pass(1_000 * MS).await;
        }
        bench.behaviour.lock().unwrap().ipv6_fails = false;
        for _ in 0..40 {
            pass(1_000 * MS).await;
        }
    };
    let log = crate::log::lines(0, || runtime.block_on(fails_for_long));
    let [failed, over] = &log[..] else {
        panic!("{log:?}");
    };
    assert!(failed.contains("ERROR sync of IPv6 failed, will be tried again: "));
    let words = "INFO syncs of IPv6 succeed again, 30s after the first of 5 failures";
    assert!(over.ends_with(words), "{over}");
}

#[tokio::test(start_paused = true)]
async fn stale_flows_of_one_family_do_not_wait_for_the_other_and_are_bounded() {
    let mut bench = Bench::new();
    let service = bench.dual_stack("dns");
    bench.send(vec![service]).await;
    pass(100 * MS).await;
    bench.behaviour.lock().unwrap().ipv6_fails = true;
    let endpoints = 11_000_u16;
    for n in 0..endpoints {
        let [high, low] = n.to_be_bytes();
        let v4 = SocketAddr::from(([10, 1, high, low], 53));
        let v6 = SocketAddr::from(([0xfd01, 0, 0, 0, 0, 0, 0, n], 53));
        let v4 = bench.slice_of("UDP", "dns", v4);
        let v6 = bench.slice_of("UDP", "dns", v6);
        bench.send(vec![v4, v6]).await;
        pass(10 * MS).await;
    }
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    let most = |family| {
        let of_family = asked.iter().filter(|asked| asked.family == family);
        of_family.map(|asked| asked.stale_endpoints).max()
    };
    assert_eq!(most(Family::V4), Some(1), "each is cleaned at once");
    assert!(most(Family::V6) > Some(5_000), "they wait");
    assert!(most(Family::V6) < Some(usize::from(endpoints) - 100));
}

#[tokio::test(start_paused = true)]
async fn what_newly_fails_does_not_wait_for_what_has_failed_for_long() {
    let bench = Bench::new();
    let unfinished = |what: &[&str]| {
        bench.behaviour.lock().unwrap().unfinished = names(what);
    };
    unfinished(&["chain A is not removed"]);
    bench.send(Vec::new()).await;
    for _ in 0..20 {
        pass(1_000 * MS).await;
    }
    bench.asked.lock().unwrap().clear();
    unfinished(&["chain A is not removed", "chain B is not removed"]);
    bench.addresses.send(()).await.unwrap();
    settle().await;
    for _ in 0..10 {
        pass(1_000 * MS).await;
    }
    unfinished(&[]);
    for _ in 0..19 {
        pass(1_000 * MS).await;
    }
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    let times = times(&asked, Family::V4);
    assert_eq!(times, [20_000, 21_000, 23_000, 27_000, 35_000]);
}

#[tokio::test(start_paused = true)]
async fn syncs_wait_for_a_comparison_no_longer_than_it_may_take() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    bench.behaviour.lock().unwrap().comparisons_hang = true;
    let questions = bench.questions.clone();
    let answer = tokio::spawn(async move { questions.compare().await });
    settle().await;
    bench.asked.lock().unwrap().clear();
    let service = bench.service("web", "10.0.0.1");
    bench.send(vec![service]).await;
    pass(14_900 * MS).await;
    assert!(bench.asked.lock().unwrap().is_empty(), "it waits");
    pass(100 * MS).await;
    assert_eq!(times(&bench.asked.lock().unwrap(), Family::V4), [15_000]);
    let compared = answer.await.expect("it ends").expect("an answer");
    for (family, found) in compared {
        let why = found.expect("it is served").expect_err("it is unknown");
        let words = "could not be compared within 15s";
        assert!(why.to_string().contains(words), "{family}: {why}");
    }
}
