//! Tests on this machine's kernel.

use std::{
    collections::BTreeMap,
    net::UdpSocket,
    process::Command,
    time::{Duration, Instant},
};

use net::{Family, Protocol};
use nftables::{
    Contents, Datum, Element, Rules, Set, Table, Transaction, Value, Verdict, Watcher, concat,
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use testing::{cases, in_namespace, ip};

use super::{
    super::{
        Error,
        applied::TABLE,
        family::{Done, FamilyTable},
        plan::{ClientMap, Endpoints, Options},
    },
    random,
    world::{exposed, on, scheduled, service, sticky},
};
use crate::services::{Changes, ServiceMap, ServicePort, ServicePortName, TrafficPolicy};

const FAMILY: Family = Family::V4;

/// A table, and a socket that receives notifications, as the mode has it.
struct Watched {
    table: FamilyTable,
    watcher: Watcher,
}

impl Watched {
    fn open(family: Family) -> Watched {
        let table = FamilyTable::open(family).unwrap();
        let watcher = Watcher::open(&[table.port().unwrap()]).unwrap();
        Watched { table, watcher }
    }

    fn sync(
        &mut self,
        map: &ServiceMap,
        changes: &Changes,
        options: Options,
    ) -> Result<Done, Error> {
        self.table.sync(map, changes, options, &mut self.watcher)
    }

    /// Compares all of `ports` with the applied ones, and applies the difference.
    fn full(&mut self, ports: &[ServicePort]) -> Done {
        let options = Options::usual(FAMILY);
        self.sync(&map(ports), &full(), options).unwrap()
    }

    /// Applies those of `ports` that are `changed`.
    fn follow(&mut self, ports: &[ServicePort], changed: &Changes) -> Done {
        let options = Options::usual(FAMILY);
        self.sync(&map(ports), changed, options).unwrap()
    }

    fn failed(&self) -> &BTreeMap<ServicePortName, String> {
        self.table.failed()
    }
}

fn full() -> Changes {
    Changes {
        full: true,
        ..Changes::default()
    }
}

fn changed(ports: &[&ServicePort]) -> Changes {
    Changes {
        ports: ports.iter().map(|port| port.name.clone()).collect(),
        ..Changes::default()
    }
}

fn map(ports: &[ServicePort]) -> ServiceMap {
    ports.iter().cloned().collect()
}

fn contents(family: Family) -> Contents {
    let mut rules = Rules::open().unwrap();
    rules.contents(family, TABLE).unwrap().unwrap()
}

/// The content of the table, regardless of the order, of the slot that an endpoint has, and of the
/// number of slots.
fn summary(family: Family) -> Vec<String> {
    let contents = contents(family);
    let mut lines = Vec::new();
    let draws = |chain: &str| chain.starts_with("pick-") || chain.starts_with("node-port-");
    for chain in contents
        .chains
        .iter()
        .filter(|listed| !draws(&listed.chain.name))
    {
        lines.push(format!("{:?}", chain.chain));
    }
    let of_range = |chain: &str| chain.starts_with("range") && chain.contains('/');
    let chooses = |chain: &str| draws(chain) || of_range(chain);
    for rule in contents.rules.iter().filter(|rule| !chooses(&rule.chain)) {
        lines.push(format!("{} {:?}", rule.chain, rule.expressions));
    }
    for (listed, elements) in contents.sets {
        for element in elements {
            let mut element = element.comparable();
            if let Some(Datum::Verdict(Verdict::Goto(chain))) = &mut element.data
                && draws(chain)
            {
                *chain = chain.replace(|c: char| c.is_ascii_digit(), "").into();
            }
            if listed.name.ends_with("endpoints") {
                // The data are listed without the slot, and the slots without data.
                let data = element.data.take();
                let frontend = element.key.len() - 4;
                lines.push(format!(
                    "{} {:?} {data:?}",
                    listed.name,
                    &element.key[..frontend]
                ));
            }
            lines.push(format!("{} {element:?}", listed.name));
        }
    }
    lines.sort();
    lines
}

/// How many random cases there are.
const CASES: u32 = 500;

/// A step: the number of a ServicePort, and the choices that generate it.
type Step = (u16, u128);

/// A table that is written as a whole after these steps equals the one that they left.
fn converges(options: &Options, steps: &[Step]) {
    let family = options.family;
    let mut table = Watched::open(family);
    table.sync(&map(&[]), &full(), options.clone()).unwrap();
    let mut ports: Vec<Option<ServicePort>> = vec![None; random::PORTS.into()];
    for &(number, choices) in steps {
        ports[usize::from(number)] = random::port(family, number, choices);
        let desired = ports.iter().flatten().cloned().collect();
        let changes = changed(&[&random::plain(family, number)]);
        table.sync(&desired, &changes, options.clone()).unwrap();
        assert!(table.failed().is_empty(), "{:?}", table.failed());
    }
    let found = summary(family);
    let mut fresh = Watched::open(family);
    let desired = ports.into_iter().flatten().collect();
    fresh.sync(&desired, &full(), options.clone()).unwrap();
    assert_eq!(found, summary(family));
}

#[test]
fn random_steps_leave_what_a_fresh_table_has() {
    let strategy = (
        any::<bool>(),
        any::<u128>(),
        prop::collection::vec((0..random::PORTS, any::<u128>()), 2..12),
    );
    in_namespace(move || {
        let mut runner = TestRunner::deterministic();
        for _ in 0..cases(CASES) {
            let case = strategy.new_tree(&mut runner).unwrap().current();
            println!("{case:?}");
            let (v6, choices, steps) = case;
            let family = if v6 { Family::V6 } else { Family::V4 };
            let options = random::options(family, choices);
            converges(&options, &steps);
        }
    });
}

#[test]
fn a_table_that_another_process_changed_is_written_anew() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let ports = [exposed(on(FAMILY, 1, &[1, 3]))];
        table.full(&ports);
        let whole = summary(FAMILY);
        for command in [
            "nft flush ruleset",
            "nft flush table ip tripod",
            "nft flush map ip tripod endpoints",
            "nft add rule ip tripod services drop",
            "nft delete element ip tripod services { 10.96.0.1 . tcp . 80 }",
        ] {
            let status = Command::new("sh").args(["-c", command]).status().unwrap();
            assert!(status.success(), "{command}");
            table.table.externally_modified();
            table.full(&ports);
            assert_eq!(summary(FAMILY), whole, "{command}");
        }
        // A refusal shows it, too.
        let flush = Command::new("nft")
            .args(["flush", "ruleset"])
            .status()
            .unwrap();
        assert!(flush.success());
        let ports = [exposed(on(FAMILY, 1, &[1, 5]))];
        table.follow(&ports, &changed(&[&ports[0]]));
        assert_eq!(summary(FAMILY).len(), whole.len());
    });
}

