//! The first start, a start with everything in place, and a full sync.

use std::time::{Duration, Instant};

use super::{Shape, folder::Folder, limit, row::Row, shape::Called, written::Written};
use crate::{
    figures::decimal, large::BACKENDS, modes::Mode, node::call_within, prober::Pair,
    process::Tripod, run,
};

/// Pause between two looks at the metrics.
const EVERY: Duration = Duration::from_millis(5);
/// Patience with a Service that may not be served yet.
const SOON: Duration = Duration::from_millis(50);

const FULL_SYNCS: &str =
    "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
const FULL_SYNC_TIME: &str =
    "kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"}";

/// Waits until a condition holds. Returns how long that took, or `None` after the limit.
pub fn wait_for(begun: Instant, mut condition: impl FnMut() -> bool) -> Option<Duration> {
    let limit = limit();
    loop {
        if condition() {
            return Some(begun.elapsed());
        }
        if begun.elapsed() > limit {
            return None;
        }
        std::thread::sleep(EVERY);
    }
}

/// The IP families of a shape, as metrics name them.
pub fn families(shape: Shape) -> &'static [&'static str] {
    if shape.is_dual() {
        &["IPv4", "IPv6"]
    } else {
        &["IPv4"]
    }
}

/// Measures in the namespace of this thread. Returns whether all was applied within the limit.
pub fn measure(mode: &Mode, shape: Shape, folder: &Folder, row: &mut Row) -> bool {
    let Some(tripod) = first(mode, shape, folder, row) else {
        row.put();
        return false;
    };
    row.put();
    let tripod = restart(mode, shape, folder, tripod, row);
    row.put();
    if let Some(tripod) = &tripod {
        full_sync(mode, tripod, row);
        row.put();
    }
    if let Some(tripod) = tripod {
        tripod.end();
    }
    true
}

fn first(mode: &Mode, shape: Shape, folder: &Folder, row: &mut Row) -> Option<Tripod> {
    // No Service is there that could be called.
    let calls = Pair::start(None, BACKENDS[0]);
    let begun = Instant::now();
    let tripod = Tripod::next(mode.flags, &folder.0);
    let took = wait_for(begun, || tripod.has_synced(families(shape)));
    let waits = calls.stop();
    let Some(took) = took else {
        row.set(
            "first_sync_s",
            format!("not within {} s", limit().as_secs()),
        );
        return None;
    };
    row.seconds("first_sync_s", took);
    let alone = tripod.metric(FULL_SYNC_TIME).unwrap_or(0.0);
    row.set("first_sync_alone_s", decimal(alone, 3));
    row.set("first_peak_mib", decimal(tripod.memory()[1], 0));
    row.milliseconds("first_direct_ms", waits.direct.longest);
    let failed = tripod.metric("tripod_service_ports_failed").unwrap_or(0.0);
    row.set("failed", decimal(failed, 0));
    if call_within(Called::Steady.address(), SOON * 20).is_none() {
        println!("  the Service that is called does not answer");
    }
    Some(tripod)
}

/// Replaces the process as an upgrade does: one after the other where the kernel forwards, side by
/// side where the process does.
fn restart(
    mode: &Mode,
    shape: Shape,
    folder: &Folder,
    mut old: Tripod,
    row: &mut Row,
) -> Option<Tripod> {
    let is_relay = mode.flags.contains(&"--proxy-mode=userspace");
    let predecessor = old.started().unwrap_or(0.0);
    let before = Written::so_far();
    let calls = Pair::start(Some(Called::Steady.address()), BACKENDS[0]);
    let old = if is_relay {
        Some(&mut old)
    } else {
        old.end();
        None
    };
    let begun = Instant::now();
    let new = Tripod::next(mode.flags, &folder.0);
    let serves = || new.answers_metrics(predecessor) && new.has_synced(families(shape));
    let took = wait_for(begun, serves);
    if let Some(old) = old {
        // As a DaemonSet does when the pod that replaces it is ready.
        old.terminate();
        wait_for(begun, || old.has_ended());
    }
    let waits = calls.stop();
    row.waits(
        [
            "restart_wait_ms",
            "restart_direct_ms",
            "restart_calls_failed",
        ],
        waits,
    );
    let Some(took) = took else {
        row.set("restart_s", format!("not within {} s", limit().as_secs()));
        return None;
    };
    row.seconds("restart_s", took);
    row.set("restart_written", before.since().unwrap_or_default());
    Some(new)
}

/// Makes a change that another program could make, and waits until Tripod has compared everything.
/// In ipvs and userspace mode, only the periodic sync does this.
fn full_sync(mode: &Mode, tripod: &Tripod, row: &mut Row) {
    let change = match (mode.name, mode.engine) {
        ("nftables", _) => "nft add chain ip tripod other".to_owned(),
        (_, Some(engine)) => {
            format!("iptables-{engine} -w -t nat -A KUBE-POSTROUTING -j RETURN")
        }
        _ => return,
    };
    let read = |name| tripod.metric(name).unwrap_or(0.0);
    let (count, time) = (read(FULL_SYNCS), read(FULL_SYNC_TIME));
    let calls = Pair::start(Some(Called::Steady.address()), BACKENDS[0]);
    run(&change);
    let done = wait_for(Instant::now(), || read(FULL_SYNCS) > count);
    let waits = calls.stop();
    row.waits(
        ["resync_wait_ms", "resync_direct_ms", "resync_calls_failed"],
        waits,
    );
    match done {
        Some(_) => row.set("resync_s", decimal(read(FULL_SYNC_TIME) - time, 3)),
        None => row.set("resync_s", format!("not within {} s", limit().as_secs())),
    }
}
