//! Clusters of many Services.

use std::{fmt, net::Ipv4Addr};

use serde_json::json;

use crate::{
    cluster::Cluster,
    objects::{service, slice},
};

/// How large a cluster is, and what may be resident.
#[derive(Clone, Copy)]
pub struct Size {
    pub services: u32,
    pub endpoints: u8,
    mebibytes: f64,
    /// In nftables mode.
    of_nftables: f64,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} Services of {} endpoints",
            self.services, self.endpoints
        )
    }
}

impl Size {
    pub const ALL: [Size; 3] = [
        Size {
            services: 100,
            endpoints: 5,
            mebibytes: 40.0,
            of_nftables: 30.0,
        },
        Size {
            services: 5_000,
            endpoints: 5,
            mebibytes: 40.0,
            of_nftables: 30.0,
        },
        Size {
            services: 20_000,
            endpoints: 10,
            mebibytes: 150.0,
            of_nftables: 90.0,
        },
    ];

    /// What may be resident in a mode, in MiB.
    pub fn limit(&self, mode: &str) -> f64 {
        match mode {
            "nftables" => self.of_nftables,
            _ => self.mebibytes,
        }
    }

    pub fn fill(&self, cluster: &mut Cluster) {
        for i in 0..self.services {
            let name = name(i);
            let mut object = service(&name, 0);
            let ip = format!("10.{}.{}.{}", 96 + i / 62_500, i / 250 % 250, i % 250 + 1);
            object["spec"]["clusterIP"] = json!(ip);
            object["spec"]["clusterIPs"] = json!([ip]);
            cluster.put(object);
            let last: Vec<u8> = (1..=self.endpoints).collect();
            let mut of = slice(&format!("{name}-abcde"), &name, &last);
            for e in 0..self.endpoints {
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

    /// One endpoint of the Service of that number gets this address.
    pub fn replace(&self, cluster: &mut Cluster, number: u32, address: Ipv4Addr) {
        let name = name(number % self.services);
        let last: Vec<u8> = (1..=self.endpoints).collect();
        let mut of = slice(&format!("{name}-abcde"), &name, &last);
        of["endpoints"][0]["addresses"] = json!([address.to_string()]);
        cluster.put(of);
    }

    /// So many changes of the slices of a thousand Services, and then one by
    /// which [`LAST`] gets an endpoint on this node.
    pub fn churn(&self, cluster: &mut Cluster, events: u32) {
        for i in 0..events {
            let name = name(i % self.services.min(1000));
            let mut last: Vec<u8> = (100..100 + self.endpoints).collect();
            last[0] = 1 + u8::try_from(i / 1000 % 90).unwrap_or(0);
            cluster.put(slice(&format!("{name}-abcde"), &name, &last));
        }
        cluster.put(slice(LAST, LAST, &[1]));
    }
}

/// A Service more, whose internal traffic is for this node alone and finds no
/// endpoint here at first: a metric tells when that has changed.
const LAST: &str = "last";

fn name(i: u32) -> String {
    format!("service-{i:05}")
}
