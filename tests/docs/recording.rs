//! docs/images/demo.svg: the output of `make demo`, line by line as it appeared.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::root;
use crate::lab::tripod_binary;

/// The longest pause between two lines that is shown in real time.
const PAUSE: Duration = Duration::from_millis(900);
/// How long the complete text is shown at the end.
const END: Duration = Duration::from_secs(8);
const ROW: usize = 19;
const STYLE: &str = "\
text{font:13px ui-monospace,monospace;fill:#24292f;white-space:pre}\
.b{font-weight:600}rect{fill:#f6f8fa;stroke:#d0d7de}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#161b22;stroke:#30363d}}\
@media(prefers-reduced-motion:reduce){text{animation:none!important}}";

/// A line, and when it is shown.
struct Line {
    at: Duration,
    text: String,
}

fn recorded() -> Vec<Line> {
    let mut demo = Command::new(root().join("examples/hello/demo.sh"))
        .env("TRIPOD", tripod_binary())
        .stdout(Stdio::piped())
        .spawn()
        .expect("running the demo");
    let mut lines = vec![Line {
        at: Duration::ZERO,
        text: "$ make demo".to_owned(),
    }];
    let mut before = Instant::now();
    let mut at = PAUSE;
    for text in BufReader::new(demo.stdout.take().expect("a pipe")).lines() {
        at += before.elapsed().min(PAUSE);
        before = Instant::now();
        let text = text.expect("text");
        lines.push(Line { at, text });
    }
    assert!(demo.wait().expect("the demo").success());
    lines
}

/// Returns an image without scripts, whose lines appear one after the other, repeatedly.
fn drawn(lines: &[Line]) -> String {
    let whole = lines.last().map_or(END, |line| line.at + END).as_secs_f32();
    let widest = lines.iter().map(|line| line.text.len()).max().unwrap_or(0);
    let (width, height) = (widest * 8 + 40, lines.len() * ROW + 30);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-labelledby=\"t\">\n<title id=\"t\">make demo: Tripod serves a Service in a \
         playground; a backend is killed and no call fails</title>\n<style>{STYLE}\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let shown = 100.0 * line.at.as_secs_f32() / whole;
        let _ = writeln!(
            svg,
            "@keyframes k{number}{{0%,{shown:.2}%{{opacity:0}}{:.2}%,100%{{opacity:1}}}}",
            shown + 0.01
        );
    }
    let _ = writeln!(
        svg,
        "</style>\n<rect x=\"1\" y=\"1\" width=\"{}\" height=\"{}\" rx=\"8\"/>",
        width - 2,
        height - 2
    );
    for (number, line) in lines.iter().enumerate() {
        let text = line.text.replace('&', "&amp;").replace('<', "&lt;");
        let class = if text.starts_with(' ') {
            ""
        } else {
            " class=\"b\""
        };
        let y = 30 + number * ROW;
        let _ = writeln!(
            svg,
            "<text x=\"20\" y=\"{y}\"{class} style=\"animation:k{number} {whole:.1}s \
             infinite\">{text}</text>"
        );
    }
    svg + "</svg>\n"
}

#[test]
#[ignore = "writes docs/images/demo.svg"]
fn write() {
    let svg = drawn(&recorded());
    fs::write(root().join("docs/images/demo.svg"), svg).expect("docs/images/demo.svg");
}

/// The picture shows the present output of the demo, except for the numbers of answers.
#[test]
fn the_recording_is_of_this_demo() {
    let svg = fs::read_to_string(root().join("docs/images/demo.svg")).expect("the recording");
    let script = root().join("examples/hello/demo.sh");
    let script = fs::read_to_string(script).expect("the demo");
    let captions = script
        .lines()
        .filter_map(|line| line.strip_prefix("say \""));
    let captions: Vec<&str> = captions.filter_map(|line| line.strip_suffix('"')).collect();
    assert!(captions.len() > 4, "{captions:?}");
    for caption in captions {
        assert!(
            svg.contains(&format!(">{caption}</text>")),
            "no {caption:?}"
        );
    }
}
