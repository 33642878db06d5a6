//! `/metrics`, in the text format of Prometheus or in OpenMetrics 1.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), whichever is requested. Neither has
//! exemplars. With native histograms also in the [protobuf](protobuf) format, the only one that has
//! them.

use std::collections::{BTreeMap, BTreeSet};

use hyper::StatusCode;
use prometheus::{
    Registry, TextEncoder,
    proto::{MetricFamily, MetricType},
};

use super::{
    http::{Answer, media_ranges},
    protobuf,
};
use crate::native_histograms;

/// The media type of OpenMetrics, and the one version of it that is served.
const MEDIA_TYPE: &str = "application/openmetrics-text";
const VERSION: &str = "1.0.0";

/// Returns the current metrics in the format that `accept`, an `Accept` header, requests.
pub(super) fn answer(registry: &Registry, accept: &str) -> Answer {
    let families = registry.gather();
    if native_histograms::is_enabled() && is_protobuf_preferred(accept) {
        return Answer::protobuf(protobuf::encode(&families));
    }
    let made = if is_preferred(accept) {
        encode(&families).map(Answer::openmetrics)
    } else {
        samples(&families).map(Answer::metrics)
    };
    made.unwrap_or_else(|error| {
        Answer::text(format!("cannot write metrics: {error}\n"))
            .with_status(StatusCode::INTERNAL_SERVER_ERROR)
    })
}

/// Returns whether `accept` gives the protobuf format no less weight than text.
fn is_protobuf_preferred(accept: &str) -> bool {
    let ours = weight(accept, |media, parameters| {
        media.eq_ignore_ascii_case("application/vnd.google.protobuf")
            && parameters.get("encoding") == Some(&"delimited")
            && parameters.get("proto") == Some(&"io.prometheus.client.MetricFamily")
    });
    let text = [MEDIA_TYPE, "text/plain"];
    let is_text = |media: &str| text.iter().any(|text| media.eq_ignore_ascii_case(text));
    ours > 0.0 && ours >= weight(accept, |media, _| is_text(media))
}

/// Returns whether `accept` gives OpenMetrics no less weight than plain text (RFC 9110, section
/// 12.4.2). Only clients that name OpenMetrics get it: browsers accept everything.
fn is_preferred(accept: &str) -> bool {
    let ours = weight(accept, |media, parameters| {
        let version = parameters.get("version").map(|text| text.trim_matches('"'));
        media.eq_ignore_ascii_case(MEDIA_TYPE) && version.is_none_or(|it| it == VERSION)
    });
    let is_text = |media: &str| media.eq_ignore_ascii_case("text/plain");
    ours > 0.0 && ours >= weight(accept, |media, _| is_text(media))
}

/// Returns the largest weight of the ranges in `accept` for which `is` returns true; 0 if there is
/// none.
fn weight(accept: &str, is: impl Fn(&str, &BTreeMap<&str, &str>) -> bool) -> f32 {
    let ranges = media_ranges(accept).filter(|(media, parameters)| is(media, parameters));
    let weights = ranges.map(|(_, parameters)| match parameters.get("q") {
        Some(weight) => weight.parse().unwrap_or(0.0),
        None => 1.0,
    });
    weights.fold(0.0, f32::max)
}

/// Returns `families` in Prometheus' text format, with infinity as Go writes it.
fn samples(families: &[MetricFamily]) -> prometheus::Result<String> {
    let text = TextEncoder::new().encode_to_string(families)?;
    Ok(text.replace(" inf\n", " +Inf\n"))
}

/// Returns `families` in OpenMetrics. The library writes the samples, which are the same in both
/// formats; only the lines above them and the end differ.
fn encode(families: &[MetricFamily]) -> prometheus::Result<String> {
    let names: BTreeSet<&str> = families.iter().map(MetricFamily::name).collect();
    let mut text = String::new();
    for family in families {
        let (name, kind) = head(family, &names);
        let samples = samples(std::slice::from_ref(family))?;
        for line in samples.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let help = help.strip_prefix(family.name()).unwrap_or_default();
                text += &format!("# HELP {name}{}\n", help.replace('"', "\\\""));
            } else if line.starts_with("# TYPE ") {
                text += &format!("# TYPE {name} {kind}\n");
            } else {
                text += line;
                text.push('\n');
            }
        }
    }
    text += "# EOF\n";
    Ok(text)
}

