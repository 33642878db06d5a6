//! An earlier proxy's leftovers are removed, and objects of other programs stay.

mod cleanup;
pub mod foreign;
pub mod left;
pub mod start;
pub mod state;

use std::io::Write;
use std::process::Stdio;

use super::probe::kernel;
use crate::lab::Host;

/// The engines that this kernel has and the node's other components may use; the first is that of a
/// plain `iptables`.
pub fn engines() -> &'static [&'static str] {
    match kernel().as_str() {
        "full" => &["legacy"],
        _ => &["nft", "legacy"],
    }
}

/// The name of a program, such as `ip6tables-legacy-save`. The guest has only the plain names.
pub fn program(of: &str, engine: &str, what: &str) -> String {
    match kernel().as_str() {
        "full" => format!("{of}-{what}"),
        _ => format!("{of}-{engine}-{what}"),
    }
}

/// Runs a command line with this input.
pub fn feed(node: &Host, line: &str, input: &str) {
    let mut words = line.split(' ');
    let mut command = node.command(words.next().expect("a program"));
    let mut child = command
        .args(words)
        .stdin(Stdio::piped())
        .spawn()
        .expect("starting it");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("feeding it");
    drop(stdin);
    assert!(child.wait().expect("its end").success(), "{line}:\n{input}");
}

/// Runs `iptables-restore` or `ip6tables-restore` of that engine.
pub fn restore(node: &Host, engine: &str, of: &str, batch: &str) {
    let restore = program(of, engine, "restore");
    feed(node, &format!("{restore} --noflush"), batch);
}
