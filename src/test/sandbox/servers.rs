//! Servers at the addresses of endpoints.

use std::{collections::BTreeSet, net::SocketAddr};

use net::Protocol;
use netlink::isolation::NetworkNamespace;
use tokio::net::{TcpListener, UdpSocket};

use crate::test::call::{serve_tcp, serve_udp};

/// Address and protocol of a server.
pub(super) type At = (SocketAddr, Protocol);

/// Starts a server at each address of `at` in the namespace `there`; it answers with the address as
/// its name.
///
/// # Errors
/// The first address at which no server can listen.
pub(super) async fn start(there: &NetworkNamespace, at: BTreeSet<At>) -> Result<(), String> {
    let listening = async move {
        for (address, protocol) in at {
            let failed = |error| {
                format!(
                    "no server can listen at {address} ({}): {error}",
                    protocol.name()
                )
            };
            let name = address.to_string();
            match protocol {
                Protocol::Tcp => {
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    tokio::spawn(async move { serve_tcp(listener, &name).await });
                }
                Protocol::Udp => {
                    let socket = UdpSocket::bind(address).await.map_err(failed)?;
                    tokio::spawn(async move { serve_udp(socket, &name).await });
                }
                Protocol::Sctp => {}
            }
        }
        Ok(())
    };
    let started = there.run(listening).await;
    started.map_err(|error| error.to_string())?
}
