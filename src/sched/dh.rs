//! `dh`: destination hashing. A destination address keeps its real server; destinations are spread
//! evenly, regardless of the weights, as long as those are not 0 (kernel `ip_vs_dh.c`).

use super::{Candidates, Flow, RealServer, Scheduler, buckets::Buckets};

#[derive(Debug)]
pub(super) struct DestinationHash(Buckets);

impl DestinationHash {
    pub(super) fn new(servers: &[RealServer]) -> Self {
        DestinationHash(Buckets::deal(vec![1; servers.len()]))
    }
}

impl Scheduler for DestinationHash {
    fn pick(&self, of: Candidates<'_>, flow: &Flow) -> Option<usize> {
        self.0.pick(flow.destination, of)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn a_destination_keeps_its_server_whoever_calls() {
        let servers = servers(&[1, 1, 1]);
        let dh = DestinationHash::new(&servers);
        let first = dh.pick(Candidates::new(&servers, &|_| false), &flow(0));
        for client in 1..500 {
            assert_eq!(
                dh.pick(Candidates::new(&servers, &|_| false), &flow(client)),
                first
            );
        }
    }

    #[test]
    fn destinations_spread_evenly_whatever_the_weights() {
        let servers = servers(&[1, 9, 1, 0, 1]);
        let dh = DestinationHash::new(&servers);
        let mut counts = [0; 5];
        for destination in 0..20_000 {
            let flow = Flow {
                destination: flow(destination).client.ip(),
                ..flow(0)
            };
            counts[dh
                .pick(Candidates::new(&servers, &|_| false), &flow)
                .unwrap()] += 1;
        }
        assert_shares(&counts, &[1, 1, 1, 0, 1], 0.03);
    }
}
