//! The backend, which answers the requests of the loads.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use super::load::{FLOOD, MESSAGE, REST};

/// Listens at `port` of every address.
pub fn listen(port: u16) -> TcpListener {
    TcpListener::bind(("0.0.0.0", port)).expect("a listener")
}

/// Serves all connections, each with a thread.
pub fn serve(listener: &TcpListener) {
    for stream in listener.incoming().map_while(Result::ok) {
        thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(|| answer(stream))
            .expect("a thread");
    }
}

fn answer(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        if message[0] == FLOOD {
            let flood = vec![7; 1 << 20];
            loop {
                stream.write_all(&flood).ok()?;
            }
        }
        stream.write_all(&message).ok()?;
        if message[0] == REST {
            // It stays open until this process ends: there cannot be as many threads.
            std::mem::forget(stream);
            return Some(());
        }
    }
    Some(())
}