/// Returns the name and the type of a family. A counter's name is that of its samples without
/// `_total`. If another family has that name, such as a gauge of open connections next to a counter
/// of all that were opened, the counter's type is unknown, since no two families may have the same
/// name.
fn head<'a>(family: &'a MetricFamily, names: &BTreeSet<&str>) -> (&'a str, &'static str) {
    let name = family.name();
    let of_counter = name.strip_suffix("_total");
    match family.get_field_type() {
        MetricType::COUNTER => match of_counter.filter(|name| !names.contains(name)) {
            Some(name) => (name, "counter"),
            None => (name, "unknown"),
        },
        MetricType::GAUGE => (name, "gauge"),
        MetricType::HISTOGRAM => (name, "histogram"),
        MetricType::SUMMARY => (name, "summary"),
        MetricType::UNTYPED => (name, "unknown"),
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts};

    use super::*;

    fn registry() -> Registry {
        let registry = Registry::new();
        let requests = Opts::new("requests_total", "Requests, by \"code\".");
        let requests = IntCounterVec::new(requests, &["code"]).unwrap();
        requests.with_label_values(&["a\"b"]).inc_by(7);
        let open = IntGauge::new("open", "Open now.").unwrap();
        let opened = IntCounter::new("open_total", "Ever opened.").unwrap();
        let took = HistogramOpts::new("took_seconds", "Time.").buckets(vec![0.5, 2.0]);
        let took = Histogram::with_opts(took).unwrap();
        took.observe(1.0);
        let left = Gauge::new("left_seconds", "Time left.").unwrap();
        left.set(f64::INFINITY);
        registry.register(Box::new(left)).unwrap();
        registry.register(Box::new(requests)).unwrap();
        registry.register(Box::new(open)).unwrap();
        registry.register(Box::new(opened)).unwrap();
        registry.register(Box::new(took)).unwrap();
        registry
    }

    #[test]
    fn protobuf_is_for_clients_that_prefer_it() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                        encoding=delimited";
        for (accept, preferred) in [
            (protobuf.to_owned(), true),
            (
                format!("{protobuf};q=0.6,application/openmetrics-text;q=0.5,*/*;q=0.2"),
                true,
            ),
            (format!("{protobuf};q=0.4,text/plain;q=0.5"), false),
            (protobuf.replace("delimited", "text"), false),
            ("*/*".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_protobuf_preferred(&accept), preferred, "{accept}");
        }
    }

    #[test]
    fn counters_lose_their_suffix_above_their_samples() {
        let answer = answer(&registry(), "application/openmetrics-text; version=1.0.0");
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(answer.kind, kind);
        let expected = "\
# HELP left_seconds Time left.
# TYPE left_seconds gauge
left_seconds +Inf
# HELP open Open now.
# TYPE open gauge
open 0
# HELP open_total Ever opened.
# TYPE open_total unknown
open_total 0
# HELP requests Requests, by \\\"code\\\".
# TYPE requests counter
requests_total{code=\"a\\\"b\"} 7
# HELP took_seconds Time.
# TYPE took_seconds histogram
took_seconds_bucket{le=\"0.5\"} 0
took_seconds_bucket{le=\"2\"} 1
took_seconds_bucket{le=\"+Inf\"} 1
took_seconds_sum 1
took_seconds_count 1
# EOF
";
        assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
    }

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for accept in [
            prometheus,
            "application/openmetrics-text",
            "text/plain;q=0.5, Application/OpenMetrics-Text; version=\"1.0.0\"; q=0.5",
        ] {
            assert!(is_preferred(accept), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.4,text/plain;version=0.0.4;q=0.5",
        ] {
            assert!(!is_preferred(accept), "{accept}");
        }
        let plain = "text/plain; version=0.0.4; charset=utf-8";
        let answer = answer(&registry(), "");
        assert_eq!(answer.kind, plain);
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains("\nleft_seconds +Inf\n"), "{text}");
    }
}
