//! Annotations and labels under `tripod.proxy/`, by which the author of an object requests features
//! that only Tripod has. This module parses their values; a malformed one is reported and counts as
//! not given.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{
    invalid::Inspection,
    names::Names,
    port_ranges::{self, PortRange},
    wire::Meta,
};
use crate::duration;

/// The longest name of a scheduler in bytes (`IP_VS_SCHEDNAME_MAXLEN` of the kernel's
/// `linux/ip_vs.h`, without the NUL). The kernel builds the name of a module from it.
const LONGEST_SCHEDULER: usize = 15;

/// Number of characters of a malformed value that are shown: an annotation may have 256 KiB.
const SHOWN: usize = 40;

/// Weight of an endpoint if its slice and node give none.
pub const DEFAULT_WEIGHT: u16 = 1;

/// Annotation or label of EndpointSlices and Nodes with the weight of their
/// endpoints.
pub const WEIGHT: &str = "tripod.proxy/weight";
/// Cilium's annotation for the weight of an EndpointSlice, which has the same scale
/// (<https://github.com/cilium/cilium/pull/46061>).
const CILIUM_WEIGHT: &str = "service.cilium.io/weight";
/// kube-router's annotation for the scheduler (its `svcSchedulerAnnotation`).
const KUBE_ROUTER_SCHEDULER: &str = "kube-router.io/service.scheduler";

/// A Service's requests beyond the API's fields. `None`: not requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// `tripod.proxy/scheduler`, else `kube-router.io/service.scheduler`: the name of a scheduler
    /// as IPVS spells it; the mode decides whether it has that scheduler. `None`: not given, or
    /// malformed.
    pub scheduler: Option<Arc<str>>,
    /// `tripod.proxy/forwarding`: how packets get to endpoints; `None` if not given or malformed.
    pub forwarding: Option<Forwarding>,
    /// `tripod.proxy/drain-timeout`: how long connections to an endpoint that was removed from the
    /// Service may continue; zero: they end at once; `None` if not given or malformed.
    pub drain_timeout: Option<Duration>,
    /// `tripod.proxy/proxy-protocol`: whether endpoints get a header that names the client, in the
    /// binary form of version 2, before the first byte.
    pub proxy_protocol: bool,
    /// `tripod.proxy/retry`: which steps may be retried on another endpoint; `None` if not given.
    pub retry: Option<Retry>,
    /// `tripod.proxy/eject`: whether endpoints that do not answer connections get none for a while.
    pub eject: bool,
    /// `tripod.proxy/max-connections`: maximum number of simultaneous TCP connections and UDP
    /// clients of the Service on a node; `None` if not given or malformed.
    pub max_connections: Option<NonZeroU32>,
    /// `tripod.proxy/max-connections-per-client`: maximum number of them for one client; `None` if
    /// not given or malformed.
    pub max_connections_per_client: Option<NonZeroU32>,
    /// `tripod.proxy/hash-table-size`: the least number of entries of a table of consistent hashing;
    /// `None` if not given or malformed.
    pub hash_table_size: Option<NonZeroU32>,
    /// `tripod.proxy/slow-start`: how long the share of an endpoint that became ready grows; `None`
    /// if not given or malformed.
    pub slow_start: Option<Duration>,
    /// `tripod.proxy/when-none-ready`: whether the endpoints that were ready last are used when none
    /// is ready.
    pub keeps_last_ready: bool,
    /// `tripod.proxy/reset`: whether connections to an endpoint that has left all EndpointSlices, or
    /// that is ejected, end with a reset.
    pub reset: bool,
    /// `tripod.proxy/ports`: ranges of ports that are forwarded port for port, in addition to the
    /// ports in the spec; empty if not given or malformed.
    pub ports: Box<[PortRange]>,
    /// `tripod.proxy/mode`: whether its connections are relayed as in userspace mode, whatever the
    /// mode of the node is.
    pub relayed: bool,
    /// Annotations whose values cannot be parsed, each with the reason. They count as not given.
    pub malformed: Vec<(&'static str, String)>,
    /// Why the Service is not served at all its addresses: there are too many; `None` if it is.
    pub too_many_addresses: Option<String>,
}

