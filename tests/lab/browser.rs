//! Headless Chromium, driven through chromedriver (W3C WebDriver over HTTP).

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{call::tcp, eventually, host::Host, process::Group, skip};

const DRIVER: ([u8; 4], u16) = ([127, 0, 0, 1], 9515);
const PATIENCE: Duration = Duration::from_secs(60);
/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser on a host; ends when dropped.
pub struct Browser<'a> {
    host: &'a Host,
    session: String,
    _driver: Group,
}

impl<'a> Browser<'a> {
    /// Starts a browser; `None` if none is installed, which the test reports.
    pub fn start(host: &'a Host) -> Option<Browser<'a>> {
        for program in ["chromium", "chromedriver"] {
            let found = Command::new(program).arg("--version").output();
            if !found.is_ok_and(|output| output.status.success()) {
                skip(format!(
                    "{program} does not run; make test-all INSTALL=yes installs it"
                ));
                return None;
            }
        }
        let mut command = host.command("chromedriver");
        command
            .arg(format!("--port={}", DRIVER.1))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver = Group::spawn(&mut command).expect("chromedriver starts");
        let mut browser = Browser {
            host,
            session: String::new(),
            _driver: driver,
        };
        eventually("chromedriver answers", PATIENCE, || {
            browser.ask("GET", "/status", None).map(drop)
        });
        let switches = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--window-size=1200,1400",
            "--user-data-dir=/run/chromium",
        ];
        let options = json!({"args": switches});
        let capabilities = json!({
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let body = json!({"capabilities": {"alwaysMatch": capabilities}});
        let session = browser.ask("POST", "/session", Some(&body));
        let session = session.expect("a session");
        let number = session["sessionId"].as_str().expect("its number");
        browser.session = format!("/session/{number}");
        Some(browser)
    }

    /// Opens a page, and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.command("/url", &json!({"url": url}));
    }

    /// Runs a script in the page. Returns the script's result.
    pub fn script(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Types into the element that the selector selects.
    pub fn type_into(&self, selector: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(selector));
        self.command(&path, &json!({"text": text}));
    }

    /// Returns the visible text of the element that the selector selects.
    pub fn text(&self, selector: &str) -> String {
        let path = format!("{}/element/{}/text", self.session, self.element(selector));
        let text = self.ask("GET", &path, None).expect("a text");
        text.as_str().expect("text").to_owned()
    }

    /// Calls a method of the Chrome DevTools Protocol.
    pub fn devtools(&self, method: &str, parameters: Value) -> Value {
        let body = json!({"cmd": method, "params": parameters});
        self.command("/goog/cdp/execute", &body)
    }

    /// Returns an image of the visible page, in WebP.
    pub fn screenshot(&self) -> Vec<u8> {
        let format = json!({"format": "webp", "quality": 80});
        let image = self.devtools("Page.captureScreenshot", format);
        let image = image["data"].as_str().expect("an image");
        BASE64.decode(image.as_bytes()).expect("base64")
    }

    /// Returns the errors in the console, including violations of the page's policy.
    pub fn errors(&self) -> Vec<Value> {
        let lines = self.command("/se/log", &json!({"type": "browser"}));
        let lines = lines.as_array().expect("lines").iter();
        lines
            .filter(|line| line["level"] == "SEVERE")
            .cloned()
            .collect()
    }

    fn element(&self, selector: &str) -> String {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.command("/element", &body);
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let answer = self.ask("POST", &path, Some(body));
        answer.unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let answer = self.exchange(method, path, body);
        let answer = answer.map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
        match &answer["value"] {
            error if error["error"].is_string() => Err(error.to_string()),
            value => Ok(value.clone()),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Vec<u8>> {
        let at = SocketAddr::from(DRIVER);
        let mut stream = tcp(self.host, at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim_end().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.ask("DELETE", &self.session.clone(), None);
        }
    }
}
