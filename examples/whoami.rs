//! The smallest server that shows who answered, and a client for it.
//!
//! ```sh
//! cargo run --example whoami -- serve alice 127.0.0.1:8080 &
//! cargo run --example whoami -- call 127.0.0.1:8080    # prints: alice
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve", name, address] => serve(name, address),
        ["call", address] => call(address),
        _ => Err("usage: whoami serve NAME ADDRESS:PORT | whoami call ADDRESS:PORT".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whoami: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Tells every caller its name.
fn serve(name: &str, address: &str) -> Result<(), Box<dyn Error>> {
    for caller in TcpListener::bind(address)?.incoming() {
        // A caller that has gone is no reason to stop.
        let _ = caller.and_then(|mut caller| writeln!(caller, "{name}"));
    }
    Ok(())
}

/// Prints who answers.
fn call(address: &str) -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = address.parse()?;
    let patience = Duration::from_secs(5);
    let mut server = TcpStream::connect_timeout(&address, patience)?;
    server.set_read_timeout(Some(patience))?;
    let mut name = String::new();
    server.read_to_string(&mut name)?;
    if name.is_empty() {
        return Err(format!("{address} said nothing").into());
    }
    print!("{name}");
    Ok(())
}
