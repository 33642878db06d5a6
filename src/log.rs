//! The log: one line per event, on standard error.

mod limit;

use std::{
    fmt::{self, Write as _},
    io,
    str::FromStr,
    time::{Instant, SystemTime},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use self::limit::{Limit, Verdict};

/// The format of lines (`--logging-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Time, level, message, `key=value`.
    #[default]
    Text,
    /// An object with the keys of Kubernetes' JSON log: `ts` (milliseconds since 1970), `msg`, `v`
    /// (verbosity), `caller`, and the fields of the event; in addition `level`.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(format!("{text:?} is not a log format; use text or json")),
        }
    }
}

/// Starts logging. `verbosity` is kube-proxy's `--v`. Must be called only once.
pub fn start(verbosity: u8, format: Format) {
    subscriber(verbosity, format, io::stderr).init();
}

fn subscriber<W>(verbosity: u8, format: Format, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines {
            format,
            // Whoever requests more verbosity wants all of it.
            limit: (verbosity < 2).then(Mutex::default),
        })
        .with_writer(writer);
    tracing_subscriber::registry()
        .with(filter(verbosity))
        .with(lines)
}

/// The crates whose events are Tripod's own.
const OWN: [&str; 5] = [
    env!("CARGO_CRATE_NAME"),
    "ipvs",
    "netlink",
    "nftables",
    "xtables",
];

fn filter(verbosity: u8) -> Targets {
    let own = match verbosity {
        0 | 1 => LevelFilter::INFO,
        2 | 3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // Below warnings, libraries log their inner workings, and at the most verbose level all the
    // data that they send and receive.
    let others = match verbosity {
        0..=5 => LevelFilter::WARN,
        6 | 7 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // kube's client warns at each connection whose certificate is not verified, which Tripod logs
    // once, when it reads the credentials; and it quotes answers that it cannot parse.
    let client = match others {
        LevelFilter::WARN => LevelFilter::ERROR,
        others => others,
    };
    Targets::new()
        .with_targets(OWN.map(|target| (target, own)))
        .with_target("kube_client", client)
        .with_default(others)
}

/// Writes each event as one line, whatever its content.
struct Lines {
    format: Format,
    /// `None`: all events are written.
    limit: Option<Mutex<Limit>>,
}

impl Lines {
    /// Returns the text to append to the message; `None` if the event is left out.
    fn judge(&self, event: &Event<'_>) -> Option<String> {
        let Some(limit) = &self.limit else {
            return Some(String::new());
        };
        let mut line = TextLine::default();
        event.record(&mut line);
        let text = format!("{}{}", line.message, line.fields);
        let place = event.metadata().callsite();
        match limit.lock().judge(place, &text, Instant::now()) {
            Verdict::Log => Some(String::new()),
            Verdict::LogWith(note) => Some(format!(" ({note})")),
            Verdict::LeaveOut => None,
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = SystemTime::now();
        let Some(note) = self.judge(event) else {
            return Ok(());
        };
        match self.format {
            Format::Text => text(&mut writer, event, &note, now),
            Format::Json => json(&mut writer, event, &note, now),
        }?;
        writer.write_char('\n')
    }
}

fn text(writer: &mut Writer<'_>, event: &Event<'_>, note: &str, now: SystemTime) -> fmt::Result {
    let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
    let level = event.metadata().level();
    write!(writer, "{now:.6} {level:>5} ")?;
    let mut line = TextLine::default();
    event.record(&mut line);
    escaped(writer, &line.message)?;
    escaped(writer, &line.fields)?;
    writer.write_str(note)
}

/// Writes `text` with control characters escaped: they would begin a line, or control the reader's
/// terminal.
fn escaped(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            c if c.is_control() => write!(writer, "{}", c.escape_default())?,
            c => writer.write_char(c)?,
        }
    }
    Ok(())
}

#[derive(Default)]
struct TextLine {
    message: String,
    fields: String,
}

impl Visit for TextLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

fn json(writer: &mut Writer<'_>, event: &Event<'_>, note: &str, now: SystemTime) -> fmt::Result {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let metadata = event.metadata();
    let mut line = JsonLine(Map::new());
    line.0
        .insert("ts".to_owned(), json!(since.as_micros() as f64 / 1e3));
    let (level, verbosity) = match *metadata.level() {
        Level::ERROR => ("error", None),
        Level::WARN => ("warning", Some(0)),
        Level::INFO => ("info", Some(0)),
        Level::DEBUG => ("debug", Some(2)),
        Level::TRACE => ("trace", Some(4)),
    };
    line.0.insert("level".to_owned(), json!(level));
    if let Some(verbosity) = verbosity {
        line.0.insert("v".to_owned(), json!(verbosity));
    }
    if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
        line.0
            .insert("caller".to_owned(), json!(format!("{file}:{number}")));
    }
    event.record(&mut line);
    if let Some(Value::String(message)) = line.0.get_mut("msg") {
        message.push_str(note);
    }
    write!(writer, "{}", Value::Object(line.0))
}

