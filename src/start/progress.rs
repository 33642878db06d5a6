//! Log messages until the first sync succeeds, which takes seconds on a node of a large cluster,
//! and longer if the API server is slow.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use net::{Family, PerFamily};
use tokio::time::{Instant, sleep};

use crate::{
    cli::Settings,
    config::ModeName,
    log_once::LogOnce,
    runner::status::{FamilyStatus, Status, SuccessfulSync},
    services::ServicePortName,
    watch::{KindHealth, SourceHealth},
};

/// Interval at which the progress of the first sync is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which its progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(3);

/// Progress of a family before its mode starts to count.
const NOT_PLANNED: &str = "nothing is planned until the kernel has been read";

/// Facts about the process that are logged after the first sync.
#[derive(Debug)]
pub(super) struct Start {
    mode: ModeName,
    /// The address of the web page; `None` if it is not served.
    page: Option<SocketAddr>,
    /// Whether the process answers on a unix socket.
    answers: bool,
}

impl Start {
    pub(super) fn new(mode: ModeName, settings: &Settings) -> Start {
        Start {
            mode,
            page: settings.effective.metrics,
            answers: settings.own.status_socket.is_some(),
        }
    }

    /// The log line for a process that serves `served` of its `services`.
    fn line(&self, served: usize, services: usize) -> String {
        let number = match (served, services) {
            (1, 1) => "1 Service".to_owned(),
            (served, all) if served == all => format!("{all} Services"),
            (served, all) => format!("{served} of {all} Services"),
        };
        let page = self.page.map(|at| format!("http://{}/", reached(at)));
        let answers = self.answers.then(|| "tripod status".to_owned());
        let more: Vec<String> = answers.into_iter().chain(page).collect();
        let more = match &*more {
            [] => String::new(),
            more => format!("; for details: {}", more.join(" or ")),
        };
        format!("serving {number} in {} mode{more}", self.mode)
    }
}

