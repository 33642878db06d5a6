mod instructions;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use hashbrown::HashMap;
use ipvs::{Forwarding, RealServer, ServerId, VirtualServer};
use net::{Family, Protocol};
use proptest::prelude::*;

use super::*;
use crate::{modes::ipvs::plan::ServicePlan, services::service_ports::port_name};

/// The kernel's side: a refusal fails the test.
#[derive(Default)]
struct Kernel {
    servers: HashMap<ServerId, (VirtualServer, BTreeMap<SocketAddr, ListedReal>)>,
}

impl Kernel {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Add(server) => {
                let old = self.servers.insert(server.id, (server, BTreeMap::new()));
                assert!(old.is_none(), "it was there");
            }
            Change::Edit(server) => {
                let id = server.id;
                self.servers.get_mut(&id).expect("a server").0 = server;
            }
            Change::AddReal(id, server) => {
                let real = ListedReal {
                    server,
                    active: 0,
                    inactive: 0,
                    totals: None,
                };
                let reals = &mut self.servers.get_mut(&id).expect("a server").1;
                assert!(reals.insert(server.address, real).is_none(), "it was there");
            }
            Change::EditReal(id, server) => {
                let reals = &mut self.servers.get_mut(&id).expect("a server").1;
                reals.get_mut(&server.address).expect("a real").server = server;
            }
            Change::DeleteReal(id, address) => {
                let reals = &mut self.servers.get_mut(&id).expect("a server").1;
                assert!(reals.remove(&address).is_some(), "it was gone");
            }
            Change::Delete(_) => panic!("{change:?}"),
        }
    }
}

fn frontend(protocol: Protocol) -> ServerId {
    ServerId::new(([10, 0, 0, 1], 80), protocol)
}

/// One state of a virtual server: its scheduler, its endpoints with weights,
/// and how many connections each endpoint gets afterwards.
type State = (bool, BTreeMap<u8, u16>, BTreeMap<u8, u32>);

fn states() -> impl Strategy<Value = Vec<State>> {
    let endpoints = prop::collection::btree_map(0..6u8, 0..3u16, 0..6);
    let connections = prop::collection::btree_map(0..6u8, 0..2u32, 0..6);
    prop::collection::vec((any::<bool>(), endpoints, connections), 1..12)
}

proptest! {
    #[test]
    fn what_is_desired_comes_about_step_by_step(states in states(), tcp in any::<bool>()) {
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let mut kernel = Kernel::default();
        let mut drains = Drains::default();
        let start = Instant::now();
        let id = frontend(protocol);
        for (n, (scheduler, endpoints, connections)) in states.into_iter().enumerate() {
            let now = start + Duration::from_secs(n as u64);
            let at = |number: u8| SocketAddr::from(([10, 1, 0, number], 8080));
            let desired = plan::VirtualServer {
                frontend: frontend(protocol),
                scheduler: if scheduler { "rr" } else { "wrr" }.into(),
                persistence: None,
                reals: endpoints
                    .iter()
                    .map(|(number, weight)| {
                        RealServer::new(at(*number), (*weight).into(), Forwarding::Masquerade)
                    })
                    .collect(),
            };
            let there = kernel.servers.get(&id);
            let reals: Vec<_> = there.iter().flat_map(|(_, reals)| reals.values().copied()).collect();
            let present = there.map(|(server, _)| Present {
                is_same: *server == desired.to_kernel(),
                reals: &reals,
            });
            let ServerDifference { changes, drained } =
                server_difference(&desired, present, None, &drains, now);
            drains.update(&desired.frontend, &drained, now);
            let last_new = changes.iter().rposition(|c| matches!(c, Change::AddReal(..)));
            let first_gone = changes.iter().position(|c| match c {
                Change::DeleteReal(..) => true,
                Change::EditReal(_, real) => {
                    !desired.reals.iter().any(|r| r.address == real.address)
                }
                _ => false,
            });
            if let (Some(new), Some(gone)) = (last_new, first_gone) {
                prop_assert!(new < gone, "{changes:?}");
            }
            for change in changes {
                kernel.apply(change);
            }
            let (server, reals) = kernel.servers.get_mut(&id).expect("it is there");
            prop_assert_eq!(&*server, &desired.to_kernel());
            for (number, weight) in &endpoints {
                let real = reals.get(&at(*number));
                prop_assert_eq!(real.map(|r| r.server.weight), Some(u32::from(*weight)));
            }
            let mut left = reals.values().filter(|r| !desired.reals.iter().any(|w| w.address == r.server.address));
            prop_assert!(left.clone().all(|real| tcp && real.server.weight == 0));
            prop_assert_eq!(left.clone().count(), drains.len());
            prop_assert!(tcp || left.next().is_none());
            for (number, count) in connections {
                if let Some(real) = reals.get_mut(&at(number)) {
                    real.active = count;
                }
            }
        }
    }
}