impl Preferences {
    /// Annotation that names a scheduler.
    pub const SCHEDULER: &str = "tripod.proxy/scheduler";
    /// Annotation that names a way of forwarding.
    pub const FORWARDING: &str = "tripod.proxy/forwarding";
    /// Annotation with the time for which connections to removed endpoints may continue.
    pub const DRAIN_TIMEOUT: &str = "tripod.proxy/drain-timeout";
    /// Annotation that names the protocol by which endpoints get the client's address.
    pub const PROXY_PROTOCOL: &str = "tripod.proxy/proxy-protocol";
    /// Annotation that names the steps that may be retried on another endpoint.
    pub const RETRY: &str = "tripod.proxy/retry";
    /// Annotation that says whether endpoints that do not answer are ejected.
    pub const EJECT: &str = "tripod.proxy/eject";
    /// Annotation with the maximum number of connections of a Service.
    pub const MAX_CONNECTIONS: &str = "tripod.proxy/max-connections";
    /// Annotation with the maximum number of connections of each client of a Service.
    pub const MAX_CONNECTIONS_PER_CLIENT: &str = "tripod.proxy/max-connections-per-client";

    /// Returns what was `asked`; nothing is requested if there is none.
    pub fn given(asked: &Option<Arc<Preferences>>) -> &Preferences {
        static NONE: LazyLock<Preferences> = LazyLock::new(Preferences::default);
        asked.as_deref().unwrap_or(&NONE)
    }

    /// Annotation with the number of entries of a table of consistent hashing.
    pub const HASH_TABLE_SIZE: &str = "tripod.proxy/hash-table-size";

    /// Annotation with the time for which the share of a new endpoint grows.
    pub const SLOW_START: &str = "tripod.proxy/slow-start";

    /// Annotation that says which endpoints are used when none is ready.
    pub const WHEN_NONE_READY: &str = "tripod.proxy/when-none-ready";

    /// Annotation that says which connections end with a reset.
    pub const RESET: &str = "tripod.proxy/reset";

    /// Annotation that names the mode that serves a Service, in place of the node's.
    pub const MODE: &str = "tripod.proxy/mode";

    /// The maximum numbers of connections, each with its annotation.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, NonZeroU32)> {
        let limits = [
            (Preferences::MAX_CONNECTIONS, self.max_connections),
            (
                Preferences::MAX_CONNECTIONS_PER_CLIENT,
                self.max_connections_per_client,
            ),
        ];
        limits
            .into_iter()
            .filter_map(|(what, most)| Some((what, most?)))
    }
    /// Annotation with ranges of ports that are forwarded port for port.
    pub const PORTS: &str = "tripod.proxy/ports";
}

/// How long an endpoint must be gone before its connections are reset: EndpointSlices change one
/// after the other, and an endpoint that moves from slice to slice may be in none for a moment.
pub const SETTLED: Duration = Duration::from_millis(300);

/// How packets get from the node to an endpoint (`ip_vs.h`,
/// `IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// The destination is rewritten, and answers come back through the node.
    /// This is the default.
    Nat,
    /// Direct routing: packets go to the endpoint's link address unchanged, and it answers the
    /// client directly.
    Dr,
    /// Packets are wrapped in IP-in-IP, and the endpoint answers the client
    /// directly.
    Tunnel,
    /// As `Nat`, with the source of every connection rewritten too.
    FullNat,
}

impl Forwarding {
    const ALL: [Forwarding; 4] = [
        Forwarding::Nat,
        Forwarding::Dr,
        Forwarding::Tunnel,
        Forwarding::FullNat,
    ];

