//! What the simulation asks a service group.

use super::*;

impl ServiceGroup {
    /// The endpoints that [`ServiceGroup::pick`] may return for a new flow, regardless of failures:
    /// the endpoint to which its client is pinned, or all.
    pub fn candidates(&self, flow: &Flow) -> Vec<SocketAddr> {
        let routing = self.routing.load();
        let backends = routing.backends_for(flow, &self.cluster_local);
        let mut stays = None;
        if let Some(affinity) = &routing.affinity {
            // Nothing is chosen, so its client stays pinned as before.
            affinity.pin(flow.client.ip(), |current| {
                let chosen = self.choose(flow, backends, current, &mut Tried::default());
                stays = current.filter(|on| chosen.is_some_and(|chosen| chosen.address == *on));
                (None, ())
            });
        }
        if let Some(on) = stays {
            return vec![on];
        }
        let usable = backends.servers().iter().filter(|server| server.weight > 0);
        usable.map(|server| server.address).collect()
    }

    /// Pins a client to an endpoint, if there is session affinity.
    pub fn pin(&self, client: IpAddr, endpoint: SocketAddr) {
        if let Some(affinity) = &self.routing.load().affinity {
            affinity.pin(client, |_| (Some(endpoint), ()));
        }
    }
}
