//! The smallest web server that shows who answered, and a client for it.
//!
//! ```sh
//! cargo run --example whoami -- serve alice 127.0.0.1:8080 &
//! curl http://127.0.0.1:8080    # prints: alice
//! cargo run --example whoami -- call 127.0.0.1:8080    # the same
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
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

/// How long each side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells every caller its name.
fn serve(name: &str, address: &str) -> Result<(), Box<dyn Error>> {
    for caller in TcpListener::bind(address)?.incoming() {
        let name = name.to_owned();
        // A caller that has gone is no reason to stop.
        std::thread::spawn(move || caller.and_then(|caller| answer(caller, &name)));
    }
    Ok(())
}

/// Reads a request without a body, and answers it.
fn answer(mut caller: TcpStream, name: &str) -> std::io::Result<()> {
    caller.set_read_timeout(Some(PATIENCE))?;
    let request = BufReader::new(caller.try_clone()?.take(8192));
    for line in request.lines() {
        if line?.is_empty() {
            break;
        }
    }
    let length = name.len() + 1;
    write!(
        caller,
        "HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n{name}\n"
    )
}

/// Prints who answers.
fn call(address: &str) -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = address.parse()?;
    let mut server = TcpStream::connect_timeout(&address, PATIENCE)?;
    server.set_read_timeout(Some(PATIENCE))?;
    write!(server, "GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((_, name)) if !name.is_empty() => print!("{name}"),
        _ => return Err(format!("{address} said nothing").into()),
    }
    Ok(())
}