/// A member of `set`: a network that may call the frontend, or the frontend itself.
fn member(set: Set) -> Member {
    let (ip, port) = ([203, 0, 113, 1].into(), 80);
    Member {
        set,
        family: Family::V4,
        element: if set.admits() {
            Element::IpPortNet {
                ip,
                protocol: 6,
                port,
                net: "198.18.0.0/15".parse().expect("a network"),
            }
        } else {
            Element::ip_port(ip, 6, port)
        },
    }
}

/// A plan with a virtual server and these members.
fn with(sets: &[Set]) -> ServicePlan {
    let mut members: Vec<Member> = sets.iter().copied().map(member).collect();
    members.sort_unstable();
    ServicePlan {
        servers: vec![plan::VirtualServer {
            frontend: ServerId::new(([203, 0, 113, 1], 80), Protocol::Tcp),
            scheduler: "rr".into(),
            persistence: None,
            reals: Box::default(),
        }],
        members,
        ..ServicePlan::default()
    }
}

#[test]
fn sets_change_when_no_client_gets_through_for_it() {
    use Action::{Add, Remove};
    use Set::{Firewall, LoadBalancer, LoadBalancerLocal, SourceCidr};
    let nothing = ServicePlan::default;
    let open = || with(&[LoadBalancer]);
    let guarded = || with(&[LoadBalancer, Firewall, SourceCidr]);
    let narrowed = || with(&[LoadBalancer, Firewall]);
    let local = || with(&[LoadBalancer, LoadBalancerLocal]);
    type Steps = &'static [(Set, Action)];
    let comes: Steps = &[(SourceCidr, Add), (LoadBalancer, Add), (Firewall, Add)];
    let is_guarded: Steps = &[(SourceCidr, Add), (Firewall, Add)];
    let admits_all: Steps = &[(Firewall, Remove)];
    let goes: Steps = &[
        (LoadBalancer, Remove),
        (Firewall, Remove),
        (SourceCidr, Remove),
    ];
    let is_narrowed: Steps = &[(SourceCidr, Remove)];
    let is_local: Steps = &[(LoadBalancerLocal, Add)];
    let is_cluster: Steps = &[(LoadBalancerLocal, Remove)];
    // Changes before anything opens, when open virtual servers follow their endpoints, when all are
    // open, and after all are closed.
    let cases: [(&str, ServicePlan, ServicePlan, [Steps; 4]); 7] = [
        (
            "new, with ranges",
            nothing(),
            guarded(),
            [comes, &[], &[], &[]],
        ),
        (
            "ranges come",
            open(),
            guarded(),
            [is_guarded, &[], &[], &[]],
        ),
        (
            "ranges go",
            guarded(),
            open(),
            [&[], admits_all, &[], is_narrowed],
        ),
        (
            "a range goes",
            guarded(),
            narrowed(),
            [is_narrowed, &[], &[], &[]],
        ),
        ("all goes", guarded(), nothing(), [&[], &[], &[], goes]),
        (
            "local from now on",
            open(),
            local(),
            [&[], &[], is_local, &[]],
        ),
        (
            "no longer local",
            local(),
            open(),
            [is_cluster, &[], &[], &[]],
        ),
    ];
    for (what, old, new, steps) in cases {
        assert_eq!(steps_between(&old, &new), steps, "{what}");
    }
}

/// The needs of all ServicePorts after one changed from one plan to another, and the changes.
fn replaced(old: &ServicePlan, new: &ServicePlan) -> (Needs, Dirty) {
    let (mut needs, mut dirty) = (Needs::default(), Dirty::default());
    let (name, nothing) = (port_name("web"), ServicePlan::default());
    needs.replace(&name, &nothing, old, &mut Dirty::default());
    needs.replace(&name, old, new, &mut dirty);
    (needs, dirty)
}

fn by_time(steps: MemberSteps) -> [Vec<(Set, Action)>; 4] {
    let MemberSteps {
        before,
        followed,
        opened,
        after,
    } = steps;
    [before, followed, opened, after].map(|steps| {
        let steps = steps.iter();
        steps.map(|step| (step.member.set, step.action)).collect()
    })
}

/// The steps from one plan to another: those before, those when open servers send to their new
/// endpoints, those when all is open, and those after.
fn steps_between(old: &ServicePlan, new: &ServicePlan) -> [Vec<(Set, Action)>; 4] {
    let (needs, dirty) = replaced(old, new);
    let is_open = |frontend: &&ServerId| old.serves(frontend) && new.serves(frontend);
    let follow = dirty.frontends.iter().filter(is_open).copied().collect();
    let steps = by_time(member_steps(&dirty, &needs, &follow));
    let sets: BTreeSet<Set> = dirty.members.keys().map(|member| member.set).collect();
    assert_eq!(sets.len(), steps.iter().map(Vec::len).sum::<usize>());
    steps
}

