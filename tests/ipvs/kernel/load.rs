//! As many servers and members as in a large cluster.

use std::time::{Duration, Instant};

use ipvs::{
    Change, Forwarding, RealServer, ServerId, VirtualServer,
    ipset::{Element, IpSets, Kind, Set},
};
use net::{Family, Protocol};

use super::ipvs;
use crate::lab::{figure, run};

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 5;
/// Time limit for adding everything and for listing everything; the guest shares its processor with
/// other work of the machine. The printed figures are the actual times.
const LIMIT: Duration = Duration::from_secs(60);

fn timed<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = act();
    let took = start.elapsed();
    figure(what, format!("{took:?}"));
    assert!(took < LIMIT, "{what} took {took:?}");
    value
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn five_thousand_services_are_in_and_listed_soon() {
    run(|| {
        let mut ipvs = ipvs();
        let ids: Vec<ServerId> = (0..SERVICES)
            .map(|number| ServerId {
                protocol: Protocol::Tcp,
                address: ((0x0a60_0000 + number).to_be_bytes(), 80).into(),
            })
            .collect();
        let mut changes = Vec::new();
        for (id, number) in ids.iter().zip(0u32..) {
            changes.push(Change::Add(VirtualServer::new(*id, "rr")));
            for endpoint in 0..ENDPOINTS {
                let ip = (0x0af4_0000 + number * ENDPOINTS + endpoint).to_be_bytes();
                let real = RealServer::new((ip, 8080).into(), 1, Forwarding::Masquerade);
                changes.push(Change::AddReal(*id, real));
            }
        }
        let outcomes = timed("adding 5,000 virtual servers of 5", || ipvs.apply(&changes));
        let failed = outcomes
            .expect("the socket")
            .into_iter()
            .find(Result::is_err);
        assert!(failed.is_none(), "{failed:?}");

        let servers = timed("listing 5,000 virtual servers", || ipvs.list());
        assert_eq!(servers.expect("listing").len(), ids.len());
        let all = timed("listing them with 25,000 real servers", || {
            ids.iter()
                .map(|id| ipvs.list_real(id))
                .collect::<Result<Vec<_>, _>>()
        });
        let all = all.expect("listing");
        assert!(all.iter().all(|reals| reals.len() == ENDPOINTS as usize));

        let one = VirtualServer::new(ids[0], "rr");
        let drained = RealServer {
            weight: 0,
            ..all[0][0].server
        };
        let change = [Change::EditReal(ids[0], drained), Change::Edit(one)];
        timed("two changes at that size", || ipvs.apply(&change)).expect("the socket");
        let deletions: Vec<_> = ids.into_iter().map(Change::Delete).collect();
        timed("deleting them all", || ipvs.apply(&deletions)).expect("the socket");
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn twenty_five_thousand_members_are_in_and_listed_soon() {
    run(|| {
        let mut sets = IpSets::open().expect("ipset");
        let set = Set::new("KUBE-LOOP-BACK", Kind::IpPortIp, Family::V4);
        sets.create(&set).expect("creating it");
        let members: Vec<Element> = (0..SERVICES * ENDPOINTS)
            .map(|number| {
                let ip = (0x0af4_0000 + number).to_be_bytes().into();
                Element::IpPortIp {
                    ip,
                    protocol: 6,
                    port: 8080,
                    other: ip,
                }
            })
            .collect();
        let refused = timed("adding 25,000 members", || sets.add(&set, &members));
        assert!(refused.expect("the socket").is_empty());
        let found = timed("listing 25,000 members", || sets.members("KUBE-LOOP-BACK"));
        assert_eq!(found.expect("listing").len(), members.len());
        let refused = timed("removing 25,000 members", || sets.remove(&set, &members));
        assert!(refused.expect("the socket").is_empty());
    });
}
