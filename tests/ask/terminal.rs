//! The view of a person on a terminal: colours, and a table that is updated in place.

use std::{
    io::Read,
    process::Stdio,
    sync::mpsc::{Receiver, channel},
};

use super::{SOON, started};
use crate::lab::{EndpointChoice, Group, Host, Lab, Service, eventually, tripod_binary};

/// A program on a terminal of 24 rows, by script(1).
struct Terminal {
    _program: Group,
    bytes: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn run(node: &Host, arguments: &str, environment: &str) -> Terminal {
        let program = tripod_binary();
        let line = format!(
            "stty rows 24 cols 200; exec env {environment} {} {arguments}",
            program.display()
        );
        let mut command = node.command("script");
        command
            .args([
                "--quiet",
                "--return",
                "--flush",
                "--command",
                &line,
                "/dev/null",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut program = Group::spawn(&mut command).expect("starting script");
        let mut stdout = program.child().stdout.take().expect("it is piped");
        let (sender, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..length].to_vec());
            }
        });
        Terminal {
            _program: program,
            bytes,
            seen: String::new(),
        }
    }

    /// Returns the output since the last call, once it has `words`.
    fn until(&mut self, words: &str) -> String {
        eventually(words, SOON, || {
            while let Ok(bytes) = self.bytes.try_recv() {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
            if !self.seen.contains(words) {
                return Err(format!("{:?}", self.seen));
            }
            Ok(std::mem::take(&mut self.seen))
        })
    }
}

#[test]
fn only_what_changed_is_drawn_and_in_colours() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish_all(&web);
        let _running = started(lab, &[]);
        let mut watch = Terminal::run(&lab.node, "services --watch", "");
        let first = watch.until("\x1b[6;1H");
        assert!(first.contains("\x1b[H\x1b[2J\x1b[1;1HSERVICE"), "{first:?}");
        let endpoints = ["a", "b"].map(EndpointChoice::ready);
        let all = [&endpoints[..], &[EndpointChoice::unready("c")]].concat();
        lab.publish_endpoints(&web, &all);
        let update = watch.until("[fd00:244::13]:8080: not used: not ready");
        let colour = "\x1b[33m10.244.0.13:8080: not used: not ready\x1b[0m";
        assert!(update.contains(colour), "{update:?}");
        for unchanged in ["SERVICE", "\x1b[2J"] {
            assert!(!update.contains(unchanged), "{update:?}");
        }

        let plain = Terminal::run(&lab.node, "status", "NO_COLOR=1").until("serving");
        assert!(
            plain.contains("is healthy") && !plain.contains('\x1b'),
            "{plain:?}"
        );
        let coloured = Terminal::run(&lab.node, "status", "").until("serving");
        assert!(coloured.contains("\x1b[32mhealthy\x1b[0m"), "{coloured:?}");
    });
}