#[test]
fn callers_are_let_in_when_an_open_virtual_server_left_its_old_endpoints() {
    use Action::{Add, Remove};
    let range = |text: &str| Member {
        element: Element::IpPortNet {
            ip: [203, 0, 113, 1].into(),
            protocol: 6,
            port: 80,
            net: text.parse().unwrap(),
        },
        ..member(Set::SourceCidr)
    };
    let plan = |scheduler: &str, ranges: &[&str]| {
        let mut plan = with(&[Set::Firewall]);
        plan.servers[0].scheduler = scheduler.into();
        plan.members.extend(ranges.iter().map(|text| range(text)));
        plan.members.sort_unstable();
        plan
    };
    let old = plan("rr", &["10.9.0.0/16"]);
    // Another network; a part of the former one; and a case where no virtual server changes.
    let cases: [(&str, &str, [&[Action]; 2]); 3] = [
        ("lc", "10.8.0.0/16", [&[Remove], &[Add]]),
        ("lc", "10.9.8.0/24", [&[Add, Remove], &[]]),
        ("rr", "10.8.0.0/16", [&[Add, Remove], &[]]),
    ];
    for (scheduler, now, expected) in cases {
        let (needs, dirty) = replaced(&old, &plan(scheduler, &[now]));
        let follow = dirty.frontends.iter().copied().collect();
        let steps = member_steps(&dirty, &needs, &follow);
        let actions = |steps: &[MemberStep]| steps.iter().map(|step| step.action).collect();
        let found: [Vec<Action>; 2] = [actions(&steps.before), actions(&steps.followed)];
        assert_eq!(found, expected, "{scheduler}, {now}");
    }
}

/// A Service that gets a load balancer with policy Local is not masqueraded at first.
#[test]
fn a_new_virtual_server_of_a_served_service_is_local_from_the_start() {
    let mut old = with(&[]);
    old.servers[0].frontend = ServerId::new(([10, 96, 0, 1], 80), Protocol::Tcp);
    let mut new = with(&[Set::LoadBalancer, Set::LoadBalancerLocal]);
    new.servers.extend(old.servers.iter().cloned());
    let [before, .., after] = steps_between(&old, &new);
    let comes = [Set::LoadBalancer, Set::LoadBalancerLocal].map(|set| (set, Action::Add));
    assert_eq!((&before[..], &after[..]), (&comes[..], &[][..]));
    let [before, .., after] = steps_between(&new, &old);
    let goes = [Set::LoadBalancer, Set::LoadBalancerLocal].map(|set| (set, Action::Remove));
    assert_eq!((&before[..], &after[..]), (&[][..], &goes[..]));
}

/// Until an open virtual server sends to the endpoints of its new owner, it sends to those of the
/// old one, of which some are on other nodes.
#[test]
fn an_open_virtual_server_that_changes_its_owner_is_masqueraded_while_it_needs_that() {
    let local = || with(&[Set::LoadBalancer, Set::LoadBalancerLocal]);
    let cluster = || with(&[Set::LoadBalancer]);
    let nothing = ServicePlan::default();
    for (old, new, expected) in [
        (
            local(),
            cluster(),
            [
                &[(Set::LoadBalancerLocal, Action::Remove)][..],
                &[],
                &[],
                &[],
            ],
        ),
        (
            cluster(),
            local(),
            [&[], &[], &[(Set::LoadBalancerLocal, Action::Add)][..], &[]],
        ),
    ] {
        let (mut needs, mut dirty) = (Needs::default(), Dirty::default());
        let [one, other] = ["web", "shop"].map(port_name);
        needs.replace(&one, &nothing, &old, &mut Dirty::default());
        needs.replace(&other, &nothing, &new, &mut dirty);
        needs.replace(&one, &old, &nothing, &mut dirty);
        let follow = dirty.frontends.iter().copied().collect();
        let steps = by_time(member_steps(&dirty, &needs, &follow));
        assert_eq!(steps, expected);
    }
}

#[test]
fn sets_get_room_for_what_comes_beside_what_is_yet_to_go() {
    // Ranges with one third byte or the other.
    let ranges = |third: u8, number: u8| {
        let members = (0..number).map(|last| Member {
            set: Set::SourceCidr,
            family: Family::V4,
            element: Element::IpPortNet {
                ip: [203, 0, 113, 1].into(),
                protocol: 6,
                port: 80,
                net: IpAddr::from([198, 18, third, last]).into(),
            },
        });
        let mut plan = with(&[Set::Firewall]);
        plan.members.extend(members);
        plan.members.sort_unstable();
        plan
    };
    let cases = [
        ("all come", ranges(0, 0), ranges(0, 9), Some(9)),
        ("some come", ranges(0, 5), ranges(0, 9), Some(9)),
        ("others come", ranges(0, 5), ranges(1, 7), Some(12)),
        ("some go", ranges(0, 5), ranges(0, 2), None),
    ];
    for (what, old, new, needed) in cases {
        let (needs, dirty) = replaced(&old, &new);
        let needed: Vec<_> = needed
            .map(|n| ((Set::SourceCidr, Family::V4), n))
            .into_iter()
            .collect();
        let found: Vec<_> = room_needed(&dirty, &needs).into_iter().collect();
        assert_eq!(found, needed, "{what}");
    }
}
