//! Which flows end, and when.

use tokio::time::advance;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(30);

fn remote(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, last], 53))
}

fn service(number: u8) -> Arc<str> {
    format!("service {number}").into()
}

fn begin_of(flows: &Arc<Flows>, of: u8, to: u8) -> Place {
    flows.begin(&service(of), remote(to)).0.expect("a place")
}

fn begin(flows: &Arc<Flows>, to: u8) -> Place {
    begin_of(flows, to, to)
}

fn ends(place: &Place) -> bool {
    place.activity.ends.load(Relaxed)
}

#[tokio::test(start_paused = true)]
async fn an_eighth_or_thousands_of_flows_are_many() {
    for (most, few) in [(80, 10), (1 << 20, FEW)] {
        let flows = Flows::new(most, most, TIMEOUT);
        let mut places: Vec<_> = (0..few).map(|_| begin(&flows, 1)).collect();
        assert!(!flows.are_many());
        places.push(begin(&flows, 1));
        assert!(flows.are_many());
    }
}

#[tokio::test(start_paused = true)]
async fn fewer_flows_leave_the_large_ones_known() {
    let flows = Flows::new(40, 100, TIMEOUT);
    let mut places: Vec<_> = (0..8).map(|_| begin_of(&flows, 1, 1)).collect();
    let large = || flows.state.lock().large.len();
    assert_eq!(large(), 0, "a quarter of 40 are 10");
    flows.set_most(20);
    places.push(begin_of(&flows, 1, 1));
    places.push(begin_of(&flows, 1, 1));
    assert_eq!((large(), flows.room(&service(1)).0.free), (1, 10));
    flows.set_most(80);
    places.pop();
    assert_eq!(large(), 0);
    flows.set_most(10);
    let _last = begin_of(&flows, 2, 2);
    assert!(flows.begin(&service(2), remote(2)).0.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_more_flows_the_sooner_the_most_idle_ends() {
    let flows = Flows::new(100, 1000, TIMEOUT);
    let mut places: Vec<Place> = Vec::new();
    for n in 0..75 {
        places.push(begin_of(&flows, n % 5, 1));
        advance(Duration::from_millis(10)).await;
    }
    // Three quarters are taken: half the time.
    advance(TIMEOUT / 2 - Duration::from_secs(2)).await;
    places[0].used();
    places.push(begin(&flows, 2));
    assert!(!places.iter().any(ends), "none was idle for so long");
    advance(Duration::from_secs(2)).await;
    let (place, ended) = flows.begin(&service(2), remote(2));
    places.push(place.expect("a place"));
    // The first one was used.
    assert_eq!(ended, EXAMINED);
    let (others, rest) = places[1..].split_at(EXAMINED);
    assert!(!ends(&places[0]) && others.iter().all(ends) && !rest.iter().any(ends));
}

#[tokio::test(start_paused = true)]
async fn there_are_never_too_many_and_none_that_waits_for_its_answer_ends() {
    for (most, each) in [(10, 100), (100, 10)] {
        let flows = Flows::new(most, each, TIMEOUT);
        let mut places: Vec<Place> = (0..10).map(|n| begin_of(&flows, n, 1)).collect();
        let full = [Full::All, Full::Endpoint][usize::from(most > each)];
        let another = || flows.begin(&service(10), remote(1)).0;
        assert_eq!(another().err(), Some(full));
        if full == Full::All {
            assert!(flows.begin(&service(1), remote(9)).0.is_err());
            let is_known = flows
                .state
                .lock()
                .queues
                .contains_key(&Of::Endpoint(remote(9)));
            assert!(!is_known, "nothing is kept of what did not begin");
        }
        assert_eq!(flows.make_room(remote(1)), 0);
        assert!(!places.iter().any(ends));
        advance(SHORTEST * 2).await;
        assert!(another().is_err(), "the ended are still there");
        places.retain(|place| !ends(place));
        assert_eq!(places.len(), 10 - EXAMINED);
        begin(&flows, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_ends_for_each_new_client_although_all_were_used_since_they_began() {
    let flows = Flows::new(40, 100, TIMEOUT);
    // Ended flows do not count among the examined ones.
    drop([(); 2 * EXAMINED].map(|()| begin(&flows, 1)));
    let mut places: Vec<Place> = (0..40).map(|n| begin_of(&flows, n, 1)).collect();
    for place in places.iter().rev() {
        advance(Duration::from_millis(1)).await;
        place.used();
    }
    advance(SHORTEST * 2).await;
    let (refused, ended) = flows.begin(&service(1), remote(2));
    assert_eq!((refused.err(), ended), (Some(Full::All), 1));
    let longest = places.iter().position(ends);
    assert_eq!(longest, Some(EXAMINED - 1), "the one that was used first");
    places.retain(|place| !ends(place));
    begin(&flows, 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_with_many_flows_leaves_places_and_time_to_others() {
    let flows = Flows::new(100, 1000, TIMEOUT);
    let quiet: Vec<Place> = (0..10).map(|_| begin(&flows, 1)).collect();
    advance(TIMEOUT / 2).await;
    // The Service is large now, so that none of its own flows may be ended.
    let mut flood: Vec<Place> = Vec::new();
    let full = loop {
        match flows.begin(&service(2), remote(2)) {
            (Ok(place), ended) => {
                assert_eq!(ended, 0);
                flood.push(place);
            }
            (Err(full), _) => break full,
        }
    };
    assert_eq!((full, flood.len()), (Full::All, 65));
    // The Service can replace its own flows as soon as any of them may end.
    advance(SHORTEST * 2).await;
    let (refused, ended) = flows.begin(&service(2), remote(2));
    assert_eq!((refused.err(), ended), (Some(Full::All), EXAMINED));
    flood.retain(|place| !ends(place));
    flood.push(begin(&flows, 2));
    // Others get the last quarter, and idle flows of the large Service are ended for them, however
    // long others have been idle.
    advance(TIMEOUT / 3).await;
    let mut ended = 0;
    for _ in 0..20 {
        let (place, more) = flows.begin(&service(3), remote(3));
        std::mem::forget(place.expect("a place"));
        ended += more;
    }
    assert!(ended > 20 && flood.iter().filter(|place| ends(place)).count() == ended);
    assert!(!quiet.iter().any(ends));
    drop(flood);
    assert!(flows.state.lock().large.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_goes_with_the_flows() {
    let flows = Flows::new(10_000, 10_000, TIMEOUT);
    for n in 0..1000_u32 {
        drop(begin(&flows, n as u8));
    }
    assert!(flows.state.lock().queues.is_empty());
    let _other = begin(&flows, 1);
    for n in 0..1000_u32 {
        drop(begin(&flows, n as u8));
    }
    let state = flows.state.lock();
    assert!(state.queues[&Of::All].entries.len() < 100 && state.queues.len() == 3);
}

#[tokio::test(start_paused = true)]
async fn a_flow_may_have_been_used_before_this_process_began() {
    let flows = Flows::new(40, 100, TIMEOUT);
    let place = begin(&flows, 1);
    place.was_used(TIMEOUT);
    assert_eq!(place.idle(), TIMEOUT);
    advance(Duration::from_secs(1)).await;
    assert_eq!(place.idle(), TIMEOUT + Duration::from_secs(1));
    place.used();
    assert_eq!(place.idle(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_flows_to_one_endpoint_end_together() {
    let flows = Flows::new(80, 80, TIMEOUT);
    let places = [1, 1, 2].map(|to| begin(&flows, to));
    flows.end_to(remote(1));
    assert_eq!(places.each_ref().map(ends), [true, true, false]);
}
