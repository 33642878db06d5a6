//! A strict parser of the Prometheus text format (version 0.0.4), for tests: independent of the
//! library that writes it, and unforgiving.

use std::collections::BTreeMap;

/// A metric with all its series.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) kind: String,
    pub(super) samples: Vec<Sample>,
}

/// A line of the scrape with a value.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// Parses a whole scrape.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Metric>, String> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut current = String::new();
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, _) = help.split_once(' ').ok_or_else(|| wrong("no help"))?;
            if metrics.contains_key(name) {
                return Err(wrong("a metric comes twice"));
            }
            check_name(name).map_err(|what| wrong(&what))?;
            current = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').ok_or_else(|| wrong("no type"))?;
            if name != current || metrics.contains_key(name) {
                return Err(wrong("a type that belongs elsewhere"));
            }
            if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind) {
                return Err(wrong("an unknown type"));
            }
            let kind = kind.to_owned();
            let samples = Vec::new();
            metrics.insert(current.clone(), Metric { kind, samples });
        } else if line.starts_with('#') || line.is_empty() {
            return Err(wrong("nothing that belongs here"));
        } else {
            let sample = sample(line).map_err(|what| wrong(&what))?;
            let metric = metrics.get_mut(&current).ok_or_else(|| wrong("no type"))?;
            let suffix = sample.name.strip_prefix(&current);
            let fits = match metric.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix.unwrap_or("?")),
                _ => suffix == Some(""),
            };
            if !fits {
                return Err(wrong("a sample of another metric"));
            }
            if metric
                .samples
                .iter()
                .any(|s| s.name == sample.name && s.labels == sample.labels)
            {
                return Err(wrong("a series comes twice"));
            }
            metric.samples.push(sample);
        }
    }
    for (name, metric) in &metrics {
        check(metric).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(metrics)
}

fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(good) {
        Err(format!("{name:?} is no name"))
    } else {
        Ok(())
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_name(name)?;
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").ok_or("a label without value")?;
            check_name(label)?;
            let (value, after) = quoted(after)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("label {label} comes twice"));
            }
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number
            .parse()
            .map_err(|_| format!("{number:?} is no number"))?,
    };
    let name = name.to_owned();
    Ok(Sample {
        name,
        labels,
        value,
    })
}

/// Returns the text up to the closing quote, and the rest after it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                _ => return Err("an unknown escape".to_owned()),
            },
            c => value.push(c),
        }
    }
    Err("a label value without end".to_owned())
}

/// Checks that a metric has everything that its type requires.
fn check(metric: &Metric) -> Result<(), String> {
    if metric.samples.is_empty() {
        return Err("it has no series".to_owned());
    }
    if metric.kind == "counter"
        && metric
            .samples
            .iter()
            .any(|s| s.value.is_nan() || s.value < 0.0)
    {
        return Err("a counter below zero".to_owned());
    }
    if metric.kind != "histogram" {
        return Ok(());
    }
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    for sample in &metric.samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for (labels, samples) in series {
        let (mut last_bound, mut last_count) = (f64::NEG_INFINITY, 0.0);
        let mut count = None;
        let mut sums = 0;
        for sample in samples {
            match sample.labels.get("le") {
                Some(bound) => {
                    let bound = bound
                        .replace("+Inf", "inf")
                        .parse()
                        .map_err(|_| "a bad bound")?;
                    if bound <= last_bound || sample.value < last_count {
                        return Err(format!("buckets out of order at {bound} of {labels:?}"));
                    }
                    (last_bound, last_count) = (bound, sample.value);
                }
                None if sample.name.ends_with("_sum") => sums += 1,
                None => count = Some(sample.value),
            }
        }
        if last_bound != f64::INFINITY || count != Some(last_count) || sums != 1 {
            return Err(format!("a histogram that does not add up: {labels:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_refused() {
    let good = "# HELP a b\n# TYPE a counter\na{x=\"q\\\"\\\\\\n,}\",y=\"\"} 1.5e3\n";
    let metrics = parse(good).unwrap();
    let sample = &metrics["a"].samples[0];
    assert_eq!(
        (sample.labels["x"].as_str(), sample.value),
        ("q\"\\\n,}", 1500.0)
    );
    for bad in [
        "# HELP a b\n# TYPE a counter\na 1",
        "# HELP a b\n# TYPE a counter\na one\n",
        "# HELP a b\n# TYPE a counter\na -1\n",
        "# HELP a b\n# TYPE a counter\n",
        "# HELP a b\n# TYPE a counter\nb 1\n",
        "# HELP a b\n# TYPE a counter\na 1\na 1\n",
        "# HELP a b\n# TYPE a pile\na 1\n",
        "# HELP a b\n# TYPE a gauge\na{x=\"1} 1\n",
        "# HELP a b\n# TYPE a gauge\na{x=\"1\",x=\"1\"} 1\n",
        "# HELP a-b b\n# TYPE a-b gauge\na-b 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 1\n",
        "a 1\n",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
