//! A client whose requests and answers are counted and measured, and whose answers have a limit.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response, Uri};
use hyper::body::{Body, Buf, Frame, SizeHint};
use tower::{BoxError, Service};

use super::metrics::{Asked, RequestMetrics};

/// Maximum size of an answer that is read as a whole, in bytes, as it is after decompression.
const LONGEST_ANSWER: u64 = 16 << 20;

/// Marks a request, among its extensions, whose answer is read piece by piece and may have any
/// size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed;

/// A client whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    inner: S,
    metrics: RequestMetrics,
}

impl<S> Counted<S> {
    /// Returns a client that counts the requests that `inner` makes.
    pub(super) fn new(inner: S, metrics: RequestMetrics) -> Counted<S> {
        Counted { inner, metrics }
    }
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    B: Body,
    R: Body,
    R::Error: Into<BoxError>,
{
    type Response = Response<Measured<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = Asked::new(request.method(), request.uri());
        let size = request.body().size_hint().exact();
        let is_watch = is_watch(request.uri());
        let is_streamed = request.extensions().get::<Streamed>().is_some();
        let metrics = self.metrics.clone();
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map(|answer| answer.status()).ok();
            let code = code.as_ref().map(|code| code.as_str());
            metrics.answered(&asked, size, code, begun.elapsed());
            let answer = answer?;
            Ok(answer.map(|body| Measured {
                size: 0,
                longest: if is_streamed {
                    u64::MAX
                } else {
                    LONGEST_ANSWER
                },
                has_ended: body.is_end_stream(),
                body,
                report: (!is_watch).then_some((metrics, asked)),
            }))
        })
    }
}

/// Returns whether the answer is a stream of changes, whose size is not measured, as in
/// client-go (`Request.Watch` in `k8s.io/client-go/rest/request.go`).
fn is_watch(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query
        .split('&')
        .any(|part| matches!(part, "watch=true" | "watch=1"))
}

/// The body of an answer; its size is recorded when it has been read.
pub(super) struct Measured<R> {
    body: R,
    size: u64,
    longest: u64,
    has_ended: bool,
    report: Option<(RequestMetrics, Asked)>,
}

impl<R> Body for Measured<R>
where
    R: Body + Unpin,
    R::Error: Into<BoxError>,
{
    type Data = R::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, BoxError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let read = frame.data_ref().map_or(0, Buf::remaining);
                this.size += read as u64;
                this.has_ended = this.body.is_end_stream();
                if this.size > this.longest {
                    let limit = this.longest >> 20;
                    let text = format!("the answer is larger than {limit} MiB");
                    return Poll::Ready(Some(Err(text.into())));
                }
            }
            Poll::Ready(None) => this.has_ended = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// As in client-go, an answer that broke off counts with what was received (`Request.Do`).
impl<R> Drop for Measured<R> {
    fn drop(&mut self) {
        if let Some((metrics, asked)) = &self.report
            && (self.has_ended || self.size > 0)
        {
            metrics.read(asked, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::StatusCode;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use prometheus::Registry;

    use super::*;

    const HOST: &str = "192.0.2.1:6443";

    async fn server(request: Request<Full<Bytes>>) -> io::Result<Response<Full<Bytes>>> {
        let mut answer = Response::new(Full::from("0123456789"));
        match request.uri().path() {
            "/broken" => return Err(io::Error::other("no answer")),
            "/missing" => *answer.status_mut() = StatusCode::NOT_FOUND,
            "/empty" => *answer.body_mut() = Full::default(),
            "/large" => *answer.body_mut() = Full::from(vec![b' '; 17 << 20]),
            _ => {}
        }
        Ok(answer)
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_and_measured() {
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let mut client = Counted::new(tower::service_fn(server), metrics.clone());
        let paths = [
            "/list",
            "/list?limit=1&watch=true",
            "/missing",
            "/broken",
            "/empty",
        ];
        for path in paths {
            let uri = format!("https://{HOST}{path}");
            let request = Request::get(uri).body(Full::from("abc")).unwrap();
            if let Ok(answer) = client.call(request).await {
                answer.into_body().collect().await.unwrap();
            }
        }
        for (code, times) in [("200", 3), ("404", 1), ("<error>", 1)] {
            assert_eq!(metrics.requests(code, HOST), times, "{code}");
        }
        // Five requests of three bytes. The request without an answer has no answer size,
        // and neither has the watch.
        assert_eq!(metrics.measured(HOST), [5.0, 15.0, 3.0, 20.0]);
    }

    #[tokio::test]
    async fn an_answer_has_a_limit_unless_it_is_streamed() {
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let mut client = Counted::new(tower::service_fn(server), metrics);
        for is_streamed in [false, true] {
            let request = Request::get(format!("https://{HOST}/large"));
            let mut request = request.body(Full::default()).unwrap();
            if is_streamed {
                request.extensions_mut().insert(Streamed);
            }
            let read = client
                .call(request)
                .await
                .unwrap()
                .into_body()
                .collect()
                .await;
            assert_eq!(read.is_ok(), is_streamed);
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_has_no_size() {
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let mut client = Counted::new(tower::service_fn(server), metrics.clone());
        let request = Request::get(format!("https://{HOST}/list"));
        let request = request.body(Full::default()).unwrap();
        drop(client.call(request).await.unwrap());
        assert_eq!(metrics.measured(HOST), [1.0, 0.0, 0.0, 0.0]);
    }
}
