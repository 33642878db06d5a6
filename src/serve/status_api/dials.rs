//! Answers `/v1/dials`.

use hyper::StatusCode;
use net::Protocol;

use super::{StatusApi, explain::named, json, refused};
use crate::serve::http::Answer;

/// The attempts to reach endpoints that are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialsAsked {
    /// `namespace/name:port` of the ServicePort.
    pub service_port: String,
    /// The protocol of the ServicePort.
    pub protocol: Protocol,
    /// The number in an earlier answer; `None` if there is none yet.
    pub after: Option<u64>,
}

impl StatusApi {
    pub(super) fn dials(&self, query: &str) -> Answer {
        let asked = match read(query) {
            Ok(asked) => asked,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why),
        };
        match self.traffic.dials(&asked) {
            Some(Ok(found)) => json(&found),
            Some(Err(busy)) => refused(StatusCode::TOO_MANY_REQUESTS, busy),
            None => {
                let mode = self.about.mode;
                let why = format!(
                    "in {mode} mode the kernel forwards connections to endpoints: only userspace \
                     mode opens connections of its own"
                );
                refused(StatusCode::NOT_FOUND, why)
            }
        }
    }
}

/// Reads the parameters of a request.
pub(super) fn read(query: &str) -> Result<DialsAsked, String> {
    let (mut service_port, mut of, mut after) = (None, Protocol::Tcp, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "servicePort" => service_port = Some(value.into_owned()),
            "protocol" => of = named(&value)?,
            "after" => {
                let number = value.parse();
                after = Some(number.map_err(|_| "after is next of an earlier answer")?);
            }
            _ => return Err("the parameters are servicePort, protocol and after".to_owned()),
        }
    }
    Ok(DialsAsked {
        service_port: service_port.ok_or("servicePort=NAMESPACE/NAME:PORT is missing")?,
        protocol: of,
        after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_name_a_service_port() {
        let asked = |protocol, after| DialsAsked {
            service_port: "a/web:http".to_owned(),
            protocol,
            after,
        };
        for (query, expected) in [
            ("servicePort=a/web:http", Ok(asked(Protocol::Tcp, None))),
            (
                "servicePort=a%2Fweb%3Ahttp&protocol=udp&after=7",
                Ok(asked(Protocol::Udp, Some(7))),
            ),
            ("after=7", Err("servicePort=NAMESPACE/NAME:PORT is missing")),
            ("servicePort=a/web:http&after=-1", Err("next of an earlier")),
            ("servicePort=a/web:http&protocol=ip", Err("protocol is")),
            ("service=a/web", Err("the parameters are")),
        ] {
            match (read(query), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{query}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{query}: {why}"),
                (found, expected) => panic!("{query}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
