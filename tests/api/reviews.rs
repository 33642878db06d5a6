//! The server's reviews of who may read: TokenReview and SubjectAccessReview.

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{feed::Feed, server::Server};

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The rights, and the requested reviews.
#[derive(Debug, Default)]
pub struct Reviews {
    /// Names of users, by their tokens.
    pub users: Vec<(&'static str, &'static str)>,
    /// Paths that users may get.
    pub rights: Vec<(&'static str, &'static str)>,
    /// Number of token reviews.
    pub tokens: u32,
    /// Access reviews: user, verb and path.
    pub access: Vec<[String; 3]>,
}

impl Reviews {
    pub fn are_asked(request: &Request<Incoming>) -> bool {
        [TOKENS, ACCESS].contains(&request.uri().path())
    }

    fn token(&mut self, spec: &Value) -> Value {
        self.tokens += 1;
        let user = self.users.iter().find(|(token, _)| spec["token"] == *token);
        match user {
            Some((_, name)) => json!({"authenticated": true, "user": {
                "username": name, "uid": "1", "groups": ["system:authenticated"],
                "extra": {"authentication.kubernetes.io/pod-name": ["prometheus-0"]}}}),
            None => json!({"authenticated": false, "error": "invalid bearer token"}),
        }
    }

    fn access(&mut self, spec: &Value) -> Value {
        assert_eq!(spec["uid"], "1");
        assert_eq!(spec["groups"], json!(["system:authenticated"]));
        assert!(spec["extra"].is_object(), "{spec}");
        let attributes = &spec["nonResourceAttributes"];
        let asked = [&spec["user"], &attributes["verb"], &attributes["path"]];
        let asked = asked.map(|value| value.as_str().expect("text").to_owned());
        let may = |(user, path): &(&str, &str)| asked == [*user, "get", *path];
        let allowed = self.rights.iter().any(may);
        self.access.push(asked);
        json!({"allowed": allowed})
    }
}

impl Server {
    /// Answers a review.
    pub(super) async fn review(&self, request: Request<Incoming>) -> Response<Feed> {
        assert_eq!(request.method(), "POST");
        let of_tokens = request.uri().path() == TOKENS;
        let body = request.into_body().collect().await.expect("a body");
        let mut review: Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        let reviews = &mut self.script().reviews;
        review["status"] = if of_tokens {
            reviews.token(&review["spec"])
        } else {
            reviews.access(&review["spec"])
        };
        let answer = Response::builder().status(201);
        let body = Feed::of(review.to_string().into_bytes());
        answer.body(body).expect("an answer")
    }
}