/// The address at which this machine reaches a server that listens on `address`.
fn reached(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if ip.is_unspecified() => Family::of(&ip).localhost(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Logs the progress of the first sync until it has ended, and then what the process serves.
pub(super) async fn log(objects: Arc<SourceHealth>, runner: Arc<Status>, start: Start) {
    let begun = Instant::now();
    let mut next = begun + LOG_INTERVAL;
    let mut logged = LogOnce::default();
    loop {
        sleep(CHECK_INTERVAL).await;
        let (now, seconds) = (Instant::now(), begun.elapsed().as_secs_f64());
        let families = runner.families();
        let has_ended = families
            .iter()
            .all(|(_, status)| status.first_sync_is_over());
        if now < next && !has_ended {
            continue;
        }
        next = now + LOG_INTERVAL;
        if has_ended {
            let (served, services) = services(&runner, &families);
            return tracing::info!("{}", start.line(served, services));
        }
        let text = left(&objects.kinds(), &families);
        // It may not advance; the part that waits logs the reason.
        if logged.differs(&text) {
            tracing::info!("first sync, after {seconds:.0} s: {text}");
        }
    }
}

/// Number of Services all of whose ports are applied, and total number of Services. Families that
/// this node does not serve do not count, unless a Service has no other.
fn services(runner: &Status, families: &PerFamily<FamilyStatus>) -> (usize, usize) {
    let ports = runner.ports().unwrap_or_default();
    let is_unserved = |name: &ServicePortName| {
        let last = families.get(name.family).last.as_ref();
        last.is_some_and(|last| last.not_served.is_some())
    };
    let (mut served, mut others) = (HashSet::new(), HashSet::new());
    for name in ports.keys() {
        if is_in_force(name, families) {
            served.insert(&name.service);
        } else if !is_unserved(name) {
            others.insert(&name.service);
        }
    }
    let all: HashSet<_> = ports.keys().map(|name| &name.service).collect();
    (served.difference(&others).count(), all.len())
}

fn is_in_force(name: &ServicePortName, families: &PerFamily<FamilyStatus>) -> bool {
    let status = families.get(name.family);
    let is_served = |last: &SuccessfulSync| last.not_served.is_none();
    status.last.as_ref().is_some_and(is_served) && !status.failures.ports.contains_key(name)
}

/// The work for which the first sync waits.
fn left(kinds: &BTreeMap<&'static str, KindHealth>, families: &PerFamily<FamilyStatus>) -> String {
    let open = families
        .iter()
        .filter(|(_, status)| !status.first_sync_is_over());
    let open: Vec<Family> = open.map(|(family, _)| family).collect();
    let listing = kinds.iter().filter(|(_, kind)| !kind.complete);
    let listing: Vec<String> = listing
        .map(|(name, kind)| format!("{} {name} so far", kind.listed))
        .collect();
    if open.iter().any(|f| families.get(*f).under_way.is_some()) {
        let names: Vec<&str> = open.iter().map(|family| family.name()).collect();
        let names = names.join(" and ");
        let counted = open.iter().map(|family| {
            let position = families.get(*family).position;
            let words = position.map_or_else(|| NOT_PLANNED.to_owned(), |at| at.to_string());
            format!("; {family}: {words}")
        });
        let counted: String = counted.collect();
        format!("the ServicePorts of {names} are being applied{counted}")
    } else if listing.is_empty() {
        "the objects are known".to_owned()
    } else {
        format!("objects are being listed: {}", listing.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        runner::status::{Position, SuccessfulSync},
        trouble::Trouble,
    };

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
        assert_eq!(
            left(&kinds, &families),
            "objects are being listed: 120 endpointslices so far, 4500 services so far"
        );
        for kind in kinds.values_mut() {
            kind.complete = true;
        }
        assert_eq!(left(&kinds, &families), "the objects are known");
        for (_, family) in families.iter_mut() {
            family.under_way = Some(now);
        }
        families.v4.position = Some(Position {
            what: "virtual servers",
            planned: 5_000,
            sent: 1_200,
            done: 1_200,
        });
        assert_eq!(
            left(&kinds, &families),
            "the ServicePorts of IPv4 and IPv6 are being applied; IPv4: 1200 of 5000 virtual \
             servers are done; IPv6: nothing is planned until the kernel has been read"
        );
        families.v4.last = Some(SuccessfulSync {
            ended: now,
            took: Duration::from_secs(5),
            full: true,
            draining: 0,
            drains: [].into(),
            not_served: None,
            empty: false,
        });
        assert_eq!(
            left(&kinds, &families),
            "the ServicePorts of IPv6 are being applied; IPv6: nothing is planned until the kernel \
             has been read"
        );
        assert!(!families.v6.first_sync_is_over());
        families.v6.failure = Some(Trouble::now(None, "refused".to_owned()));
        assert!(
            families.v6.first_sync_is_over(),
            "a failure is logged elsewhere"
        );
    }

    #[test]
    fn the_line_after_the_first_sync_says_what_to_ask() {
        let start = |page: &str, answers| Start {
            mode: ModeName::Ipvs,
            page: page.parse().ok(),
            answers,
        };
        let page = "127.0.0.1:10249";
        for (start, served, services, expected) in [
            (
                start(page, true),
                1,
                1,
                "serving 1 Service in ipvs mode; for details: tripod status or \
                 http://127.0.0.1:10249/",
            ),
            (
                start("0.0.0.0:80", false),
                12,
                12,
                "serving 12 Services in ipvs mode; for details: http://127.0.0.1:80/",
            ),
            (
                start("[::]:80", true),
                2,
                3,
                "serving 2 of 3 Services in ipvs mode; for details: tripod status or \
                 http://[::1]:80/",
            ),
            (
                start("", true),
                0,
                0,
                "serving 0 Services in ipvs mode; for details: tripod status",
            ),
            (
                start("", false),
                1,
                2,
                "serving 1 of 2 Services in ipvs mode",
            ),
        ] {
            assert_eq!(start.line(served, services), expected);
        }
    }
}