    /// Returns its name in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Forwarding::Nat => "nat",
            Forwarding::Dr => "dr",
            Forwarding::Tunnel => "tunnel",
            Forwarding::FullNat => "fullnat",
        }
    }
}

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The steps that may be retried on another endpoint when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Connecting, and sending the bytes that the client sent before the endpoint answered, which
    /// may thus reach two endpoints.
    #[default]
    FirstFlight,
    /// Connecting. The client's bytes reach one endpoint at most.
    Connect,
    /// Nothing: one endpoint is tried once.
    Off,
}

impl Retry {
    const ALL: [Retry; 3] = [Retry::FirstFlight, Retry::Connect, Retry::Off];

    /// Returns its name in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Retry::FirstFlight => "first-flight",
            Retry::Connect => "connect",
            Retry::Off => "off",
        }
    }
}

/// A value of an annotation or label, and its field path.
struct Setting<'a> {
    field: String,
    value: &'a str,
}

/// Finds the value of `key` in `metadata`; an annotation takes precedence over a label.
fn setting<'a>(metadata: &'a Meta, key: &str) -> Option<Setting<'a>> {
    let sets = [
        ("annotations", &metadata.annotations),
        ("labels", &metadata.labels),
    ];
    sets.into_iter().find_map(|(set, values)| {
        let value = values.as_ref()?.get(key)?;
        Some(Setting {
            field: format!("metadata.{set}[{key:?}]"),
            value,
        })
    })
}

/// Reads the weight that a Node gives its endpoints; `None` if it gives none, or a malformed one,
/// which is recorded in `inspection`.
pub(super) fn weight(metadata: &Meta, inspection: &mut Inspection) -> Option<u16> {
    weight_in(setting(metadata, WEIGHT)?, inspection)
}

/// The same for an EndpointSlice, which may have the annotation of Cilium.
pub(super) fn slice_weight(metadata: &Meta, inspection: &mut Inspection) -> Option<u16> {
    let own = setting(metadata, WEIGHT);
    weight_in(
        own.or_else(|| setting(metadata, CILIUM_WEIGHT))?,
        inspection,
    )
}

fn weight_in(setting: Setting<'_>, inspection: &mut Inspection) -> Option<u16> {
    let Setting { field, value } = setting;
    let weight = value.parse().ok();
    if weight.is_none() {
        let reason = "a weight is a number from 0 (no new connections) to 65535; the value is \
                      ignored";
        inspection.skip(field, value, reason);
    }
    weight
}

/// Reads the requests of a Service. They include malformed values: these concern only this Service,
/// and the runner reports them in an Event.
pub(super) fn preferences(metadata: &Meta, names: &mut Names) -> Preferences {
    let mut malformed = Vec::new();
    let mut read = Reader {
        metadata,
        malformed: &mut malformed,
    };
    let scheduler = [Preferences::SCHEDULER, KUBE_ROUTER_SCHEDULER]
        .into_iter()
        .find(|key| setting(metadata, key).is_some())
        .and_then(|key| read.value(key, |value| scheduler_name(value).map(str::to_owned)));
    Preferences {
        scheduler: scheduler.map(|name| names.share(&name)),
        forwarding: read.value(Preferences::FORWARDING, |value| {
            let known = Forwarding::ALL.into_iter().find(|f| f.as_str() == value);
            known.ok_or("forwarding is nat, dr, tunnel or fullnat; nat is used".to_owned())
        }),
        drain_timeout: read.value(Preferences::DRAIN_TIMEOUT, duration::parse),
        proxy_protocol: read.is(
            Preferences::PROXY_PROTOCOL,
            "v2",
            "the only proxy protocol is v2; none is used",
        ),
        retry: retry(&mut read),
        eject: read
            .value(Preferences::EJECT, |value| {
                let why = "eject is true or false; false is used";
                value.parse().map_err(|_| why.to_owned())
            })
            .unwrap_or(false),
        max_connections: read.value(Preferences::MAX_CONNECTIONS, most),
        max_connections_per_client: read.value(Preferences::MAX_CONNECTIONS_PER_CLIENT, most),
        hash_table_size: read.value(Preferences::HASH_TABLE_SIZE, table_size),
        slow_start: read.value(Preferences::SLOW_START, slow_start),
        keeps_last_ready: read.is(
            Preferences::WHEN_NONE_READY,
            "last",
            "when-none-ready is last; no endpoint is used",
        ),
        reset: read.is(
            Preferences::RESET,
            "gone",
            "reset is gone; no connection is reset",
        ),
        ports: read
            .value(Preferences::PORTS, port_ranges::parse)
            .unwrap_or_default(),
        relayed: read.is(
            Preferences::MODE,
            "userspace",
            "mode is userspace; the mode of the node is used",
        ),
        malformed,
        too_many_addresses: None,
    }
}

