//! `/statusz` and `/flagz`, which Kubernetes calls z-pages (KEP-4827, KEP-4828): plain text for
//! people, JSON for clients that request it by the `Accept` header.

use std::{collections::BTreeMap, time::SystemTime};

use hyper::StatusCode;
use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use serde_json::{Value, json};

use super::http::{Answer, Asked, media_ranges};

/// The component that this program replaces.
const COMPONENT: &str = "kube-proxy";

/// Versions of the JSON form; both have the same fields here.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
}

/// The content of `/flagz` and `/statusz`.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) started: SystemTime,
    pub(super) paths: Vec<&'static str>,
    pub(super) flags: BTreeMap<String, String>,
    /// Lines about the mode that runs.
    pub(super) remarks: Vec<String>,
}

impl Pages {
    pub(super) fn statusz(&self, asked: Asked<'_>) -> Answer {
        let version = env!("CARGO_PKG_VERSION");
        let up = self.started.elapsed().unwrap_or_default().as_secs();
        let started = Timestamp::try_from(self.started).unwrap_or(Timestamp::UNIX_EPOCH);
        page(asked, "Statusz", |form| match form {
            Form::Text => {
                let (h, m, s) = (up / 3600, up / 60 % 60, up % 60);
                let date =
                    strtime::format("%a %b %e %H:%M:%S UTC %Y", &started.to_zoned(TimeZone::UTC));
                Answer::text(format!(
                    "{}\nStarted: {}\nUp: {h} hr {m:02} min {s:02} sec\nBinary version: {version}\nPaths: {}\n{}\n",
                    heading("statusz"),
                    date.unwrap_or_default(),
                    self.paths.join(" "),
                    self.remarks.join("\n"),
                ))
            }
            Form::Json(_) => object(
                form,
                "Statusz",
                json!({
                    "startTime": started.round(jiff::Unit::Second).unwrap_or(started).to_string(),
                    "uptimeSeconds": up,
                    "binaryVersion": version,
                    "paths": self.paths,
                }),
            ),
        })
    }

    pub(super) fn flagz(&self, asked: Asked<'_>) -> Answer {
        page(asked, "Flagz", |form| match form {
            Form::Text => {
                let mut text = heading("flagz");
                for (name, value) in &self.flags {
                    text.push_str(&format!("{name}={value}\n"));
                }
                Answer::text(text)
            }
            Form::Json(_) => object(form, "Flagz", json!({ "flags": self.flags })),
        })
    }
}

fn heading(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, \
         has no formatting compatibility guarantees and is for debugging purposes only.\n"
    )
}

fn page(asked: Asked<'_>, kind: &str, make: impl FnOnce(Form) -> Answer) -> Answer {
    match accepted(asked.accept, kind) {
        Some(form) => make(form),
        None => Answer::text(format!(
            "this page is served as text/plain, or as \
             application/json;v={};g=config.k8s.io;as={kind}\n",
            VERSIONS[0]
        ))
        .with_status(StatusCode::NOT_ACCEPTABLE),
    }
}

fn object(form: Form, kind: &str, mut fields: Value) -> Answer {
    if let (Form::Json(version), Some(fields)) = (form, fields.as_object_mut()) {
        fields.insert("kind".to_owned(), kind.into());
        fields.insert(
            "apiVersion".to_owned(),
            format!("config.k8s.io/{version}").into(),
        );
        fields.insert("metadata".to_owned(), json!({ "name": COMPONENT }));
    }
    Answer::json(fields.to_string())
}

/// Returns the first form in an `Accept` header (RFC 9110, section 12.5.1) in which the page of
/// `kind` is available. Weights are ignored.
fn accepted(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    media_ranges(accept).find_map(|(media, parameters)| match media {
        "*/*" | "text/*" | "text/plain" => Some(Form::Text),
        "application/json" => {
            let ours = parameters.get("g") == Some(&"config.k8s.io")
                && parameters.get("as") == Some(&kind);
            let version = VERSIONS
                .into_iter()
                .find(|v| parameters.get("v") == Some(v));
            version.filter(|_| ours).map(Form::Json)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        Pages {
            started: SystemTime::UNIX_EPOCH,
            paths: vec!["/metrics", "/statusz"],
            flags: BTreeMap::from([
                ("v".to_owned(), "2".to_owned()),
                ("proxy-mode".to_owned(), "ipvs".to_owned()),
            ]),
            remarks: vec!["Proxy mode: iptables".to_owned()],
        }
    }

    fn asked(accept: &str) -> Asked<'_> {
        Asked {
            accept,
            ..Asked::default()
        }
    }

    #[test]
    fn text_is_kube_proxys() {
        let text = String::from_utf8(pages().statusz(asked("")).body).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["", "kube-proxy statusz"]);
        assert!(lines[2].starts_with("Warning: This endpoint is not meant"));
        assert_eq!(lines[3..5], ["", "Started: Thu Jan  1 00:00:00 UTC 1970"]);
        assert!(lines[5].starts_with("Up: ") && lines[5].ends_with(" sec"));
        assert!(lines[6].starts_with("Binary version: "));
        assert_eq!(
            lines[7..],
            ["Paths: /metrics /statusz", "Proxy mode: iptables"]
        );

        let text = String::from_utf8(pages().flagz(asked("text/plain")).body).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "kube-proxy flagz");
        assert_eq!(lines[3..], ["proxy-mode=ipvs", "v=2"]);
    }

    #[test]
    fn json_is_versioned() {
        let accept = asked("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz");
        let answer = pages().flagz(accept);
        assert_eq!(answer.kind, "application/json");
        let object: Value = serde_json::from_slice(&answer.body).unwrap();
        let expected = json!({
            "kind": "Flagz",
            "apiVersion": "config.k8s.io/v1alpha1",
            "metadata": {"name": "kube-proxy"},
            "flags": {"proxy-mode": "ipvs", "v": "2"},
        });
        assert_eq!(object, expected);
        let accept = asked("application/json;v=v1beta1;g=config.k8s.io;as=Statusz");
        let object: Value = serde_json::from_slice(&pages().statusz(accept).body).unwrap();
        assert_eq!(object["startTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_form_is_what_the_client_accepts() {
        let json = Some(Form::Json("v1beta1"));
        for (accept, form) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/html, text/*;q=0.8", Some(Form::Text)),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                json,
            ),
            (
                "image/png, application/json; as=Statusz; g=config.k8s.io; v=v1beta1",
                json,
            ),
            ("application/json", None),
            ("application/json;v=v9;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("image/png", None),
        ] {
            assert_eq!(accepted(accept, "Statusz"), form, "{accept}");
        }
        let answer = pages().statusz(asked("image/png"));
        assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);
    }
}
