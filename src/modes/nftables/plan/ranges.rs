//! The elements of one ServicePort that is a range of ports.

use std::{collections::BTreeSet, net::IpAddr};

use nftables::{Datum, Element, Value, Verdict, concat};

use super::{
    Options,
    chains::SharedChain,
    draws::{Masquerade, Scheduler},
    elements::{ServiceElements, SharedElement, allowed, hairpin},
    frontend::{element, with_network},
    range_chains::{Calls, Does, Inside, RangeChain},
    sets::SetId,
    slots::{Endpoints, Slots, Taken, first_of_range},
};
use crate::{
    kernel::probe::NftPart,
    services::{ServicePort, TrafficPolicy},
};

/// Plans the elements of a ServicePort that is a range, whose endpoints have these slots.
pub(super) fn plan(
    port: &ServicePort,
    slots: &Slots,
    scheduler: Scheduler,
    options: &Options,
) -> ServiceElements {
    let needs = ServiceElements::default();
    if !options.features.contains(NftPart::Fib) {
        return needs;
    }
    let mut plan = Plan {
        port,
        slots,
        options,
        scheduler,
        needs,
    };
    let ips: BTreeSet<IpAddr> = port.addresses().collect();
    for ip in &ips {
        plan.address(*ip);
    }
    if !ips.is_empty() {
        plan.needs.chains.push(SharedChain::RangeHooks);
        plan.needs.shared.extend(hairpin(port, slots));
    }
    plan.needs.chains.sort();
    plan.needs.chains.dedup();
    plan.needs
}

struct Plan<'a> {
    port: &'a ServicePort,
    slots: &'a Slots,
    options: &'a Options,
    scheduler: Scheduler,
    needs: ServiceElements,
}

impl Plan<'_> {
    fn address(&mut self, ip: IpAddr) {
        let port = self.port;
        let is_cluster_ip = port.cluster_ip == Some(ip);
        if is_cluster_ip {
            self.needs.shared.push(SharedElement::ClusterIp(ip));
        }
        let is_filtered =
            !port.load_balancer_source_ranges.is_empty() && port.load_balancer_ips.contains(&ip);
        let (of, policy) = if is_cluster_ip && !is_filtered {
            (Calls::ToClusterIp, port.internal_traffic_policy)
        } else {
            (Calls::ToExternalIp, port.external_traffic_policy)
        };
        self.chains(of, policy);
        match (of, policy) {
            (_, TrafficPolicy::Cluster) => self.fill(ip, Endpoints::All),
            (Calls::ToClusterIp, TrafficPolicy::Local) => self.fill(ip, Endpoints::Local),
            (_, TrafficPolicy::Local) => {
                self.fill(ip, Endpoints::All);
                self.fill(ip, Endpoints::Local);
            }
        }
        let first = if is_filtered { self.filter(ip) } else { of };
        let name = self.chain(first, Does::Nothing).name();
        let ports = element(&port.at(ip)).commented(&port.name.to_string());
        if !port.endpoints.any_takes_connections() {
            self.needs.own.push((SetId::RefusedRanges, ports.clone()));
        }
        let verdict = Some(Datum::Verdict(Verdict::Goto(name.into())));
        let ports = Element {
            data: verdict,
            ..ports
        };
        self.needs.own.push((SetId::Ranges, ports));
    }

    fn chain(&self, of: Calls, does: Does) -> RangeChain {
        let port = self.port.name.clone();
        RangeChain { port, of, does }
    }

    fn add(&mut self, of: Calls, does: Does) {
        let does = match self.port.endpoints.any_takes_connections() {
            true => does,
            false => Does::Nothing,
        };
        let chain = SharedChain::Range(self.chain(of, does));
        self.needs.chains.push(chain);
    }

    fn chains(&mut self, of: Calls, policy: TrafficPolicy) {
        if !self.port.endpoints.any_takes_connections() {
            return self.add(of, Does::Nothing);
        }
        let Slots { cluster, local } = self.slots;
        let masquerade = match of {
            Calls::ToClusterIp => Masquerade::of_cluster_ip(self.options),
            _ => Masquerade::All,
        };
        if policy == TrafficPolicy::Cluster {
            return self.add(of, self.draw(cluster, Endpoints::All, masquerade, false));
        }
        if of == Calls::ToClusterIp {
            return self.add(of, self.draw(local, Endpoints::Local, masquerade, false));
        }
        let (taken, from) = match cluster.endpoints.is_empty() {
            true => (local, Endpoints::Local),
            false => (cluster, Endpoints::All),
        };
        let from_inside = self.draw(taken, from, Masquerade::None, false);
        self.add(Calls::FromInside, from_inside);
        self.add(
            of,
            self.draw(local, Endpoints::Local, Masquerade::None, true),
        );
    }

    fn draw(&self, of: &Taken, from: Endpoints, masquerade: Masquerade, inside: Inside) -> Does {
        if of.endpoints.is_empty() {
            return Does::Drop(inside);
        }
        Does::Draw {
            inside,
            masquerade,
            slots: self.scheduler.slots(of),
            first: first_of_range(self.port.port, from),
            scheduler: self.scheduler.clone(),
        }
    }

    /// Returns the packets that are filtered before they are treated as calls to `ip`.
    fn filter(&mut self, ip: IpAddr) -> Calls {
        self.add(Calls::ToLoadBalancer, Does::Filter);
        let at = self.port.at(ip);
        for network in allowed(self.port, self.options, ip) {
            let element = with_network(&at, &network).commented(&self.port.name.to_string());
            self.needs.own.push((SetId::RangeSources, element));
        }
        Calls::ToLoadBalancer
    }

    fn fill(&mut self, ip: IpAddr, from: Endpoints) {
        let taken = match from {
            Endpoints::All => &self.slots.cluster,
            Endpoints::Local => &self.slots.local,
        };
        let first = first_of_range(self.port.port, from);
        let protocol = Value::Protocol(self.port.name.protocol.number());
        let elements = (first..).zip(&*taken.endpoints).map(|(slot, endpoint)| {
            let key = concat(&[Value::Ip(ip), protocol.clone(), Value::Number(slot)]);
            let endpoint = Value::Ip(endpoint.ip()).octets().into();
            (
                SetId::RangeEndpoints,
                Element::with(key, Datum::Value(endpoint)),
            )
        });
        self.needs.own.extend(elements);
    }
}