/// Reads which steps may be retried. A mistake must not cause a request to be delivered twice: the
/// author of the annotation most likely means to forbid that.
fn retry(read: &mut Reader<'_>) -> Option<Retry> {
    setting(read.metadata, Preferences::RETRY)?;
    let known = read.value(Preferences::RETRY, |value| {
        let known = Retry::ALL.into_iter().find(|r| r.as_str() == value);
        let why = "retry is first-flight, connect or off; connect is used, so that nothing is \
                   sent twice";
        known.ok_or(why.to_owned())
    });
    Some(known.unwrap_or(Retry::Connect))
}

fn most(value: &str) -> Result<NonZeroU32, String> {
    let why = "a limit is a whole number greater than 0; no limit applies";
    value.parse().map_err(|_| why.to_owned())
}

fn slow_start(value: &str) -> Result<Duration, String> {
    match duration::parse(value)? {
        Duration::ZERO => Err("a slow start takes longer than 0s; there is none".to_owned()),
        duration => Ok(duration),
    }
}

fn table_size(value: &str) -> Result<NonZeroU32, String> {
    let why = "the size of a hash table is a whole number from 1 to 65521; 4093 is used";
    let size = value.parse().ok();
    let fits = size.filter(|size: &NonZeroU32| size.get() <= 65_521);
    fits.ok_or_else(|| why.to_owned())
}

/// Reads the values of one object, and collects the malformed ones.
struct Reader<'a> {
    metadata: &'a Meta,
    malformed: &'a mut Vec<(&'static str, String)>,
}

impl Reader<'_> {
    /// Returns whether the value is `word`, the only one that is understood, as `reason` says.
    fn is(&mut self, key: &'static str, word: &str, reason: &str) -> bool {
        let read = self.value(key, |value| {
            (value == word).then_some(()).ok_or(reason.to_owned())
        });
        read.is_some()
    }

    fn value<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Setting { field, value } = setting(self.metadata, key)?;
        match parse(value) {
            Ok(parsed) => Some(parsed),
            Err(reason) => {
                let mut shown: String = value.chars().take(SHOWN).collect();
                if shown.len() < value.len() {
                    shown.push('…');
                }
                let why = format!("{field} is {shown:?}: {reason}");
                self.malformed.push((key, why));
                None
            }
        }
    }
}

