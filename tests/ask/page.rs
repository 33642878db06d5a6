//! The page at the metrics address, in a real browser.

use std::{fmt::Write as _, path::Path, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::started;
use crate::lab::{Browser, Capture, Lab, Service, Share, Tripod, eventually, figure, get, run};

const PAGE: &str = "http://127.0.0.1:10249/";
const SOON: Duration = Duration::from_secs(20);
const MANY: usize = 5_000;
/// Within which many Services are there; the program runs without optimization. It only ends a
/// test that hangs.
const LOADED: Duration = Duration::from_secs(60);
/// Milliseconds within which a search is done and drawn.
const FILTERED: f64 = 250.0;

const WORDS: [&str; 7] = [
    "s",
    "s4",
    "s49",
    "10.96.3.7:80",
    "ns-3 s0003",
    "nothing",
    "",
];

/// Contrast of texts to what is behind them, by WCAG 2.2 (1.4.3), the least of all.
const CONTRAST: &str = r##"
    const styles = getComputedStyle(document.documentElement);
    const light = (name) => {
        const hex = styles.getPropertyValue(name).trim().slice(1);
        const part = (at) => {
            const c = parseInt(hex.slice(at, at + 2), 16) / 255;
            return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        };
        return 0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4);
    };
    const ratio = (one, other) => {
        const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    };
    const pairs = [["--good", "--good-back"], ["--bad", "--bad-back"]];
    for (const text of ["--text", "--weak", "--accent", "--bad"])
        for (const back of ["--back", "--card", "--row"]) pairs.push([text, back]);
    return Math.min(...pairs.map(([text, back]) => ratio(text, back)));
"##;

/// Form fields without a label, tables without a header, headings out of order.
const UNNAMED: &str = r##"
    const fields = [...document.querySelectorAll("input, select")];
    const unnamed = fields.filter((field) => !field.labels.length).map((field) => field.id);
    for (const table of document.querySelectorAll("table"))
        if (!table.querySelector("th[scope=col]")) unnamed.push("table " + table.id);
    for (const part of document.querySelectorAll("section, svg, [role=region]"))
        if (!part.getAttribute("aria-label") && !part.getAttribute("aria-labelledby")) unnamed.push(part.tagName);
    const levels = [...document.querySelectorAll("h1, h2, h3")].map((one) => Number(one.tagName[1]));
    levels.forEach((level, at) => { if (level > (levels[at - 1] || 0) + 1) unnamed.push("h" + level); });
    return unnamed;
"##;

fn shows(browser: &Browser<'_>, selector: &str, words: &str) {
    eventually(
        &format!("{selector} shows {words}"),
        SOON,
        || match browser.text(selector) {
            text if text.contains(words) => Ok(()),
            text => Err(format!("{text}; {:?}", browser.errors())),
        },
    );
}

/// The Services that are shown, each as its line.
const ROWS: &str =
    "return [...document.querySelectorAll('#rows tr.one')].map((row) => row.textContent)";

/// Chooses a value of a list, as who uses the page does.
fn choose(browser: &Browser<'_>, field: &str, value: &str) {
    browser.script(&format!(
        "const field = document.getElementById('{field}'); field.value = '{value}'; \
         for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {{bubbles: true}}));"
    ));
}

fn themes(browser: &Browser<'_>, mut look: impl FnMut(&str)) {
    for theme in ["light", "dark"] {
        let feature = json!([{"name": "prefers-color-scheme", "value": theme}]);
        browser.devtools("Emulation.setEmulatedMedia", json!({"features": feature}));
        look(theme);
    }
}

