//! Clients that wait for an answer from an ejected endpoint.

use std::net::SocketAddr;

use hashbrown::HashSet;
use net::Family;
use netlink::{Error, Protocol, Socket, conntrack::unanswered};
use tokio::sync::mpsc::UnboundedReceiver;

/// Passes the received endpoints to [`send_elsewhere`]: those that arrived while the table was
/// being read all at once, because the endpoints of a failing node are ejected one after the other.
pub async fn run(mut ejected: UnboundedReceiver<HashSet<SocketAddr>>) {
    while let Some(mut endpoints) = ejected.recv().await {
        while let Ok(more) = ejected.try_recv() {
            endpoints.extend(more);
        }
        send_elsewhere(endpoints).await;
    }
}

/// Deletes the entries of connections that `endpoints` did not answer. The next SYN of a waiting
/// client then goes to another endpoint, and so does a new connection from the same port.
async fn send_elsewhere(endpoints: HashSet<SocketAddr>) {
    // The table may have a million entries.
    let task = tokio::task::spawn_blocking(move || {
        let is_there = |family: &Family| endpoints.iter().any(|at| Family::of(&at.ip()) == *family);
        for family in Family::ALL.into_iter().filter(is_there) {
            match delete(family, &endpoints) {
                Ok(count) => tracing::debug!(
                    "{family}: deleted {count} connections that ejected endpoints had not answered"
                ),
                Err(error) => tracing::warn!(
                    "{family}: clients that wait for an answer from an ejected endpoint may \
                     continue to wait, because Tripod {error}"
                ),
            }
        }
    });
    // It fails only when the runtime shuts down.
    drop(task.await);
}

fn delete(family: Family, endpoints: &HashSet<SocketAddr>) -> Result<usize, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    unanswered::delete(&mut socket, family, |endpoint| endpoints.contains(endpoint))
}