/// Checks that `value` is a valid name of a scheduler.
fn scheduler_name(value: &str) -> Result<&str, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match value.len() {
        1..=LONGEST_SCHEDULER if value.bytes().all(plain) => Ok(value),
        _ => Err(format!(
            "the name of a scheduler has 1 to {LONGEST_SCHEDULER} letters, digits, hyphens and \
             underscores; the default one is used"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Meta {
        let set = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            Some(
                pairs
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
            )
        };
        Meta {
            labels: set(labels),
            annotations: set(annotations),
            ..Meta::default()
        }
    }

    /// Returns the weight, and the warnings about it.
    fn weight_of(metadata: &Meta) -> (Option<u16>, Vec<String>) {
        let mut inspection = Inspection::of("Node", "n");
        let weight = weight(metadata, &mut inspection);
        (weight, warnings(inspection))
    }

    fn preferences_of(annotations: &[(&str, &str)]) -> Option<Preferences> {
        let metadata = metadata(&[], annotations);
        let preferences = preferences(&metadata, &mut Names::default());
        (preferences != Preferences::default()).then_some(preferences)
    }

    fn warnings(inspection: Inspection) -> Vec<String> {
        let warnings = inspection.finish(()).warnings;
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn weights_are_read_and_an_annotation_wins_over_a_label() {
        let of = |value: &str| weight_of(&metadata(&[], &[(WEIGHT, value)]));
        for (value, weight) in [("0", 0), ("3", 3), ("65535", 65_535)] {
            assert_eq!(of(value), (Some(weight), vec![]), "{value}");
        }
        for malformed in ["", "-1", "65536", "1.5", "three", " 3"] {
            let (weight, warnings) = of(malformed);
            assert_eq!(weight, None, "{malformed}");
            assert_eq!(warnings.len(), 1, "{malformed}");
            let begins = format!(
                "Node n: metadata.annotations[\"tripod.proxy/weight\"] is {malformed:?}: a weight is"
            );
            assert!(warnings[0].starts_with(&begins), "{warnings:?}");
        }
        let label = (WEIGHT, "1");
        assert_eq!(weight_of(&metadata(&[label], &[])).0, Some(1));
        let both = metadata(&[label], &[(WEIGHT, "2")]);
        assert_eq!(weight_of(&both).0, Some(2));
        assert_eq!(weight_of(&metadata(&[("app", "web")], &[])), (None, vec![]));
    }

    #[test]
    fn slices_may_have_the_weight_of_cilium() {
        for (own, of_cilium, weight, faults) in [
            (None, Some("0"), Some(0), 0),
            (None, Some("65535"), Some(65_535), 0),
            (Some("3"), Some("7"), Some(3), 0),
            (Some("three"), Some("7"), None, 1),
            (None, Some("heavy"), None, 1),
        ] {
            let own = own.map(|value| (WEIGHT, value));
            let of_cilium = of_cilium.map(|value| (CILIUM_WEIGHT, value));
            let all: Vec<_> = [own, of_cilium].into_iter().flatten().collect();
            let metadata = metadata(&[], &all);
            let mut inspection = Inspection::of("EndpointSlice", "a/b");
            assert_eq!(slice_weight(&metadata, &mut inspection), weight, "{all:?}");
            assert_eq!(warnings(inspection).len(), faults, "{all:?}");
            assert_eq!(weight_of(&metadata).0, weight.filter(|_| own.is_some()));
        }
    }

    #[test]
    fn a_service_says_what_it_prefers() {
        let all = preferences_of(&[
            (Preferences::SCHEDULER, "wrr"),
            (KUBE_ROUTER_SCHEDULER, "lc"),
            (Preferences::FORWARDING, "fullnat"),
            (Preferences::DRAIN_TIMEOUT, "1m30s"),
            (Preferences::PROXY_PROTOCOL, "v2"),
            (Preferences::RETRY, "connect"),
            (Preferences::EJECT, "true"),
            (Preferences::MAX_CONNECTIONS, "100"),
            (Preferences::MAX_CONNECTIONS_PER_CLIENT, "10"),
            (Preferences::HASH_TABLE_SIZE, "1021"),
            (Preferences::SLOW_START, "60s"),
            (Preferences::WHEN_NONE_READY, "last"),
            (Preferences::RESET, "gone"),
            (Preferences::PORTS, "10000-20000/UDP"),
            ("other.example/scheduler", "sh"),
        ]);
        let expected = Preferences {
            relayed: false,
            scheduler: Some("wrr".into()),
            forwarding: Some(Forwarding::FullNat),
            drain_timeout: Some(Duration::from_secs(90)),
            proxy_protocol: true,
            retry: Some(Retry::Connect),
            eject: true,
            max_connections: NonZeroU32::new(100),
            max_connections_per_client: NonZeroU32::new(10),
            hash_table_size: NonZeroU32::new(1021),
            slow_start: Some(Duration::from_secs(60)),
            keeps_last_ready: true,
            reset: true,
            ports: port_ranges::parse("10000-20000/UDP").expect("a range"),
            malformed: vec![],
            too_many_addresses: None,
        };
        assert_eq!(all, Some(expected));
        let router = preferences_of(&[(KUBE_ROUTER_SCHEDULER, "lc")]);
        assert_eq!(router.and_then(|p| p.scheduler).as_deref(), Some("lc"));
        for forwarding in Forwarding::ALL {
            let read = preferences_of(&[(Preferences::FORWARDING, forwarding.as_str())]);
            assert_eq!(read.and_then(|p| p.forwarding), Some(forwarding));
        }
        for retry in Retry::ALL {
            let read = preferences_of(&[(Preferences::RETRY, retry.as_str())]);
            assert_eq!(read.and_then(|p| p.retry), Some(retry));
        }
        assert_eq!(preferences_of(&[("app", "web")]), None);
    }

    #[test]
    fn what_is_malformed_is_named_and_not_asked_for() {
        let sixteen = "a-name-of-16-byt";
        let scheduler = "the name of a scheduler has 1 to 15 letters";
        let huge = "x".repeat(256 * 1024);
        for (key, value, reason) in [
            (Preferences::SCHEDULER, sixteen, scheduler),
            (Preferences::SCHEDULER, "", scheduler),
            (Preferences::SCHEDULER, "../wrr", scheduler),
            (Preferences::SCHEDULER, "rr\n", scheduler),
            (Preferences::SCHEDULER, "rühr", scheduler),
            (Preferences::SCHEDULER, &huge, scheduler),
            (KUBE_ROUTER_SCHEDULER, sixteen, scheduler),
            (
                Preferences::FORWARDING,
                "NAT",
                "forwarding is nat, dr, tunnel or fullnat",
            ),
            (Preferences::DRAIN_TIMEOUT, "30", "the unit is missing"),
            (Preferences::DRAIN_TIMEOUT, "-1s", "must not be negative"),
            (Preferences::SLOW_START, "60", "the unit is missing"),
            (
                Preferences::WHEN_NONE_READY,
                "all",
                "when-none-ready is last; no endpoint is used",
            ),
            (
                Preferences::SLOW_START,
                "0s",
                "longer than 0s; there is none",
            ),
            (
                Preferences::PROXY_PROTOCOL,
                "v1",
                "the only proxy protocol is v2",
            ),
            (
                Preferences::RETRY,
                "never",
                "retry is first-flight, connect or off; connect is used, so that nothing is sent twice",
            ),
            (
                Preferences::EJECT,
                "yes",
                "eject is true or false; false is used",
            ),
            (
                Preferences::MAX_CONNECTIONS,
                "0",
                "a limit is a whole number greater than 0; no limit applies",
            ),
            (
                Preferences::MAX_CONNECTIONS_PER_CLIENT,
                "many",
                "a limit is a whole number greater than 0; no limit applies",
            ),
        ] {
            let read = preferences_of(&[(key, value)]).expect(key);
            let [(what, why)] = &read.malformed[..] else {
                panic!("{key}: {read:?}");
            };
            assert_eq!(*what, key);
            assert!(why.contains(key) && why.contains(reason), "{why}");
            assert!(why.len() < 300, "{} bytes", why.len());
            let malformed = read.malformed.clone();
            let nothing = Preferences::default();
            let forbidden = (key == Preferences::RETRY).then_some(Retry::Connect);
            assert_eq!(
                read,
                Preferences {
                    malformed,
                    retry: forbidden,
                    ..nothing
                },
                "{key}"
            );
        }
    }

    #[test]
    fn names_of_schedulers_have_a_length_and_an_order() {
        let (fifteen, sixteen) = ("a-name_of-15-by", "a-name-of-16-byt");
        let both = [
            (Preferences::SCHEDULER, sixteen),
            (KUBE_ROUTER_SCHEDULER, "lc"),
        ];
        assert_eq!(preferences_of(&both).and_then(|read| read.scheduler), None);
        let longest = preferences_of(&[(Preferences::SCHEDULER, fifteen)]);
        let longest = longest.and_then(|read| read.scheduler);
        assert_eq!(longest.as_deref(), Some(fifteen));
    }
}
