//! The status that the commands exit with, by what a server in the proxy's place answers.

use std::process::ExitCode;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

use super::ask;
use crate::cli::{Ask, Output, Question};

const DIFFERENCE: &str = r#"{"found": "missing", "object": "set a"}"#;

/// Returns an answer to `tripod diff`.
fn diff(families: &str, node: &str) -> String {
    let total = usize::from(!node.is_empty());
    format!(
        r#"{{"apiVersion": "tripod.proxy/v1", "kind": "Diff", "mode": "userspace",
            "families": [{families}], "node": {{"total": {total}, "items": [{node}]}}}}"#
    )
}

fn family(error: &str, total: usize) -> String {
    format!(
        r#"{{"family": "IPv4", "error": {error}, "differences": {{"total": {total}, "items": []}}}}"#
    )
}

/// Has `tripod diff` ask a server that answers once, with this status and body.
async fn exits_with(status: &str, body: &str) -> ExitCode {
    let name = format!("tripod-ask-{}.sock", std::process::id());
    let socket = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let asked = Ask {
        question: Question::Diff,
        output: Output::Json,
        socket: socket.clone(),
    };
    let code = ask(&asked).await;
    serving.await.unwrap();
    std::fs::remove_file(socket).unwrap();
    code
}

#[tokio::test]
async fn who_could_not_be_asked_is_no_difference() {
    let error = |why: &str| format!(r#"{{"error": "{why}"}}"#);
    let same = family("null", 0);
    for (status, body, expected) in [
        ("200 OK", diff(&same, ""), 0),
        ("200 OK", diff(&family("null", 1), ""), 1),
        ("200 OK", diff(&same, DIFFERENCE), 1),
        ("200 OK", diff(&family(r#""a lock""#, 0), ""), 2),
        // Another process knows what is to be there.
        ("200 OK", diff("", ""), 2),
        ("400 Bad Request", error("to is missing"), 1),
        ("404 Not Found", error("no such Service"), 1),
        ("429 Too Many Requests", error("try again"), 2),
        ("503 Service Unavailable", error("it is ending"), 2),
    ] {
        let found = exits_with(status, &body).await;
        assert_eq!(found, ExitCode::from(expected), "{status} {body}");
    }
}