struct JsonLine(Map<String, Value>);

impl JsonLine {
    fn put(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => "msg",
            name => name,
        };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for JsonLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

/// Captures log output, for tests.
#[cfg(test)]
mod captured {
    use testing::Log;

    use super::*;

    pub(super) fn lines_as(verbosity: u8, format: Format, events: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = subscriber(verbosity, format, move || writer.clone());
        tracing::subscriber::with_default(subscriber, events);
        log.lines()
    }

    /// Runs `events`, and captures the lines that it logs.
    pub(crate) fn lines(verbosity: u8, events: impl FnOnce()) -> Vec<String> {
        lines_as(verbosity, Format::Text, events)
    }
}

#[cfg(test)]
pub(crate) use captured::lines;

#[cfg(test)]
mod tests {
    use super::{captured::lines_as, *};

    #[test]
    fn an_event_is_one_line() {
        let evil = "a\nb\u{1b}[31m";
        let text = lines_as(0, Format::Text, || {
            tracing::warn!(service = %"ns/web", count = 3, "bad name {evil}");
            tracing::info!(name = evil, "next");
        });
        assert_eq!(text.len(), 2, "{text:?}");
        let (time, rest) = text[0].split_once(' ').unwrap();
        assert!(time.parse::<Timestamp>().is_ok() && time.ends_with('Z'));
        assert_eq!(
            rest,
            " WARN bad name a\\nb\\u{1b}[31m service=ns/web count=3"
        );
        assert!(!text[1].contains('\u{1b}'), "{}", text[1]);

        let json = lines_as(0, Format::Json, || {
            tracing::warn!(service = %"ns/web", count = 3, "bad name {evil}");
            tracing::error!("worse");
        });
        assert_eq!(json.len(), 2, "{json:?}");
        let first: Value = serde_json::from_str(&json[0]).unwrap();
        assert_eq!(first["msg"], format!("bad name {evil}"));
        assert_eq!(first["service"], "ns/web");
        assert_eq!((&first["count"], &first["v"]), (&json!(3), &json!(0)));
        assert_eq!(first["level"], "warning");
        assert!(first["caller"].as_str().unwrap().starts_with("src/log.rs:"));
        let age = Timestamp::now().as_millisecond() as f64 - first["ts"].as_f64().unwrap();
        assert!((-1.0..60_000.0).contains(&age), "{age} ms ago");
        let second: Value = serde_json::from_str(&json[1]).unwrap();
        assert_eq!(second.get("v"), None);
    }

    #[test]
    fn an_object_that_changes_all_the_time_does_not_fill_the_log() {
        let events = || {
            for n in 0..450 {
                tracing::warn!("Service ns/storm: value {n} cannot be used");
                tracing::info!(service = %"ns/storm:http", "applied again");
            }
            tracing::warn!("Service ns/quiet: no lc");
        };
        for format in [Format::Text, Format::Json] {
            let log = lines_as(0, format, events);
            assert_eq!(log.len(), 11, "{log:#?}");
            assert!(log[10].contains("ns/quiet"), "{log:#?}");
            assert!(
                log[9].contains("similar messages are logged at most every 20 s"),
                "{log:#?}"
            );
        }
        assert_eq!(lines_as(2, Format::Text, events).len(), 901);
    }

    /// The answer may be anything, and of any length.
    #[test]
    fn answers_that_kubes_client_cannot_read_are_not_quoted() {
        let quote = || tracing::warn!(target: "kube_client::client", "{{\"a\":1}}, missing field");
        assert_eq!(lines_as(0, Format::Text, quote).len(), 0);
        assert_eq!(lines_as(6, Format::Text, quote).len(), 1);
    }

    #[test]
    fn verbosity_lets_more_through() {
        for (verbosity, own, others) in [(0, 2, 1), (2, 3, 1), (4, 4, 1), (6, 4, 2), (10, 4, 3)] {
            let count = |target: &str| {
                let events = || match target {
                    "tripod" => {
                        tracing::warn!(target: "tripod::a", "");
                        tracing::info!(target: "tripod::a", "");
                        tracing::debug!(target: "tripod::a", "");
                        tracing::trace!(target: "tripod::a", "");
                    }
                    _ => {
                        tracing::warn!(target: "hyper::a", "");
                        tracing::info!(target: "hyper::a", "");
                        tracing::debug!(target: "hyper::a", "");
                        tracing::trace!(target: "hyper::a", "");
                    }
                };
                lines_as(verbosity, Format::Text, events).len()
            };
            assert_eq!(
                (count("tripod"), count("hyper")),
                (own, others),
                "--v={verbosity}"
            );
        }
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("text".parse(), Ok(Format::Text));
        assert_eq!("json".parse(), Ok(Format::Json));
        assert!(
            "xml"
                .parse::<Format>()
                .unwrap_err()
                .contains("text or json")
        );
    }
}