/// How far a first sync is, and what is wrong with a family, in the words of `tripod status`.
fn tells_of_syncs(browser: &Browser<'_>) {
    browser.script(
        "return read('v1/status').then((answer) => answer.json()).then((status) => { \
            Object.assign(status.syncs[0], {last: null, underWaySince: new Date().toISOString(), \
                progress: {text: '3 of 7 rules are done'}, overdue: true, notServed: 'no address'}); \
            showStatus(status); })",
    );
    let shown = browser.text("#status");
    for words in [
        "none yet; one is under way, begun ",
        " ago; 3 of 7 rules are done; its Services are not served: no address; overdue",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
}

/// A Service is named as to the subcommand.
fn explains_services(browser: &Browser<'_>) {
    let label = browser.text("#explain label");
    assert!(
        label.contains("or Service: [NAMESPACE/]NAME[:PORT]"),
        "{label}"
    );
    for (to, shown) in [
        (
            "default/shop:tcp\u{e007}",
            "[fd00:96::1]:80 TCP from pod: forwarded",
        ),
        (
            "shop:80/udp\u{e007}",
            "10.96.0.1:80 UDP from pod: forwarded",
        ),
        ("default/shop\u{e007}", "several ports; name one of them"),
        (
            "default/shop:http\u{e007}",
            "no such port: it has tcp (80/TCP), udp (80/UDP)",
        ),
        ("default/nobody\u{e007}", "default/nobody"),
        ("10.96.0.2\u{e007}", "it must be an address with its port"),
        ("10.96.0.2:80\u{e007}", "10.244.0.11"),
    ] {
        browser.script("document.getElementById('to').value = ''");
        browser.type_into("#to", to);
        shows(browser, "#explained", shown);
    }
}

/// On a phone it is read by scrolling down alone, whatever is shown.
fn fits_narrow_screens(browser: &Browser<'_>) {
    for width in [320, 390, 768, 1200] {
        let metrics = json!({
            "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": false,
        });
        browser.devtools("Emulation.setDeviceMetricsOverride", metrics);
        let beyond = browser.script(
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth",
        );
        assert_eq!(beyond, 0, "{width} pixels");
    }
    browser.devtools("Emulation.clearDeviceMetricsOverride", json!({}));
}

#[test]
fn it_shows_the_mode_and_finds_a_service() {
    Lab::run(|lab| {
        for name in ["web", "shop"] {
            lab.publish_all(&Service::new(name, u8::from(name == "web") + 1));
        }
        let _running = started(lab, &[]);
        let Some(browser) = Browser::start(&lab.node) else {
            return;
        };
        browser.open(PAGE);
        shows(&browser, "#status", "userspace");
        shows(&browser, "#health", "healthy");
        shows(&browser, "#syncs", "none failed");
        shows(&browser, "#found", "ServicePorts");
        let all = browser.script("return document.querySelectorAll('tr.one').length");
        browser.type_into("#search", "default/sho");
        shows(&browser, "#found", " of ");
        let rows = browser.text("#rows");
        assert!(
            rows.contains("default/shop") && !rows.contains("default/web"),
            "{rows}"
        );
        let fewer = browser.script("return document.querySelectorAll('#rows tr.one').length");
        assert!(
            fewer.as_u64() < all.as_u64() && fewer != 0,
            "{fewer} of {all}"
        );

        // By the keyboard alone: from the field to the first Service, and open it.
        browser.script("document.querySelector('#rows button').focus()");
        browser.type_into("#rows button", "\u{e007}");
        shows(&browser, "#detail", "default/shop");
        shows(&browser, "#detail", "10.244.0.11");
        let detail = browser.text("#detail");
        assert!(!detail.contains("null"), "{detail}");
        let focused = browser.script("return document.activeElement.id");
        assert_eq!(focused, "detail");
        browser.type_into("#to", "10.96.0.2:80\u{e007}");
        shows(&browser, "#explained", "10.244.0.11");
        shows(&browser, "#explained", "forwarded");
        explains_services(&browser);
        tells_of_syncs(&browser);
        choose(&browser, "kernel", "true");
        browser.script("document.getElementById('explain').requestSubmit()");
        shows(&browser, "#explained", "present: listener ");
        fits_narrow_screens(&browser);

        browser.type_into("#search", " ");
        for (field, value) in [("protocol", "UDP"), ("family", "IPv6")] {
            choose(&browser, field, value);
            eventually(&format!("only {value} is shown"), SOON, || {
                let rows = browser.script(ROWS);
                let rows: Vec<&str> = rows
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                let is_of = |row: &&str| row.contains(value);
                if !rows.is_empty() && rows.iter().all(is_of) {
                    Ok(())
                } else {
                    Err(format!("{rows:?}"))
                }
            });
        }
        assert_eq!(browser.script(UNNAMED), json!([]));
        themes(&browser, |theme| {
            let contrast = browser.script(CONTRAST).as_f64().expect("a ratio");
            assert!(contrast >= 4.5, "{theme}: {contrast}");
        });
        // Questions that name no one port are answered with 400, of which the browser tells now
        // and then.
        let mut errors = browser.errors();
        errors.retain(|line| !line["message"].to_string().contains("/v1/explain"));
        assert_eq!(errors, [] as [Value; 0]);
    });
}

/// A Service and its EndpointSlice of so many endpoints, which has just changed.
fn objects(number: usize, namespace: &str, name: &str, endpoints: usize) -> [Value; 2] {
    let address = |first: u8, n: usize| format!("10.{first}.{}.{}", n / 250, n % 250 + 1);
    let ip = address(96, number);
    let ends = (0..endpoints).map(|n| {
        json!({"addresses": [address(244, number * 5 + n)], "nodeName": format!("node-{}", n + 1),
            "conditions": {"ready": n != 4}})
    });
    let ends: Vec<Value> = ends.collect();
    let port = |port: u16| json!([{"name": "http", "port": port, "protocol": "TCP"}]);
    let changed = Timestamp::now().to_string();
    [
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": port(80)}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-x"), "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": changed}},
            "addressType": "IPv4", "endpoints": ends, "ports": port(8080)}),
    ]
}

