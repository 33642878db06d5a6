//! What the log says until the first sync is in force, which takes seconds on a node of
//! a large cluster, and longer where the API server is slow.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};

use crate::{
    log_once::LogOnce,
    net::{Family, PerFamily},
    runner::status::{FamilyStatus, Status},
    watch::{KindHealth, SourceHealth},
};

/// How often it is said.
const EVERY: Duration = Duration::from_secs(3);

/// Logs how far the first sync is, until it has ended. Nothing is logged of one that is
/// over soon.
pub(super) async fn log(objects: Arc<SourceHealth>, runner: Arc<Status>) {
    let begun = Instant::now();
    let mut logged = LogOnce::default();
    loop {
        sleep(EVERY).await;
        let ports = runner.ports().map_or(0, |ports| ports.len());
        let left = left(
            &objects.kinds(),
            ports,
            &runner.families(),
            SystemTime::now(),
        );
        let seconds = begun.elapsed().as_secs();
        match left {
            Some(text) if logged.differs(&text) => {
                tracing::info!("first sync, after {seconds} s: {text}");
            }
            // It stands still, and why is logged by who waits.
            Some(_) => {}
            None if logged.end() => return tracing::info!("first sync: over after {seconds} s"),
            None => return,
        }
    }
}

/// Returns what the first sync waits for; `None`: it has ended.
fn left(
    kinds: &BTreeMap<&'static str, KindHealth>,
    service_ports: usize,
    families: &PerFamily<FamilyStatus>,
    now: SystemTime,
) -> Option<String> {
    let has_ended = |status: &FamilyStatus| status.last.is_some() || status.failure.is_some();
    let open: Vec<Family> = families
        .iter()
        .filter(|(_, status)| !has_ended(status))
        .map(|(family, _)| family)
        .collect();
    if open.is_empty() {
        return None;
    }
    let listing = kinds.iter().filter(|(_, kind)| !kind.complete);
    let listing: Vec<String> = listing
        .map(|(name, kind)| format!("{} {name} so far", kind.listed))
        .collect();
    let under_way = open.iter().filter_map(|f| families.get(*f).under_way);
    let text = match under_way.min() {
        Some(since) => {
            let seconds = now.duration_since(since).unwrap_or_default().as_secs();
            let names: Vec<&str> = open.iter().map(|family| family.name()).collect();
            format!(
                "{service_ports} ServicePorts are being put in force for {}, for {seconds} s now",
                names.join(" and ")
            )
        }
        None if listing.is_empty() => "the objects are known".to_owned(),
        None => format!("objects are being listed: {}", listing.join(", ")),
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{runner::status::Sync, trouble::Trouble};

    #[test]
    fn it_says_what_is_waited_for() {
        let now = SystemTime::now();
        let kind = |complete, listed| KindHealth {
            complete,
            listed,
            ..KindHealth::default()
        };
        let mut kinds = BTreeMap::from([
            ("services", kind(false, 4_500)),
            ("nodes", kind(true, 1)),
            ("endpointslices", kind(false, 120)),
        ]);
        let mut families = PerFamily::<FamilyStatus>::default();
        let said = |kinds: &_, families: &_| left(kinds, 5_000, families, now);
        assert_eq!(
            said(&kinds, &families).as_deref(),
            Some("objects are being listed: 120 endpointslices so far, 4500 services so far")
        );
        for kind in kinds.values_mut() {
            kind.complete = true;
        }
        for (_, family) in families.iter_mut() {
            family.under_way = Some(now - Duration::from_secs(4));
        }
        assert_eq!(
            said(&kinds, &families).as_deref(),
            Some("5000 ServicePorts are being put in force for IPv4 and IPv6, for 4 s now")
        );
        families.v6.failure = Some(Trouble::now(None, "refused".to_owned()));
        assert_eq!(
            said(&kinds, &families).as_deref(),
            Some("5000 ServicePorts are being put in force for IPv4, for 4 s now")
        );
        families.v4.last = Some(Sync {
            ended: now,
            took: Duration::from_secs(5),
            full: true,
            lingering: 0,
        });
        assert_eq!(
            said(&kinds, &families),
            None,
            "a failure is logged elsewhere"
        );
    }
}
