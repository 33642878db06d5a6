//! Costs and gains of `minSyncPeriod`, in a storm of changes.

use std::time::Instant;

use crate::{
    large::Size, modes::MODES, process::Tripod, server::Server, tcp_server::TcpServer,
    tls::Authority,
};

/// Number of changes of EndpointSlices, which the server sends as fast as it can.
const EVENTS: u32 = 20_000;

/// Prints them for redirect capture, in the namespace of this thread.
pub fn measure() {
    let mode = MODES.iter().find(|mode| mode.name == "redirect");
    let mode = mode.expect("it is a mode");
    let size = Size::new(5000);
    println!(
        "\nShortest time between syncs, {}: {} Services",
        mode.title, size.services
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for interval in ["1ms", "10ms", "100ms", "1s"] {
        let server = Server::new();
        let authority = Authority::new();
        let opened = TcpServer::open(server.clone(), "intervals", &authority, false);
        let tcp = runtime.block_on(opened);
        server.change(|cluster| size.fill(cluster));
        let at_least = format!("--iptables-min-sync-period={interval}");
        let flags: Vec<&str> = mode.flags.iter().copied().chain([&*at_least]).collect();
        let tripod = Tripod::of_cluster(&flags, &tcp.file("kubeconfig"));
        tripod.reaches_missing(1.0);
        let (begun, before) = (Instant::now(), tripod.busy());
        server.change(|cluster| size.storm(cluster, EVENTS));
        tripod.reaches_missing(0.0);
        let spent = tripod.busy().since(before).own.as_secs_f64();
        let rate = f64::from(EVENTS) / spent;
        let took = begun.elapsed().as_secs_f64();
        println!("  {interval:>6}   {rate:6.0} changes a second of one core   {took:.2} s in all");
    }
}