fn list(objects: impl Iterator<Item = [Value; 2]>) -> String {
    let mut text = String::new();
    for object in objects.flatten() {
        let _ = writeln!(text, "---\n{object}");
    }
    text
}

#[test]
fn five_thousand_services_load_and_filter_in_bounded_time() {
    run(Share::Beside, || {
        let lab = Lab::new(Capture::Local);
        let many = (0..MANY).map(|n| objects(n, &format!("ns-{}", n % 7), &format!("s{n:04}"), 2));
        lab.write("many.yaml", &list(many));
        let flags = ["--userspace-capture=local", "--userspace-workers=1"];
        let _running = Tripod::start_beside(&lab, "userspace", 1, &flags);
        let Some(browser) = Browser::start(&lab.node) else {
            return;
        };
        browser.open("http://127.0.0.1:12001/");
        eventually("all are there", LOADED, || match browser.text("#found") {
            text if text == "5,000 ServicePorts" => Ok(()),
            text => Err(text),
        });
        let loaded = browser.script("return performance.now() / 1000");
        let loaded = loaded.as_f64().expect("a time");
        let rows = "return document.querySelectorAll('#rows tr').length";
        let rows = || browser.script(rows).as_u64().expect("a number");
        assert!((10..100).contains(&rows()), "{} rows", rows());
        let search = |words: &str| {
            let script = format!(
                "const begun = performance.now();\
                 const field = document.getElementById('search');\
                 field.value = '{words}';\
                 field.dispatchEvent(new Event('input'));\
                 document.body.getBoundingClientRect();\
                 return performance.now() - begun;"
            );
            browser.script(&script).as_f64().expect("a time")
        };
        let mut slowest: f64 = 0.0;
        for words in WORDS {
            // The shortest of some: others use the same processors.
            let tries = (0..5).map(|_| search(words));
            slowest = slowest.max(tries.fold(f64::INFINITY, f64::min));
            assert!(rows() < 100, "{} rows", rows());
        }
        search("ns-4/s4330");
        assert_eq!(browser.text("#found"), "1 of 5,000 ServicePorts");
        search("");
        browser.script(
            "const box = document.getElementById('scroll'); box.scrollTop = box.scrollHeight",
        );
        eventually("the last one is there", SOON, || {
            match browser.text("#rows") {
                text if text.contains("ns-6/s4997") && rows() < 100 => Ok(()),
                text => Err(text),
            }
        });
        figure(
            "the page with 5,000 Services",
            format!("loaded after {loaded:.1} s, a search takes {slowest:.1} ms at most"),
        );
        assert!(slowest < FILTERED, "{slowest} ms");
    });
}

#[test]
#[ignore = "writes docs/images/page.webp and page-dark.webp"]
fn write() {
    const NAMES: [&str; 12] = [
        "cart", "catalog", "checkout", "frontend", "images", "mail", "orders", "payments", "queue",
        "reviews", "search", "users",
    ];
    Lab::run(|lab| {
        let _running = started(lab, &[]);
        // Some changes to show.
        for round in 0..30 {
            let all = NAMES.iter().enumerate().map(|(n, name)| {
                let endpoints = if *name == "images" {
                    0
                } else {
                    (n * 7 + round) % 5 + 1
                };
                objects(n, "shop", name, endpoints)
            });
            lab.write("shop.yaml", &list(all));
            eventually("it is in force", SOON, || {
                let syncs = get(&lab.node, ([127, 0, 0, 1], 10249).into(), "/v1/syncs");
                let syncs = syncs.map_err(|error| error.to_string())?;
                match syncs.matches("\"full\":false").count() {
                    n if n > round => Ok(()),
                    n => Err(format!("{n} partial syncs")),
                }
            });
        }
        let Some(browser) = Browser::start(&lab.node) else {
            return;
        };
        browser.open(PAGE);
        shows(&browser, "#found", "ServicePorts");
        shows(&browser, "#latency", "in force");
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
        themes(&browser, |theme| {
            let name = if theme == "dark" {
                "page-dark.webp"
            } else {
                "page.webp"
            };
            std::fs::write(docs.join(name), browser.screenshot()).expect("a picture");
        });
    });
}
