//! Clusters of many Services.

use std::{collections::BTreeSet, net::Ipv4Addr};

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    objects::{service, slice},
};

/// Number of endpoints of each Service, except for those that are called.
pub const ENDPOINTS: u8 = 5;
/// Maximum number of Services that are called: the first, the last and some between.
const CALLED: u32 = 16;
/// The addresses of the one endpoint that the called Services have.
pub const BACKENDS: [Ipv4Addr; 2] = [
    Ipv4Addr::new(10, 244, 255, 1),
    Ipv4Addr::new(10, 244, 255, 2),
];

/// A cluster with this number of Services.
#[derive(Clone)]
pub struct Size {
    pub services: u32,
    called: BTreeSet<u32>,
}

impl Size {
    pub fn new(services: u32) -> Size {
        let part = |part| part * (services - 1) / (CALLED - 1);
        Size {
            services,
            called: (0..CALLED).map(part).collect(),
        }
    }

    /// Makes its objects.
    pub fn fill(&self, cluster: &mut Cluster) {
        for i in 0..self.services {
            let name = name(i);
            let mut object = service(&name, 0);
            let ip = address(i).to_string();
            object["spec"]["clusterIP"] = json!(ip);
            object["spec"]["clusterIPs"] = json!([ip]);
            cluster.put(object);
            if self.called.contains(&i) {
                cluster.put(called_slice(i, BACKENDS[0]));
                continue;
            }
            let mut of = slice_of(i);
            for e in 0..ENDPOINTS {
                let endpoint = &mut of["endpoints"][usize::from(e)];
                let ip = format!("10.{}.{}.{}", 1 + e, i / 250, i % 250 + 1);
                endpoint["addresses"] = json!([ip]);
                endpoint["nodeName"] = json!(format!("node-{}", (i + u32::from(e) * 7) % 500));
            }
            cluster.put(of);
        }
        let mut last = service(LAST, 0);
        last["spec"]["clusterIP"] = json!("10.99.0.1");
        last["spec"]["clusterIPs"] = json!(["10.99.0.1"]);
        last["spec"]["internalTrafficPolicy"] = json!("Local");
        cluster.put(last);
        let mut elsewhere = slice(LAST, LAST, &[1]);
        elsewhere["endpoints"][0]["nodeName"] = json!("node-b");
        cluster.put(elsewhere);
    }

    /// Returns the cluster IPs of the called Services.
    pub fn called(&self) -> Vec<Ipv4Addr> {
        self.called.iter().map(|number| address(*number)).collect()
    }

    /// Returns the cluster IP of the called Service that [`Size::redirect`] changes.
    pub fn changed(&self) -> Ipv4Addr {
        address(self.middle())
    }

    /// Replaces the endpoint of one of the called Services.
    pub fn redirect(&self, cluster: &mut Cluster, backend: Ipv4Addr) {
        cluster.put(called_slice(self.middle(), backend));
    }

    fn middle(&self) -> u32 {
        let middle = self.called.iter().nth(self.called.len() / 2);
        *middle.expect("some are called")
    }

    /// Replaces the address of one endpoint of another Service in change number `turn`.
    pub fn replace(&self, cluster: &mut Cluster, turn: u32) {
        let others = |number: &u32| !self.called.contains(number);
        let first = turn.wrapping_mul(7919);
        let mut numbers = (0..self.services).map(|i| first.wrapping_add(i) % self.services);
        let Some(number) = numbers.find(others) else {
            // Each of a few is called.
            return self.redirect(cluster, BACKENDS[turn as usize % 2]);
        };
        let mut of = slice_of(number);
        let [.., high, low] = turn.to_be_bytes();
        of["endpoints"][0]["addresses"] = json!([Ipv4Addr::new(10, 233, high, low).to_string()]);
        cluster.put(of);
    }

    /// Makes this number of changes of the slices of a thousand Services, and then one by which
    /// [`LAST`] gets an endpoint on this node.
    pub fn storm(&self, cluster: &mut Cluster, events: u32) {
        for i in 0..events {
            let name = name(i % self.services.min(1000));
            let mut last: Vec<u8> = (100..100 + ENDPOINTS).collect();
            last[0] = 1 + u8::try_from(i / 1000 % 90).unwrap_or(0);
            cluster.put(slice(&format!("{name}-abcde"), &name, &last));
        }
        cluster.put(slice(LAST, LAST, &[1]));
    }
}

/// An additional Service with internal traffic policy Local, which has no endpoint here at first: a
/// metric shows when that has changed.
const LAST: &str = "last";

fn name(i: u32) -> String {
    format!("service-{i:05}")
}

fn address(i: u32) -> Ipv4Addr {
    let octet = |value: u32| u8::try_from(value).expect("not that many Services");
    Ipv4Addr::new(
        10,
        octet(96 + i / 62_500),
        octet(i / 250 % 250),
        octet(i % 250 + 1),
    )
}

fn slice_of(number: u32) -> Value {
    let name = name(number);
    let last: Vec<u8> = (1..=ENDPOINTS).collect();
    slice(&format!("{name}-abcde"), &name, &last)
}

fn called_slice(number: u32, backend: Ipv4Addr) -> Value {
    let name = name(number);
    let mut of = slice(&format!("{name}-abcde"), &name, &[1]);
    of["endpoints"][0]["addresses"] = json!([backend.to_string()]);
    of["endpoints"][0]["nodeName"] = json!("node-b");
    of
}
