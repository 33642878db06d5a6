//! The page at the metrics address, in a real browser.

use std::{fmt::Write as _, path::Path, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::started;
use crate::lab::{Browser, Capture, Lab, Service, Tripod, eventually, figure, get, run};

const PAGE: &str = "http://127.0.0.1:10249/";
const SOON: Duration = Duration::from_secs(20);
const MANY: usize = 5_000;
/// Time limit until many Services are shown; the program runs without optimization. It only ends a
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

/// The lowest contrast of a text to its background, by WCAG 2.2 (1.4.3).
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
    for (const text of ["--text", "--weak", "--accent", "--warn", "--bad"])
        for (const back of ["--back", "--card", "--row"]) pairs.push([text, back]);
    return Math.min(...pairs.map(([text, back]) => ratio(text, back)));
"##;

/// Form fields without a label, tables without a header, headings out of order.
const UNNAMED: &str = r##"
    const fields = [...document.querySelectorAll("input, select")];
    const unnamed = fields.filter((field) => !field.labels.length).map((field) => field.id);
    for (const table of document.querySelectorAll("table"))
        if (!table.querySelector("th[scope=col]")) unnamed.push("table " + table.id);
    for (const part of document.querySelectorAll("section, nav, svg:not([aria-hidden]), [role=group]"))
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

/// The listed Services, each as its line.
fn rows(browser: &Browser<'_>) -> Vec<String> {
    let rows = browser.script(
        "return [...document.querySelectorAll('#rows > tr:not(#detail)')].map((row) => row.textContent)",
    );
    serde_json::from_value(rows).expect("texts")
}

fn click(browser: &Browser<'_>, selector: &str) {
    browser.script(&format!("document.querySelector('{selector}').click()"));
}

/// Chooses a value of a list, like a user of the page.
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

/// The progress of a first sync, and the trouble of a family, in the words of `tripod status`.
fn tells_of_syncs(browser: &Browser<'_>) {
    // In one script, because the page shows the real status again every few seconds.
    let shown = browser.script(
        "return read('v1/status').then((answer) => answer.json()).then((status) => { \
            Object.assign(status.syncs[0], {last: null, underWaySince: new Date().toISOString(), \
                progress: {text: '3 of 7 rules are done'}, overdue: true, notServed: 'no address'}); \
            showStatus(status); return document.getElementById('status').textContent; })",
    );
    let shown = shown.as_str().unwrap_or_default();
    for words in [
        "none yet; one is in progress, begun ",
        " ago; 3 of 7 rules are done; its Services are not served: no address; overdue",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
}

/// No plot is empty without a reason.
fn explains_empty_plots(browser: &Browser<'_>) {
    // In one script, because the page draws them again every few seconds.
    let shown = browser.script(
        "showSyncs([]); showLatency(''); \
         return ['syncs', 'latency'].map((plot) => document.getElementById(plot).textContent).join()",
    );
    let shown = shown.as_str().unwrap_or_default();
    for words in [
        "No sync has completed yet",
        "No change has been measured since Tripod started",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
}

/// A Service is named as for the subcommand.
fn explains_services(browser: &Browser<'_>) {
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

fn resize(browser: &Browser<'_>, width: u64, height: u64) {
    let metrics = json!({
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
    });
    browser.devtools("Emulation.setDeviceMetricsOverride", metrics);
}

/// Elements that extend beyond the right edge of the page, or that cut or scroll their content.
const BEYOND: &str = r##"
    const edge = document.documentElement.clientWidth;
    const beyond = [...document.querySelectorAll("body *")].filter((one) =>
        one.getBoundingClientRect().right > edge + 0.5
        || one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX !== "visible");
    return [document.documentElement.scrollWidth - edge, ...beyond.map((one) => one.outerHTML.slice(0, 100))];
"##;

/// At every width it can be read by vertical scrolling alone, and nothing is cut.
fn fits_narrow_screens(browser: &Browser<'_>) {
    for width in [320, 390, 768, 1200] {
        resize(browser, width, 844);
        assert_eq!(browser.script(BEYOND), json!([0]), "{width} pixels");
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
        shows(&browser, "#node", "userspace mode on node");
        shows(&browser, "#health", "healthy");
        shows(&browser, "#syncs", "none failed");
        shows(&browser, "#found", "2 Services, ");
        shows(&browser, "#kinds", "No Service has a problem.");
        let all = rows(&browser);
        browser.type_into("#search", "default/sho");
        shows(&browser, "#found", "1 of 2 Services, ");
        let fewer = rows(&browser);
        assert!(fewer.len() < all.len(), "{fewer:?} of {all:?}");
        assert!(fewer.iter().all(|row| row.starts_with("default/shop")));

        // With the keyboard alone: from the field to the first Service, which is then opened.
        browser.script("document.querySelector('#rows button').focus()");
        browser.type_into("#rows button", "\u{e007}");
        shows(&browser, "#detail", "10.244.0.11");
        let detail = browser.text("#detail");
        assert!(!detail.contains("null"), "{detail}");
        let opened = "return document.activeElement.getAttribute('aria-expanded')";
        assert_eq!(browser.script(opened), "true");
        browser.type_into("#to", "10.96.0.2:80\u{e007}");
        shows(&browser, "#explained", "10.244.0.11");
        shows(&browser, "#explained", "forwarded");
        explains_services(&browser);
        tells_of_syncs(&browser);
        explains_empty_plots(&browser);
        click(&browser, "#kernel");
        click(&browser, "#explain button");
        shows(&browser, "#explained", "present: listener ");
        fits_narrow_screens(&browser);

        browser.type_into("#search", " ");
        for (field, value) in [("protocol", "UDP"), ("family", "IPv6")] {
            choose(&browser, field, value);
            eventually(&format!("only {value} is shown"), SOON, || {
                let rows = rows(&browser);
                if !rows.is_empty() && rows.iter().all(|row| row.contains(value)) {
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
        // Questions that do not name a single port are answered with 400, which the browser
        // sometimes reports.
        let mut errors = browser.errors();
        errors.retain(|line| !line["message"].to_string().contains("/v1/explain"));
        assert_eq!(errors, [] as [Value; 0]);
    });
}

/// A name as long as Kubernetes allows (RFC 1035, 2.3.1).
const LONG: &str = "recommendations-for-customers-who-have-bought-the-same-products";

#[test]
fn problems_are_counted_and_lead_to_their_services() {
    Lab::run(|lab| {
        let mut all: Vec<_> = [(LONG, 0), ("cart", 3), ("mail", 1), ("users", 2)]
            .into_iter()
            .enumerate()
            .map(|(number, (name, endpoints))| objects(number, "shop", name, endpoints))
            .collect();
        for of_both in [1, 2] {
            all[of_both][0]["spec"]["externalIPs"] = json!(["192.0.2.7"]);
        }
        lab.write("shop.yaml", &list(all.into_iter()));
        let _running = started(lab, &[]);
        let Some(browser) = Browser::start(&lab.node) else {
            return;
        };
        browser.open(PAGE);
        shows(&browser, "#found", "4 Services, 4 ServicePorts");
        let kinds = "return [...document.querySelectorAll('#kinds button')].map((kind) => kind.textContent)";
        let counted = json!([
            "1 Service without endpoints in use",
            "1 Service in conflict"
        ]);
        assert_eq!(browser.script(kinds), counted);
        // One of each remaining kind, which Services have only if something fails.
        let failing = browser.script(
            "ports[1] = known({...ports[1].port, failing: 'no memory', limited: {service: 7, client: 0}}); \
             filter(); const kinds = document.getElementById('kinds').textContent; \
             return [kinds, document.getElementById('rows').textContent].join()",
        );
        for words in [
            "1 Service not applied",
            "1 Service that reached a connection limit",
            "not applied: no memory",
            "7 times the Service reached its connection limit",
        ] {
            let shown = failing.as_str().unwrap_or_default();
            assert!(shown.contains(words), "{words:?} is not in {shown}");
        }

        click(&browser, "#kind-0");
        shows(&browser, "#found", "1 of 4 Services, 1 ServicePort");
        assert!(rows(&browser)[0].starts_with(&format!("shop/{LONG}:http")));
        click(&browser, "#rows button");
        fits_narrow_screens(&browser);
        browser.type_into("#search", "users");
        shows(&browser, "#found", "Nothing found");
        click(&browser, "#kind-0");
        shows(&browser, "#found", "1 of 4 Services, 1 ServicePort");
        browser.type_into("#search", "-not-there");
        shows(&browser, "#found", "Nothing found");
        assert_eq!(rows(&browser), [""; 0]);
    });
}

#[test]
fn services_are_sorted_by_each_column() {
    Lab::run(|lab| {
        // Numbers in names, addresses and counts are compared as numbers.
        let all = [("s10", 2, 3), ("s9", 10, 1), ("s1", 9, 2)];
        let all = all
            .into_iter()
            .map(|(name, number, endpoints)| objects(number, "shop", name, endpoints));
        lab.write("shop.yaml", &list(all));
        let _running = started(lab, &[]);
        let Some(browser) = Browser::start(&lab.node) else {
            return;
        };
        browser.open(PAGE);
        shows(&browser, "#found", "3 Services");
        for (column, direction, order) in [
            (1, "descending", ["s10", "s9", "s1"]),
            (1, "ascending", ["s1", "s9", "s10"]),
            (4, "ascending", ["s10", "s1", "s9"]),
            (4, "descending", ["s9", "s1", "s10"]),
            (5, "ascending", ["s9", "s1", "s10"]),
        ] {
            let head = format!("#columns th:nth-child({column})");
            click(&browser, &format!("{head} button"));
            let sorted =
                format!("return document.querySelector('{head}').getAttribute('aria-sort')");
            assert_eq!(browser.script(&sorted), direction, "column {column}");
            let expected = order.map(|name| format!("shop/{name}:http"));
            let shown = rows(&browser);
            let right = shown
                .iter()
                .zip(&expected)
                .all(|(row, name)| row.starts_with(name.as_str()));
            assert!(
                right && shown.len() == 3,
                "column {column} {direction}: {shown:?}"
            );
        }
    });
}

/// A Service and its EndpointSlice with this number of endpoints, which has just changed.
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
    run(|| {
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
            text if text == "5,000 Services, 5,000 ServicePorts" => Ok(()),
            text => Err(text),
        });
        let loaded = browser.script("return performance.now() / 1000");
        let loaded = loaded.as_f64().expect("a time");
        let rows = "return document.querySelectorAll('#rows tr').length";
        let rows = || browser.script(rows).as_u64().expect("a number");
        assert_eq!(rows(), 25);
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
            // The shortest of some: other tests use the same processors.
            let tries = (0..5).map(|_| search(words));
            slowest = slowest.max(tries.fold(f64::INFINITY, f64::min));
            assert!(rows() <= 25, "{} rows", rows());
        }
        search("ns-4/s4330");
        assert_eq!(browser.text("#found"), "1 of 5,000 Services, 1 ServicePort");
        search("");
        click(&browser, "#columns button");
        let shown = browser.text("#rows");
        assert!(shown.starts_with("ns-6/s4997:http"), "{shown}");
        click(&browser, "#next");
        assert_eq!(browser.text("#range"), "26–50 of 5,000");
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
    const NAMES: [&str; 8] = [
        "cart", "checkout", "frontend", "images", "orders", "payments", "search", "users",
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
            eventually("it is applied", SOON, || {
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
        shows(&browser, "#latency", "changes");
        // The whole page.
        let height = browser.script("return document.documentElement.scrollHeight");
        resize(&browser, 1200, height.as_u64().expect("a height"));
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
