//! Metrics in Prometheus' protobuf format, the only one with native histograms: messages
//! `io.prometheus.client.MetricFamily`, each after its length
//! (<https://github.com/prometheus/client_model>, `metrics.proto`).

use prometheus::proto::{Histogram, Metric, MetricFamily, MetricType};

use crate::native_histograms::{self, NativeHistogram, ZERO_THRESHOLD};

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    /// Writes a number of type `sint32` or `sint64`.
    fn signed(&mut self, field: u32, value: i64) {
        self.number(field, zigzag(value));
    }

    fn double(&mut self, field: u32, value: f64) {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        write(&mut message);
        self.bytes(field, &message.0);
    }
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Returns `families`, with the native histograms of this process.
pub(super) fn encode(families: &[MetricFamily]) -> Vec<u8> {
    let mut all = Message::default();
    for family in families {
        let mut message = Message::default();
        message.bytes(1, family.name().as_bytes());
        message.bytes(2, family.help().as_bytes());
        let kind = family.get_field_type();
        message.number(
            3,
            match kind {
                MetricType::COUNTER => 0,
                MetricType::GAUGE => 1,
                MetricType::SUMMARY => 2,
                MetricType::UNTYPED => 3,
                MetricType::HISTOGRAM => 4,
            },
        );
        for one in family.get_metric() {
            message.message(4, |message| metric(message, family.name(), kind, one));
        }
        all.varint(message.0.len() as u64);
        all.0.extend(message.0);
    }
    all.0
}

fn metric(message: &mut Message, name: &str, kind: MetricType, metric: &Metric) {
    for label in metric.get_label() {
        message.message(1, |pair| {
            pair.bytes(1, label.name().as_bytes());
            pair.bytes(2, label.value().as_bytes());
        });
    }
    match kind {
        MetricType::GAUGE => {
            message.message(2, |gauge| gauge.double(1, metric.get_gauge().get_value()))
        }
        MetricType::COUNTER => {
            message.message(3, |counter| {
                counter.double(1, metric.get_counter().get_value())
            });
        }
        MetricType::HISTOGRAM => {
            let labels = metric.get_label().iter();
            let labels = labels.map(|label| label.value().to_owned()).collect();
            let native = native_histograms::get(name, labels);
            message.message(7, |message| {
                histogram(message, metric.get_histogram(), native.unwrap_or_default());
            });
        }
        // The registry has none.
        MetricType::SUMMARY | MetricType::UNTYPED => {}
    }
}

/// Writes the classic buckets, and the native ones. Count and sum are those of the native ones, which
/// must be consistent.
fn histogram(message: &mut Message, classic: &Histogram, native: NativeHistogram) {
    message.number(1, native.count);
    message.double(2, native.sum);
    for bucket in classic.get_bucket() {
        message.message(3, |message| {
            message.number(1, bucket.cumulative_count());
            message.double(2, bucket.upper_bound());
        });
    }
    message.signed(5, native.schema.into());
    message.double(6, ZERO_THRESHOLD);
    message.number(7, native.zero);
    let spans = native.spans();
    // A span without buckets tells a native histogram from a classic one.
    let none = [(0, Vec::new())];
    let shown = if spans.is_empty() { &none[..] } else { &spans };
    for (offset, counts) in shown {
        message.message(12, |span| {
            span.signed(1, i64::from(*offset));
            span.number(2, counts.len() as u64);
        });
    }
    let mut deltas = Message::default();
    let mut before = 0;
    for count in spans.iter().flat_map(|(_, counts)| counts) {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        deltas.varint(zigzag(count - before));
        before = count;
    }
    if !deltas.0.is_empty() {
        message.bytes(13, &deltas.0);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntGauge, Registry};

    use super::*;

    /// Parses a message: each field with its bytes, or its number.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Result<u64, &[u8]>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => Ok(varint(&mut bytes)),
                1 => {
                    let (number, rest) = bytes.split_first_chunk::<8>().expect("a double");
                    bytes = rest;
                    Ok(u64::from_le_bytes(*number))
                }
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Err(value)
                }
                other => panic!("wire type {other}"),
            };
            found.push((key >> 3, value));
        }
        found
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a number");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if *first < 0x80 {
                break;
            }
        }
        value
    }

    fn nested(fields: &[(u64, Result<u64, &[u8]>)], field: u64) -> Vec<Vec<u8>> {
        let of = fields.iter().filter(|(number, _)| *number == field);
        of.map(|(_, value)| value.expect_err("bytes").to_vec())
            .collect()
    }

    #[test]
    fn a_histogram_has_classic_and_native_buckets() {
        let registry = Registry::new();
        let options = HistogramOpts::new("proto_test_seconds", "A test.").buckets(vec![1.0]);
        let metric = HistogramVec::new(options, &["ip_family"]).expect("a metric");
        registry.register(Box::new(metric.clone())).expect("one");
        let gauge = IntGauge::new("proto_gauge", "A gauge.").expect("a gauge");
        gauge.set(7);
        registry.register(Box::new(gauge)).expect("one");
        native_histograms::enable();
        for value in [0.5, 2.0, 2.0] {
            metric.with_label_values(&["IPv4"]).observe(value);
            native_histograms::record(&metric, &["IPv4"], value);
        }
        let encoded = encode(&registry.gather());
        let mut bytes = &encoded[..];
        let mut families = Vec::new();
        while !bytes.is_empty() {
            let length = varint(&mut bytes) as usize;
            let (family, rest) = bytes.split_at(length);
            families.push(fields(family));
            bytes = rest;
        }
        let [gauge, histogram] = &families[..] else {
            panic!("{families:?}");
        };
        assert_eq!(gauge[0], (1, Err(&b"proto_gauge"[..])));
        assert_eq!(gauge[2], (3, Ok(1)));
        let value = nested(&fields(&nested(gauge, 4)[0]), 2);
        assert_eq!(fields(&value[0]), [(1, Ok(7.0_f64.to_bits()))]);
        assert_eq!(histogram[2], (3, Ok(4)));
        let metric = &nested(histogram, 4)[0];
        let metric = fields(metric);
        let label = &nested(&metric, 1)[0];
        assert_eq!(
            fields(label),
            [(1, Err(&b"ip_family"[..])), (2, Err(&b"IPv4"[..]))]
        );
        let shown = &nested(&metric, 7)[0];
        let shown = fields(shown);
        assert_eq!(shown[..2], [(1, Ok(3)), (2, Ok(4.5_f64.to_bits()))]);
        let classic = &nested(&shown, 3)[0];
        assert_eq!(fields(classic), [(1, Ok(1)), (2, Ok(1.0_f64.to_bits()))]);
        assert!(shown.contains(&(5, Ok(6))), "schema 3 as sint32");
        let spans: Vec<_> = nested(&shown, 12);
        let spans: Vec<_> = spans.iter().map(|span| fields(span)).collect();
        // Indices -8 and 8.
        assert_eq!(
            spans,
            [[(1, Ok(15)), (2, Ok(1))], [(1, Ok(30)), (2, Ok(1))]]
        );
        // 1, and one more.
        assert_eq!(nested(&shown, 13), [[2, 2]]);
    }
}
