//! A small HTTP/1.1 server: GET requests, answers that fit in memory.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// How long a client may take for its request head.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer to a GET request.
#[derive(Debug)]
pub struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: Vec<u8>,
}

impl Answer {
    /// 200 with plain text.
    pub fn text(body: &str) -> Self {
        Answer {
            status: StatusCode::OK,
            kind: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    /// 200 with metrics in the Prometheus text format, version 0.0.4.
    pub fn metrics(body: Vec<u8>) -> Self {
        Answer {
            status: StatusCode::OK,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body,
        }
    }

    /// 503 with the reason.
    pub fn unavailable(why: &str) -> Self {
        Answer {
            status: StatusCode::SERVICE_UNAVAILABLE,
            ..Answer::text(why)
        }
    }

    /// 404.
    pub fn not_found() -> Self {
        Answer {
            status: StatusCode::NOT_FOUND,
            ..Answer::text("404 page not found\n")
        }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

/// Answers GET requests for a path as `answer` says, until the listener fails.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, most likely: they come back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let answer = match *request.method() {
                    Method::GET | Method::HEAD => answer(request.uri().path()),
                    _ => Answer {
                        status: StatusCode::METHOD_NOT_ALLOWED,
                        ..Answer::text("only GET is served here\n")
                    },
                };
                async move { Ok::<_, Infallible>(answer.into_response()) }
            });
            // A client that breaks off is no event of ours.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
