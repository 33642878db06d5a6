//! One request, and the meaning of its failure.

use std::{error::Error, time::Duration};

use http::{Response, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt;
use kube::{client::Body, core::Status};
use tokio::time::timeout;

use super::pause::MOST_ASKED;
use crate::api_client::{Access, Streamed, causes};

/// How long the server may take until it begins to answer: it may have to wait for its own cache.
/// client-go has no limit, and waits forever where this tries again.
const ANSWER: Duration = Duration::from_secs(60);
/// How long the transfer of a page of a list may stall.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// Maximum number of bytes that are read of an error's body.
const LONGEST_ERROR: usize = 64 << 10;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    /// The version from which to continue is too old for the server (410), or not yet known to it:
    /// everything must be listed again.
    Expired,
    /// The server does not support the request (400, 406, 422).
    Unsupported(String),
    /// The credentials are not accepted (401).
    Unauthorized(String),
    /// Access to the objects is forbidden (403).
    Withheld(String),
    /// The server does not have such objects (404).
    Absent(String),
    /// The server asks for a pause (429, or any answer with `Retry-After`).
    Busy(Duration, String),
    /// There is no answer, or a proxy in front of the server reports that it got none (502, 503).
    Silent(String),
    /// All other failures: a broken stream, an error of the server.
    Broken(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Expired => f.write_str("the resource version to continue from has expired"),
            Failure::Unsupported(text)
            | Failure::Unauthorized(text)
            | Failure::Withheld(text)
            | Failure::Absent(text)
            | Failure::Silent(text)
            | Failure::Broken(text) => f.write_str(text),
            Failure::Busy(asked, text) => {
                let (all, most) = (asked.as_secs(), MOST_ASKED.as_secs());
                write!(f, "{text} (the server asks to wait {all} s")?;
                if *asked > MOST_ASKED {
                    write!(f, ", and is asked again after {most} s")?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Makes a request and returns its answer if it succeeds.
pub(super) async fn ask(
    access: &Access,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<Response<Body>, Failure> {
    let mut request = request.map_err(|error| Failure::Broken(chain(&error)))?;
    request.extensions_mut().insert(Streamed);
    let client = access.client().await;
    let answer = timeout(ANSWER, client.send(request.map(Body::from))).await;
    let response = answer
        .map_err(|_| Failure::Silent(format!("no answer for {} s", ANSWER.as_secs())))?
        .map_err(|error| Failure::Silent(unsent(&error)))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let failure = refused(response).await;
    if matches!(failure, Failure::Unauthorized(_)) {
        access.distrust();
    }
    Err(failure)
}

async fn refused(response: Response<Body>) -> Failure {
    let code = response.status();
    let retry_after = response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    let text = timeout(STALLED, beginning(response.into_body())).await;
    let text = text.unwrap_or_default();
    let mut status = serde_json::from_str::<Status>(&text).unwrap_or_else(|_| {
        // The server's own filters, and proxies in front of it, answer with plain text.
        let line = text.lines().next().unwrap_or_default();
        Status::failure(line.trim(), "")
    });
    status.code = code.as_u16();
    meaning(&status, retry_after)
}

async fn beginning(mut body: Body) -> String {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await
        && bytes.len() < LONGEST_ERROR
    {
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Interprets the status in an ERROR event.
pub(super) fn of_status(status: &Status) -> Failure {
    meaning(status, None)
}

/// Interprets a status; `retry_after` is the header of that name, in seconds.
fn meaning(status: &Status, retry_after: Option<u32>) -> Failure {
    let code = StatusCode::from_u16(status.code).ok();
    let causes = status.details.iter().flat_map(|details| &details.causes);
    // The server is older than the one that answered before: client-go calls this
    // `IsTooLargeResourceVersionError`.
    let mut unknown_yet = causes.map(|cause| cause.reason == "ResourceVersionTooLarge");
    if code == Some(StatusCode::GONE)
        || matches!(&*status.reason, "Expired" | "Gone")
        || unknown_yet.any(|is| is)
    {
        return Failure::Expired;
    }
    let mut text = match code {
        Some(code) => code.to_string(),
        None => "error".to_owned(),
    };
    if !status.message.is_empty() {
        text = format!("{text}: {}", status.message);
    }
    let in_body = status
        .details
        .as_ref()
        .map(|details| details.retry_after_seconds);
    let pause = Duration::from_secs(retry_after.or(in_body).unwrap_or(0).into());
    match code {
        Some(StatusCode::TOO_MANY_REQUESTS) => Failure::Busy(pause, text),
        _ if !pause.is_zero() => Failure::Busy(pause, text),
        Some(
            StatusCode::BAD_REQUEST | StatusCode::NOT_ACCEPTABLE | StatusCode::UNPROCESSABLE_ENTITY,
        ) => Failure::Unsupported(text),
        Some(StatusCode::UNAUTHORIZED) => Failure::Unauthorized(text),
        Some(StatusCode::FORBIDDEN) => Failure::Withheld(text),
        Some(StatusCode::NOT_FOUND) => Failure::Absent(text),
        Some(StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE) => Failure::Silent(text),
        _ => Failure::Broken(text),
    }
}

/// Explains why a request got no answer, without the client's own wrapping.
fn unsent(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(error) => chain(&**error),
        error => chain(error),
    }
}

/// Formats an error with its causes, each without the parts in which a library addresses
/// programmers.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = own(error);
    for cause in causes(error).skip(1) {
        let words = own(cause);
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

fn own(error: &(dyn Error + 'static)) -> String {
    let words = error.to_string();
    words
        .split(": https://docs.rs/")
        .next()
        .unwrap_or(&words)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that rustls reports for a server that was killed.
    #[test]
    fn a_failure_is_for_who_runs_the_cluster() {
        let cut = std::io::Error::other("cut off: https://docs.rs/rustls/latest/manual#eof");
        let error = kube::Error::Service(Box::new(std::io::Error::other(cut)));
        assert_eq!(unsent(&error), "cut off");
    }

    fn status(json: &str) -> Failure {
        of_status(&serde_json::from_str(json).expect("table"))
    }

    #[test]
    fn what_a_status_means() {
        let expired = [
            r#"{"code":410,"reason":"Expired","message":"too old resource version: 1 (5)"}"#,
            r#"{"code":410,"reason":"Gone"}"#,
            r#"{"code":504,"reason":"Timeout","message":"Too large resource version: 9, current: 5",
                "details":{"retryAfterSeconds":1,"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
        ];
        for json in expired {
            assert_eq!(status(json), Failure::Expired, "{json}");
        }
        let busy = status(r#"{"code":429,"message":"later","details":{"retryAfterSeconds":7}}"#);
        let text = "429 Too Many Requests: later".to_owned();
        assert_eq!(busy, Failure::Busy(Duration::from_secs(7), text));
        let long = status(r#"{"code":429,"details":{"retryAfterSeconds":100000}}"#).to_string();
        let words = "(the server asks to wait 100000 s, and is asked again after 300 s)";
        assert!(long.ends_with(words), "{long}");
        let failures = [
            (r#"{"code":422,"reason":"Invalid"}"#, "Unsupported"),
            (r#"{"code":400}"#, "Unsupported"),
            (r#"{"code":401}"#, "Unauthorized"),
            (r#"{"code":403,"reason":"Forbidden"}"#, "Withheld"),
            (r#"{"code":404}"#, "Absent"),
            (r#"{"code":429}"#, "Busy"),
            (r#"{"code":503,"details":{"retryAfterSeconds":1}}"#, "Busy"),
            (r#"{"code":503}"#, "Silent"),
            (r#"{"code":500}"#, "Broken"),
            (r#"{}"#, "Broken"),
        ];
        for (json, expected) in failures {
            let failure = format!("{:?}", status(json));
            assert!(failure.starts_with(expected), "{json}: {failure}");
        }
    }
}