/// An element of a map of clients: who was sent where.
fn client(last: u16, to: u16) -> Element {
    let address = |network, last| Value::Ip(super::world::ip(FAMILY, network, last));
    let to = concat(&[address(244, to), Value::Port(8080)]);
    Element {
        timeout: Some(Duration::from_secs(60)),
        ..Element::with(concat(&[address(0, last)]), Datum::Value(to.into()))
    }
}

/// Adds elements to the map of the clients of `port`.
fn add_clients(port: &ServicePort, clients: Vec<Element>) {
    let map = ClientMap {
        port: port.name.clone(),
        to: Endpoints::All,
    };
    let mut transaction = Transaction::new(Table::new(FAMILY, TABLE));
    transaction.add_elements(&map.set(), clients);
    Rules::open().unwrap().run(&transaction, None).unwrap();
}

/// The elements of the set of that name.
fn elements(name: &str) -> Vec<Element> {
    let mut sets = contents(FAMILY).sets.into_iter();
    let found = sets.find(|(set, _)| &*set.name == name);
    found.unwrap().1
}

/// The clients of the first Service.
fn clients(protocol: &str) -> Vec<Element> {
    let found = elements(&format!("affinity/default/web-1/{protocol}/http")).into_iter();
    let mut found: Vec<Element> = found.map(Element::comparable).collect();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

#[test]
fn clients_are_forgotten_with_their_endpoint_and_kept_over_a_restart() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let port = |last: &[u16]| [sticky(on(FAMILY, 1, last), 60)];
        table.full(&port(&[1, 3, 5]));
        let all = vec![client(1, 1), client(2, 3), client(3, 5)];
        let now = port(&[3, 5]);
        add_clients(&now[0], all.clone());
        table.follow(&now, &changed(&[&now[0]]));
        table.table.delete_stale_clients().unwrap();
        assert_eq!(clients("tcp"), all[1..]);
        // One that comes back before the map is searched again is not forgotten.
        let [without, with] = [port(&[5]), port(&[3, 5])];
        for now in [without, with] {
            table.follow(&now, &changed(&[&now[0]]));
        }
        table.table.delete_stale_clients().unwrap();
        // Another process, which knows one endpoint less.
        let mut table = Watched::open(FAMILY);
        table.full(&port(&[5, 7]));
        assert_eq!(clients("tcp"), all[2..]);
    });
}

