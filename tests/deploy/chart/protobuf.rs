//! Fields of a message in the encoding of protocol buffers
//! (https://protobuf.dev/programming-guides/encoding/), as far as a Secret needs them.

/// The prefix that Kubernetes puts before a message (`runtime/serializer/protobuf` of
/// k8s.io/apimachinery).
pub const MAGIC: &[u8] = b"k8s\0";

/// Returns the first field of that number that is text, bytes or a message.
pub fn bytes(message: &[u8], field: u64) -> Option<Vec<u8>> {
    all(message, field).into_iter().next()
}

/// Collects the fields of that number that are text, bytes or messages.
pub fn all(message: &[u8], field: u64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let tag = number(&mut rest);
        match tag & 7 {
            0 => {
                number(&mut rest);
            }
            2 => {
                let length = number(&mut rest) as usize;
                let (value, after) = rest.split_at(length);
                if tag >> 3 == field {
                    found.push(value.to_vec());
                }
                rest = after;
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

/// Reads a number of variable length, the lowest seven bits first.
fn number(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().expect("a byte");
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
