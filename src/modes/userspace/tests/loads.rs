//! Loads of endpoints, including removed ones.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[test]
fn an_endpoint_that_comes_back_has_the_load_of_its_connections() {
    let (a, b) = (backend(echo), backend(echo));
    let mut proxy = Proxy::new(Protocol::Tcp, &[]);
    let reroute = |proxy: &mut Proxy, targets: &[SocketAddr]| {
        let mut plan = plan(Protocol::Tcp, targets);
        plan.scheduler = SchedulerName::Lc;
        proxy.listeners.reroute(&plan, None);
    };
    let active = |proxy: &Proxy, at: SocketAddr| {
        let loads = proxy.listeners.group().routing().loads();
        loads.get(&at).map(|load| load.active.load(Relaxed))
    };
    let open = |proxy: &Proxy| {
        let mut client = proxy.connect();
        client.write_all(b"?").unwrap();
        client.read_exact(&mut [0]).unwrap();
        client
    };
    reroute(&mut proxy, &[a]);
    let mut before: Vec<_> = (0..4).map(|_| open(&proxy)).collect();
    reroute(&mut proxy, &[b]);
    reroute(&mut proxy, &[]);
    assert_eq!((active(&proxy, a), active(&proxy, b)), (Some(4), None));
    before.pop();
    until("an end", || active(&proxy, a) == Some(3));
    reroute(&mut proxy, &[a, b]);
    let _after: Vec<_> = (0..3).map(|_| open(&proxy)).collect();
    assert_eq!((active(&proxy, a), active(&proxy, b)), (Some(3), Some(3)));
    reroute(&mut proxy, &[b]);
    before.clear();
    until("all ends", || active(&proxy, a).is_none());
}
