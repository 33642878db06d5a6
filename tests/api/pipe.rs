//! Access to the server without a network, so that tests can let the clock of Tokio run ahead: a
//! minute's outage takes no time.

use std::io;

use http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::io::duplex;
use tripod::api_client::Access;

use super::{server::Server, tls::Authority};

const HOST: &str = "kubernetes.test";

/// Access through a pipe in memory, with TLS and HTTP as on a network.
pub fn access(server: &Server) -> Access {
    let authority = Authority::new();
    let acceptor = authority.acceptor(HOST, false);
    let connector = authority.connector();
    let server = server.clone();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (server, acceptor) = (server.clone(), acceptor.clone());
        let connector = connector.clone();
        async move {
            if server.script().down {
                let after = server.script().refuse_after;
                tokio::time::sleep(after).await;
                server.script().refused += 1;
                return Err(tower::BoxError::from(io::Error::from(
                    io::ErrorKind::ConnectionRefused,
                )));
            }
            let (ours, theirs) = duplex(16 << 10);
            server.serve(theirs, acceptor);
            let tls = connector.connect(HOST.try_into()?, ours).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
            tokio::spawn(connection);
            request.headers_mut().insert("host", HOST.try_into()?);
            Ok(sender.send_request(request).await?)
        }
    });
    Access::fixed(kube::Client::new(service, "default"))
}
