//! Tests against the kernel, and against the program `nft`.

mod attributes;
mod consistency;
mod example;
mod listing;
mod refusals;
mod round_trip;
mod same_as_nft;
mod watching;

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use testing::sh;

/// Runs `nft` on `input`, in the thread's network namespace.
fn nft(options: &[&str], input: &str) -> Output {
    let mut nft = Command::new("nft")
        .args(options)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = nft.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = nft.wait_with_output().unwrap();
    writer.join().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    output
}
