//! The connections of an answer to `/v1/explain`.

use crate::{
    runner::question::{self, Carrier, ExplainedPacket, Stale},
    status_api::{Connection, Connections},
};

/// Maximum number of connections in an answer.
const MOST: usize = 100;

/// Lists the connections that were `found` to the destination of a packet, the stale ones first.
pub(super) fn listed(found: &[question::Connection], explained: &ExplainedPacket) -> Connections {
    let why = |connection: &question::Connection| -> Option<Stale> {
        let explanation = explained.explanation.as_ref().ok()?;
        let port = explained.service_port.as_deref()?;
        question::stale(connection, &explained.packet, explanation, port)
    };
    let explanation = explained.explanation.as_ref();
    let is_to_sockets = explanation.is_ok_and(|of| of.properties.carrier == Carrier::Sockets);
    let (stale, others): (Vec<_>, Vec<_>) = found
        .iter()
        .map(|connection| (connection, why(connection)))
        .partition(|(_, why)| why.is_some());
    let items = stale.iter().chain(&others).take(MOST);
    let items = items.map(|(connection, why)| {
        // Translated packets may go to a socket of this process.
        let endpoint = connection.translated_to.filter(|_| !is_to_sockets);
        Connection {
            client: connection.client.to_string(),
            endpoint: endpoint.map(|at| at.to_string()),
            state: connection.state.to_owned(),
            stale: why.map(|why| why.to_string()),
        }
    });
    Connections {
        total: found.len(),
        stale: stale.len(),
        items: items.collect(),
    }
}