/// A datagram that the client sends again without an answer goes where the first one went.
#[test]
fn a_repeated_packet_does_not_remember_a_client_at_an_endpoint_that_left() {
    in_namespace(|| {
        ip("link add d0 type veth peer name d1");
        ip("addr add 10.0.0.1/8 dev d0");
        ip("link set d0 up");
        ip("link set d1 up");
        let mut table = Watched::open(FAMILY);
        let port = |last: &[u16]| {
            let port = sticky(on(FAMILY, 1, last), 60);
            let name = port.name.over(Protocol::Udp);
            [ServicePort { name, ..port }]
        };
        table.full(&port(&[1]));
        let socket = UdpSocket::bind("10.0.0.1:4000").unwrap();
        let send = || socket.send_to(b"x", "10.96.0.1:80").unwrap();
        send();
        assert_eq!(clients("udp").len(), 1);
        let now = port(&[3]);
        table.follow(&now, &changed(&[&now[0]]));
        table.table.delete_stale_clients().unwrap();
        send();
        assert_eq!(clients("udp"), []);
    });
}

/// The kernel lists a long map by the number of elements that it has listed.
#[test]
fn clients_of_a_long_list_are_searched_for_until_none_is_found() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let port = |last: &[u16]| [sticky(on(FAMILY, 1, last), 60)];
        table.full(&port(&[1, 3]));
        let add = |clients: Vec<Element>| add_clients(&port(&[3])[0], clients);
        add((0..200).map(|last| client(last, 3)).collect());
        add(vec![client(200, 1)]);
        let now = port(&[3]);
        table.follow(&now, &changed(&[&now[0]]));
        table.table.delete_stale_clients().unwrap();
        assert_eq!(clients("tcp").len(), 200);
        // One that was left out.
        add(vec![client(201, 1)]);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !table.table.were_late() {
            assert!(Instant::now() < deadline, "there is no further search");
            table.table.delete_stale_clients().unwrap();
        }
        assert_eq!(clients("tcp").len(), 200);
    });
}

/// The kernel chooses the size of a map that rules write, and does not say so.
#[test]
fn a_table_with_maps_of_clients_differs_in_nothing() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let local = ServicePort {
            external_traffic_policy: TrafficPolicy::Local,
            ..exposed(on(FAMILY, 2, &[1, 2]))
        };
        let [first, second] = [sticky(on(FAMILY, 1, &[1, 3]), 60), sticky(local, 10_800)];
        let both = vec![first.clone(), scheduled(second.clone(), "rr")];
        for (now, count) in [(vec![], 0), (vec![first], 1), (both, 3), (vec![second], 2)] {
            table.full(&now);
            let found = table.table.compare(&map(&now), Options::usual(FAMILY));
            assert_eq!(found.unwrap(), []);
            let maps = contents(FAMILY).sets.into_iter();
            let sizes: Vec<_> = maps.filter_map(|(set, _)| set.size).collect();
            assert_eq!(sizes, vec![Set::MOST_DYNAMIC; count]);
            // Some versions of nft abort on rules that they cannot list.
            let listed = Command::new("nft")
                .args(["list", "table", "ip", TABLE])
                .output();
            assert!(listed.unwrap().status.success());
        }
    });
}

