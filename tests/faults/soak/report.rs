//! docs/soak.csv as a plot and a table.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use plotters::prelude::*;

use super::sample::Sample;

const HEAD: &str = "
## Changes for a long time

`make soak` changes Services and endpoints ten times per second in each mode, for an hour: 40
Services are added, changed and removed, and so are the endpoints of two other Services. These
two are called 50 times per second all the time, over TCP and UDP, in both IP families, with and
without session affinity: half of the calls are new connections, the others go over twelve
connections that stay open. (A datagram without an answer is sent once more.) At the end nothing may
be left of removed objects. `make test-all` does the same for some seconds.

![Memory, descriptors, objects in the kernel and entries of connection tracking in each
mode over the time of the run](images/soak.svg)

";

type Samples = BTreeMap<String, Vec<Sample>>;

fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(file)
}

/// Reads the samples of each mode, by its name.
fn read() -> Samples {
    let text = fs::read_to_string(docs("soak.csv")).expect("docs/soak.csv");
    let mut samples = Samples::new();
    for line in text.lines().skip(1) {
        let (mode, sample) = line.split_once(',').expect("a mode and a sample");
        let sample = sample.parse().expect("a sample");
        samples.entry(mode.to_owned()).or_default().push(sample);
    }
    samples
}

/// Adds the part of docs/reliability.md.
pub fn write(text: &mut String) {
    text.push_str(HEAD);
    text.push_str(
        "| mode | minutes | changes | calls | failed | memory after a quarter, at the end | \
         most descriptors | most objects |\n|---|---|---|---|---|---|---|---|\n",
    );
    let samples = read();
    for (mode, samples) in samples {
        let (quarter, last) = (samples[samples.len() / 4], samples[samples.len() - 1]);
        let most = |of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or_default();
        let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
        let _ = writeln!(
            text,
            "| {mode} | {} | {} | {} | {} | {}, {} | {} | {} |",
            (last.seconds + 30) / 60,
            last.changes,
            last.calls,
            last.failed,
            mib(quarter.memory_kib),
            mib(last.memory_kib),
            most(|sample| sample.descriptors),
            most(|sample| sample.objects),
        );
    }
    text.push_str(
        "\nThe samples are in [soak.csv](soak.csv). (Unoptimised build; the modes ran side by side \
         on two cores\nthat also ran other programs, ipvs mode in a guest kernel.)\n",
    );
}

/// A panel of the plot: its title, and its figure.
type Panel = (&'static str, fn(&Sample) -> f64);

const PANELS: [Panel; 4] = [
    ("memory, MiB", |sample| sample.memory_kib as f64 / 1024.0),
    ("descriptors", |sample| sample.descriptors as f64),
    ("objects in the kernel", |sample| sample.objects as f64),
    ("entries of connection tracking", |sample| {
        sample.flows as f64
    }),
];

const COLOURS: [RGBColor; 5] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
];

fn plot(samples: &Samples, path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (960, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, (title, value)) in root.split_evenly((2, 2)).iter().zip(PANELS) {
        let all = || samples.values().flatten();
        let minutes = |sample: &Sample| sample.seconds as f64 / 60.0;
        let end = all().map(minutes).fold(0.0, f64::max);
        let top = all().map(value).fold(0.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(30)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..end, 0.0..top.max(1.0))?;
        chart
            .configure_mesh()
            .x_desc("minutes")
            .light_line_style(TRANSPARENT)
            .draw()?;
        for ((mode, samples), colour) in samples.iter().zip(COLOURS) {
            let points = samples
                .iter()
                .map(|sample| (minutes(sample), value(sample)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(mode)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .position(SeriesLabelPosition::LowerRight)
            .draw()?;
    }
    root.present()?;
    Ok(())
}

/// Parses the samples among the printed lines of a run, by mode.
fn printed(log: &str) -> Samples {
    let mut samples = Samples::new();
    for line in log.lines() {
        // Lines of a guest are printed in the guest, and again at its end.
        let figure = line.split_once("FIGURE ").map(|(_, figure)| figure);
        let figure = figure.map(|figure| figure.strip_prefix("guest, ").unwrap_or(figure));
        let soak = figure.and_then(|figure| figure.strip_prefix("soak "));
        let Some((mode, sample)) = soak.and_then(|soak| soak.split_once(": ")) else {
            continue;
        };
        let mode = match mode {
            "Redirect" => "userspace, redirect".to_owned(),
            "Local" => "userspace, local".to_owned(),
            other => other.to_lowercase(),
        };
        let sample = sample.trim().parse().expect("a sample");
        let of_mode = samples.entry(mode).or_default();
        if !of_mode.contains(&sample) {
            of_mode.push(sample);
        }
    }
    samples
}

#[test]
#[ignore = "writes docs/soak.csv and docs/images/soak.svg from the log that TRIPOD_SOAK_LOG names"]
fn write_samples() {
    let log = std::env::var("TRIPOD_SOAK_LOG").expect("TRIPOD_SOAK_LOG");
    let samples = printed(&fs::read_to_string(log).expect("the log of a run"));
    assert!(!samples.is_empty(), "no samples");
    let mut text = format!("mode,{}\n", Sample::NAMES.join(","));
    for (mode, samples) in &samples {
        for sample in samples {
            let _ = writeln!(text, "{},{sample}", mode.replace(',', ""));
        }
    }
    fs::write(docs("soak.csv"), text).expect("docs/soak.csv");
    plot(&read(), &docs("images/soak.svg")).expect("docs/images/soak.svg");
}
