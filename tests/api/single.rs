//! Objects that are created, read, changed and deleted one by one, and lists of one namespace.

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{
    cluster::{DAEMON_SETS, NAMESPACES, NODES, PODS, SERVICES, SLICES, Selector},
    feed::Feed,
    server::{Server, status},
};

/// Returns whether the request is of this kind, and not for a whole collection.
pub fn is_asked<T>(request: &Request<T>) -> bool {
    let path = request.uri().path();
    let node = path.strip_prefix(NODES);
    let is_node = node.is_some_and(|name| name.starts_with('/'));
    request.method() != Method::GET || path.contains("/namespaces/") || is_node
}

/// The target of a request, parsed from its path.
struct Place {
    collection: &'static str,
    namespace: String,
    name: Option<String>,
}

impl Place {
    fn of(path: &str) -> Option<Place> {
        let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let base = if words.first() == Some(&"api") { 2 } else { 3 };
        let (base, rest) = words.split_at_checked(base)?;
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural, name @ ..] => (*namespace, *plural, name),
            [plural, name @ ..] => ("", *plural, name),
            [] => return None,
        };
        let path = format!("/{}/{plural}", base.join("/"));
        let known = [DAEMON_SETS, NAMESPACES, NODES, PODS, SERVICES, SLICES];
        Some(Place {
            collection: known.into_iter().find(|collection| *collection == path)?,
            namespace: namespace.to_owned(),
            name: name.first().map(|name| (*name).to_owned()),
        })
    }
}

impl Server {
    /// Answers such a request.
    pub(super) async fn single(&self, request: Request<Incoming>) -> Response<Feed> {
        let verb = match *request.method() {
            Method::POST => "create",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        if let Some(refused) = self.script().refusal(verb, &request) {
            return refused;
        }
        let Some(place) = Place::of(request.uri().path()) else {
            return status(404, "NotFound", None);
        };
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.expect("a body");
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        match (verb, &place.name) {
            ("create", None) => self.create(&place, body),
            ("patch", Some(name)) => self.patch(&place, name, &body),
            ("delete", Some(name)) => self.remove(&place, name),
            ("get", Some(name)) => self.read(&place, name),
            ("get", None) => self.list(&place, &query),
            _ => status(405, "MethodNotAllowed", None),
        }
    }

    fn create(&self, place: &Place, mut object: Value) -> Response<Feed> {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let exists = |name: &str| {
            self.inspect(|cluster| {
                let found = cluster.get(place.collection, &place.namespace, name);
                found.is_some()
            })
        };
        if exists(name) {
            return status(409, "AlreadyExists", None);
        }
        if !place.namespace.is_empty() {
            let of = |namespace: &str| {
                self.inspect(|cluster| cluster.get(NAMESPACES, "", namespace).is_some())
            };
            if !of(&place.namespace) {
                return status(404, "NotFound", None);
            }
            object["metadata"]["namespace"] = json!(place.namespace);
        }
        let admit = self.script().admit;
        let version = self.inspect(|cluster| cluster.version);
        if let Some(admit) = admit {
            admit(&mut object, version);
        }
        self.change(|cluster| cluster.put(object.clone()));
        answer(201, &object)
    }

    fn patch(&self, place: &Place, name: &str, patch: &Value) -> Response<Feed> {
        let found = self.find(place, name);
        let Some(mut object) = found else {
            return status(404, "NotFound", None);
        };
        merge(&mut object, patch);
        self.change(|cluster| cluster.put(object.clone()));
        answer(200, &object)
    }

    fn remove(&self, place: &Place, name: &str) -> Response<Feed> {
        let Some(object) = self.find(place, name) else {
            return status(404, "NotFound", None);
        };
        self.change(|cluster| cluster.delete(&object));
        answer(200, &object)
    }

    fn read(&self, place: &Place, name: &str) -> Response<Feed> {
        match self.find(place, name) {
            Some(object) => answer(200, &object),
            None => status(404, "NotFound", None),
        }
    }

    fn list(&self, place: &Place, query: &str) -> Response<Feed> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let mut labels = pairs.filter(|(key, _)| *key == "labelSelector");
        let labels = labels.next();
        let labels = labels.map(|(_, value)| value.replace("%3D", "=").replace("%2F", "/"));
        let selector = Selector::parse(labels.as_deref(), None);
        let mut items = self.inspect(|cluster| cluster.list(place.collection, &selector));
        items.retain(|item| item["metadata"]["namespace"] == *place.namespace);
        answer(
            200,
            &json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}),
        )
    }

    fn find(&self, place: &Place, name: &str) -> Option<Value> {
        self.inspect(|cluster| {
            let found = cluster.get(place.collection, &place.namespace, name);
            found.cloned()
        })
    }
}

fn answer(code: u16, object: &Value) -> Response<Feed> {
    let body = Feed::of(object.to_string().into_bytes());
    let answer = Response::builder().status(code);
    answer.body(body).expect("an answer")
}

/// Applies a merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().expect("just made").remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}