#[test]
fn what_is_refused_costs_its_own_service_alone() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        // A real service map gives no address two owners.
        let twice = ServicePort {
            cluster_ip: service(FAMILY, 1).cluster_ip,
            ..on(FAMILY, 9, &[9])
        };
        let ports = [on(FAMILY, 1, &[1]), twice, on(FAMILY, 2, &[3])];
        table.full(&ports);
        assert_eq!(table.failed().len(), 1, "{:?}", table.failed());
        assert_eq!(elements("services").len(), 2);
        // Other new ServicePorts are applied.
        let mut more = ports.to_vec();
        more.push(on(FAMILY, 3, &[5]));
        let changes = Changes {
            retry: true,
            ..changed(&[&more[3]])
        };
        table.follow(&more, &changes);
        assert_eq!(table.failed().len(), 1);
        assert_eq!(elements("services").len(), 3);
    });
}

/// Else both would have the same elements, and its next change would delete those of the new owner.
#[test]
fn an_address_of_what_is_refused_gets_its_new_owner_when_it_leaves_the_old_one() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let at = |address: u16, name: u16, endpoint: u16| ServicePort {
            cluster_ip: service(FAMILY, address).cluster_ip,
            ..on(FAMILY, name, &[endpoint])
        };
        let other = at(2, 2, 5);
        table.full(&[at(1, 1, 3), other.clone()]);
        // The first gets a new address that the kernel refuses.
        let ports = [at(2, 1, 3), other.clone(), at(1, 3, 3), at(4, 4, 7)];
        table.follow(&ports, &changed(&[&ports[0], &ports[2], &ports[3]]));
        assert_eq!(table.failed().len(), 2, "{:?}", table.failed());
        assert_eq!(elements("services").len(), 3, "others come into force");
        let ports = [at(5, 1, 3), other, at(1, 3, 3), at(4, 4, 7)];
        let changes = Changes {
            retry: true,
            ..changed(&[&ports[0]])
        };
        table.follow(&ports, &changes);
        assert_eq!(table.failed().len(), 0, "{:?}", table.failed());
        assert_eq!(elements("services").len(), 4);
    });
}

/// Many refused elements, and even if the kernel does not say where they are: it names one element
/// of a message at most.
#[test]
fn many_refused_cost_themselves_alone() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let twice = |number: u16| ServicePort {
            cluster_ip: service(FAMILY, number).cluster_ip,
            ..on(FAMILY, 1000 + number, &[1])
        };
        let good = (0..400).map(|number| on(FAMILY, number, &[1, 3]));
        let ports: Vec<ServicePort> = good.chain((0..100).map(twice)).collect();
        table.full(&ports);
        assert_eq!(table.failed().len(), 100);
        // They come to a table that is there.
        let mut table = Watched::open(FAMILY);
        table.full(&[]);
        let names: Vec<&ServicePort> = ports.iter().collect();
        table.follow(&ports, &changed(&names));
        assert_eq!(table.failed().len(), 100);
        assert_eq!(elements("services").len(), 400);
    });
}

#[test]
fn a_full_sync_without_a_difference_writes_nothing() {
    in_namespace(|| {
        let mut table = Watched::open(FAMILY);
        let ports = [on(FAMILY, 1, &[1])];
        table.full(&ports);
        let mut rules = Rules::open().unwrap();
        let generation = rules.generation().unwrap();
        let done = table.full(&ports);
        assert_eq!(
            (rules.generation().unwrap(), done.examined),
            (generation, 0)
        );
    });
}
