//! The secure metrics address: TLS, and access only with a token that the API server knows and
//! allows, except to health.

use std::{io, sync::Arc, thread, time::Duration};

use hyper::{
    Request, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE},
};
use tokio::{net::TcpStream, runtime, sync::oneshot, time::timeout};
use tokio_rustls::TlsAcceptor;

use super::{
    Bind, Error,
    bind::until_open,
    certificate::{Certificate, CertificateError, Identity},
    connections::{Answered, Connections},
    http::{self, Answer, Methods, PATIENCE, Peer},
    introspection::Introspection,
    listeners::Listening,
};
use crate::authorize::{Authorizer, Refusal};

/// Paths that everybody may read, as at other components of Kubernetes (`WithAlwaysAllowPaths` in
/// `pkg/server/options/authorization.go` of `k8s.io/apiserver`).
const OPEN: [&str; 2] = ["/healthz", "/healthz/ping"];

/// Pause before files that could not be read are tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// The address, the certificate, and the authorizer of the secure server.
#[derive(Debug)]
pub struct Secure {
    /// The address; TCP.
    pub at: Bind,
    /// Files of the certificate and its key, or names for a generated one.
    pub identity: Identity,
    /// Decides who may read.
    pub authorizer: Authorizer,
}

/// Serves `about` over TLS, to clients that the API server allows, in a separate thread, so that the
/// cost of handshakes delays nothing else. Ends only if the address cannot be bound, or the
/// certificate cannot be used, and `hard_fail` is set.
///
/// # Errors
/// Says what cannot be used.
pub async fn serve(secure: Secure, about: Arc<Introspection>) -> Result<(), Error> {
    let (sender, ended) = oneshot::channel();
    let thread = thread::Builder::new().name("secure-metrics".to_owned());
    let spawned = thread.spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => runtime.block_on(run(secure, about)),
            Err(error) => Err(Error::Thread(error)),
        };
        // The receiver is gone if the process is shutting down.
        let _ = sender.send(result);
    });
    spawned.map_err(Error::Thread)?;
    let panicked = || Err(Error::Thread(io::Error::other("it ended")));
    ended.await.unwrap_or_else(|_| panicked())
}

async fn run(secure: Secure, about: Arc<Introspection>) -> Result<(), Error> {
    let certificate = open(secure.identity, &secure.at).await?;
    let mut at = secure.at;
    let guard = Arc::new(Guard {
        certificate,
        authorizer: secure.authorizer,
        about,
    });
    loop {
        let listener = at.listen("/metrics over TLS").await?;
        Arc::clone(&guard).serve(listener).await;
        at.hard_fail = false;
    }
}

async fn open(identity: Identity, at: &Bind) -> Result<Certificate, CertificateError> {
    let open = || Certificate::open(identity.clone());
    if at.hard_fail {
        return open();
    }
    let log = |error: &CertificateError| {
        let seconds = AGAIN.as_secs();
        tracing::error!(
            "the secure metrics address is not served: {error}; trying again every {seconds} s"
        );
    };
    let serving = "using the certificate of the secure metrics address";
    Ok(until_open(open, AGAIN, log, serving).await)
}

#[derive(Debug)]
struct Guard {
    certificate: Certificate,
    authorizer: Authorizer,
    about: Arc<Introspection>,
}

impl Guard {
    async fn serve(self: Arc<Self>, listener: Listening) {
        let open = Arc::new(Connections::default());
        http::each_connection(listener, open, move |stream, answered| {
            Arc::clone(&self).connection(stream, answered)
        })
        .await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, answered: Answered) {
        let acceptor = TlsAcceptor::from(self.certificate.config());
        // A client that breaks off, or speaks no TLS, is not logged.
        if let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await {
            http::answer_once(stream, answered, |request| self.answer(request)).await;
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if !OPEN.contains(&path) {
            let verb = request.method().as_str().to_lowercase();
            let asked = self.authorizer.authorize(token(&request), &verb, path);
            if let Err(refusal) = asked.await {
                return refused(&refusal);
            }
        }
        let peer = Peer::Authorized;
        http::respond(&request, peer, None, Methods::Read, &*self.about).await
    }
}

/// The bearer token of a request (RFC 6750, section 2.1).
fn token(request: &Request<Incoming>) -> Option<&str> {
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn refused(refusal: &Refusal) -> Answer {
    let answer = Answer::text(format!("{refusal}\n"));
    match refusal {
        Refusal::Unknown => answer
            .with_status(StatusCode::UNAUTHORIZED)
            .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        Refusal::Forbidden { .. } => answer.with_status(StatusCode::FORBIDDEN),
        Refusal::Unanswered(_) => answer.with_status(StatusCode::SERVICE_UNAVAILABLE),
    }
}
