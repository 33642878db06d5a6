//! A server answers the reviews in memory; Tokio's clock runs ahead.

use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{advance, sleep};

use super::*;

/// How long the server takes for an answer.
const SLOW: Duration = Duration::from_millis(100);

/// Counts the requests to the server, and says how it answers.
#[derive(Default)]
struct Server {
    token_reviews: AtomicU32,
    access_reviews: AtomicU32,
    /// Reviews that are being answered, and the most that ever were.
    at_once: AtomicU32,
    most_at_once: AtomicU32,
    /// Status of its answers; 0: it answers reviews.
    fails: AtomicU32,
}

impl Server {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let now = self.at_once.fetch_add(1, SeqCst) + 1;
        self.most_at_once.fetch_max(now, SeqCst);
        sleep(SLOW).await;
        self.at_once.fetch_sub(1, SeqCst);
        let path = request.uri().path().to_owned();
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&bytes).unwrap();
        let spec = &review["spec"];
        let (count, status) = match path.as_str() {
            "/apis/authentication.k8s.io/v1/tokenreviews" => {
                let token = spec["token"].as_str().unwrap();
                let known = !token.starts_with("unknown");
                let user = known.then(|| json!({"username": token, "groups": ["all"]}));
                let status = json!({"authenticated": known, "user": user});
                (&self.token_reviews, status)
            }
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                assert_eq!(spec["groups"], json!(["all"]));
                let may = json!({"path": "/metrics", "verb": "get"});
                let allowed = spec["user"] == "reader" && spec["nonResourceAttributes"] == may;
                (&self.access_reviews, json!({"allowed": allowed}))
            }
            other => panic!("{other}"),
        };
        count.fetch_add(1, SeqCst);
        let (code, body) = match self.fails.load(SeqCst) {
            0 => {
                review["status"] = status;
                (201, review)
            }
            code => (
                u16::try_from(code).unwrap(),
                json!({"status": "Failure", "message": "scripted", "code": code}),
            ),
        };
        Response::builder()
            .status(StatusCode::from_u16(code).unwrap())
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap()
    }

    fn asked(&self) -> (u32, u32) {
        (
            self.token_reviews.load(SeqCst),
            self.access_reviews.load(SeqCst),
        )
    }
}

fn authorizer() -> (Arc<Server>, Arc<Authorizer>) {
    let server = Arc::new(Server::default());
    let answering = Arc::clone(&server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&answering);
        async move { Ok::<_, tower::BoxError>(server.answer(request).await) }
    });
    let access = Access::fixed(kube::Client::new(service, "default"));
    (server, Arc::new(Authorizer::new(&access)))
}

async fn read(authorizer: &Authorizer, token: &str) -> Result<(), Refusal> {
    authorizer.authorize(Some(token), "get", "/metrics").await
}

#[tokio::test(start_paused = true)]
async fn the_api_server_says_who_may() {
    let (server, authorizer) = authorizer();
    for token in [None, Some("")] {
        let refused = authorizer.authorize(token, "get", "/metrics").await;
        assert_eq!(refused, Err(Refusal::Unknown));
    }
    assert_eq!(server.asked(), (0, 0), "without a token nothing is asked");
    assert_eq!(read(&authorizer, "unknown").await, Err(Refusal::Unknown));
    assert_eq!(read(&authorizer, "reader").await, Ok(()));
    for (token, verb, path) in [
        ("other", "get", "/metrics"),
        ("reader", "get", "/v1/status"),
        ("reader", "post", "/metrics"),
    ] {
        let refused = authorizer.authorize(Some(token), verb, path).await;
        let text = refused.unwrap_err().to_string();
        assert!(
            text.starts_with(&format!("{token} may not {verb} {path}")),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn answers_count_for_a_bounded_time() {
    let (server, authorizer) = authorizer();
    for _ in 0..5 {
        let _ = read(&authorizer, "reader").await;
        let _ = read(&authorizer, "other").await;
        let _ = read(&authorizer, "unknown").await;
    }
    assert_eq!(server.asked(), (3, 2));
    advance(REFUSED).await;
    let _ = read(&authorizer, "other").await;
    let _ = read(&authorizer, "unknown").await;
    let _ = read(&authorizer, "reader").await;
    assert_eq!(server.asked(), (4, 3), "refusals ended");
    advance(KNOWN - REFUSED).await;
    let _ = read(&authorizer, "reader").await;
    assert_eq!(server.asked(), (5, 3), "whose token it is, is asked again");
    advance(ALLOWED - KNOWN).await;
    let _ = read(&authorizer, "reader").await;
    assert_eq!(server.asked(), (6, 4));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nobody_may() {
    let (server, authorizer) = authorizer();
    assert_eq!(read(&authorizer, "reader").await, Ok(()));
    server.fails.store(500, SeqCst);
    let Err(Refusal::Unanswered(_)) = read(&authorizer, "other").await else {
        panic!("there was an answer");
    };
    assert_eq!(read(&authorizer, "reader").await, Ok(()), "that is known");
    server.fails.store(403, SeqCst);
    let refused = read(&authorizer, "other").await.unwrap_err().to_string();
    assert!(refused.contains("system:auth-delegator"), "{refused}");
    // Only answers are kept, not failures.
    server.fails.store(0, SeqCst);
    let Err(Refusal::Forbidden { .. }) = read(&authorizer, "other").await else {
        panic!("it is known now");
    };
    server.fails.store(503, SeqCst);
    advance(KNOWN).await;
    let Err(Refusal::Unanswered(_)) = read(&authorizer, "reader").await else {
        panic!("the answer was too old");
    };
}

#[tokio::test(start_paused = true)]
async fn questions_are_bounded_and_asked_once() {
    let (server, authorizer) = authorizer();
    let many = |token: fn(u32) -> String| {
        let tasks = (0..40).map(|n| {
            let authorizer = Arc::clone(&authorizer);
            tokio::spawn(async move { read(&authorizer, &token(n)).await })
        });
        tasks.collect::<Vec<_>>()
    };
    for task in many(|_| "reader".to_owned()) {
        assert_eq!(task.await.unwrap(), Ok(()));
    }
    // No more than can be under way at once ask the same.
    let most = u32::try_from(AT_ONCE).unwrap();
    let (tokens, rights) = server.asked();
    assert!(tokens <= most && rights <= most, "{tokens} {rights}");
    let before = tokens;
    for task in many(|n| format!("unknown-{n}")) {
        assert_eq!(task.await.unwrap(), Err(Refusal::Unknown));
    }
    assert_eq!(server.asked().0, before + 40);
    assert_eq!(server.most_at_once.load(SeqCst), most);
}

/// Unauthenticated clients keep neither Services from being followed nor the API server busy.
#[tokio::test(start_paused = true)]
async fn questions_have_a_rate_of_their_own() {
    let (_, authorizer) = authorizer();
    let begun = tokio::time::Instant::now();
    let tasks = (0..BURST + 100).map(|n| {
        let authorizer = Arc::clone(&authorizer);
        tokio::spawn(async move { read(&authorizer, &format!("unknown-{n}")).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), Err(Refusal::Unknown));
    }
    let least = Duration::from_secs_f32(99.0 / RATE);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
}
