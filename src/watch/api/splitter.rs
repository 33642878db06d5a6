//! Splits the body of a list into its objects as it arrives: however many the server sends, only
//! one of them is completely in memory.

use bytes::{Buf, BytesMut};

use super::lines::LONGEST;

/// Maximum length of the part of a list that is not an object: its metadata, with the token of the
/// next page.
const LONGEST_REST: usize = 1 << 20;

/// A list that arrives in pieces. Only strings, brackets and commas count here; the decoder of the
/// parts notices invalid JSON.
#[derive(Default)]
pub(super) struct Splitter {
    buffer: BytesMut,
    /// The bytes of the buffer before this position were examined.
    at: usize,
    /// Length of the last returned part, with the bytes around it.
    taken: usize,
    /// Start of the object that is being read.
    start: Option<usize>,
    /// The list without its objects.
    rest: Vec<u8>,
    depth: usize,
    in_items: bool,
    in_string: bool,
    escaped: bool,
    /// The beginning of the last string in the outermost object: the key of the next value.
    key: Vec<u8>,
}

enum Boundary {
    Begin,
    Between,
    End,
}

impl Splitter {
    /// Adds the next piece of the body.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next object; `None` if it is not complete yet.
    ///
    /// # Errors
    /// When a part of the list is too long.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, String> {
        // Only now, because the caller had borrowed it.
        self.buffer.advance(std::mem::take(&mut self.taken));
        while let Some(&byte) = self.buffer.get(self.at) {
            self.at += 1;
            let Some(boundary) = self.boundary(byte) else {
                if self.in_items && self.start.is_none() && !byte.is_ascii_whitespace() {
                    self.start = Some(self.at - 1);
                }
                continue;
            };
            let length = std::mem::take(&mut self.at);
            match boundary {
                Boundary::Begin => self.rest.extend_from_slice(&self.buffer[..length]),
                Boundary::Between => {}
                Boundary::End => self.rest.push(byte),
            }
            if let Some(start) = self.start.take() {
                self.taken = length;
                return Ok(Some(&self.buffer[start..length - 1]));
            }
            self.buffer.advance(length);
        }
        if !self.in_items {
            self.rest.extend_from_slice(&self.buffer);
            self.buffer.clear();
            self.at = 0;
        }
        if self.buffer.len() > LONGEST {
            let limit = LONGEST >> 20;
            return Err(format!("an object of a list is longer than {limit} MiB"));
        }
        if self.rest.len() > LONGEST_REST {
            let limit = LONGEST_REST >> 20;
            return Err(format!(
                "a list has over {limit} MiB in addition to its objects"
            ));
        }
        Ok(None)
    }

    /// Returns the list without its objects, when the body has ended.
    ///
    /// # Errors
    /// When the list is not complete.
    pub(super) fn end(self) -> Result<Vec<u8>, String> {
        if self.depth > 0 || self.in_string {
            return Err("the answer ended within a list".to_owned());
        }
        Ok(self.rest)
    }

    /// Examines a byte. Returns which boundary of an object it is.
    fn boundary(&mut self, byte: u8) -> Option<Boundary> {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ if self.depth == 1 && self.key.len() <= ITEMS.len() => self.key.push(byte),
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == 2 && byte == b'[' && self.key == ITEMS {
                    self.in_items = true;
                    return Some(Boundary::Begin);
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && std::mem::take(&mut self.in_items) {
                    return Some(Boundary::End);
                }
            }
            b',' if self.in_items && self.depth == 2 => return Some(Boundary::Between),
            _ => {}
        }
        None
    }
}

const ITEMS: &[u8] = b"items";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Splits a list that arrives in pieces of that length into its objects and the rest.
    fn split(text: &[u8], length: usize) -> Result<(Vec<String>, String), String> {
        let mut splitter = Splitter::default();
        let mut items = Vec::new();
        for piece in text.chunks(length) {
            splitter.feed(piece);
            while let Some(item) = splitter.next()? {
                items.push(String::from_utf8_lossy(item).trim().to_owned());
            }
        }
        let rest = String::from_utf8_lossy(&splitter.end()?).into_owned();
        Ok((items, rest))
    }

    #[test]
    fn a_list_is_split_into_its_objects_and_the_rest() {
        let cases: [(&str, &[&str], &str); 6] = [
            (r#"{"items":[]}"#, &[], r#"{"items":[]}"#),
            (
                r#"{"kind":"items","items":[{"a":[1,{"b":"]},\"["}]} , {} ],"metadata":{"items":[1,2]}}"#,
                &[r#"{"a":[1,{"b":"]},\"["}]}"#, "{}"],
                r#"{"kind":"items","items":[],"metadata":{"items":[1,2]}}"#,
            ),
            (
                "{\"items\" : [\n1,\"x,]\",null\n]}",
                &["1", "\"x,]\"", "null"],
                "{\"items\" : []}",
            ),
            (r#"{"items":null}"#, &[], r#"{"items":null}"#),
            (
                r#"{"itemsx":[1],"item":[2]}"#,
                &[],
                r#"{"itemsx":[1],"item":[2]}"#,
            ),
            ("nonsense", &[], "nonsense"),
        ];
        for (text, items, rest) in cases {
            for length in 1..=text.len() {
                let (found, left) = split(text.as_bytes(), length).expect(text);
                assert_eq!(
                    (&*left, found),
                    (rest, items.iter().map(|i| (*i).to_owned()).collect()),
                    "{length}"
                );
            }
        }
        for text in [
            "{",
            r#"{"items":["#,
            r#"{"items":[{}"#,
            r#"{"items":[]"#,
            "\"",
        ] {
            assert!(split(text.as_bytes(), 1).is_err(), "{text}");
        }
    }

    /// Each would fill any memory if it were read to its end.
    #[test]
    fn lists_that_do_not_end_are_not_read_to_their_end() {
        for (begin, more) in [
            (r#"{"items":[{"a":""#, "x"),
            (r#"{"items":["#, "["),
            (r#"{"items":["#, " "),
            (r#"{"metadata":{"continue":""#, "x"),
            ("", " "),
            ("", "{"),
            ("\"", "x"),
        ] {
            let mut splitter = Splitter::default();
            splitter.feed(begin.as_bytes());
            let piece = more.repeat(1 << 20);
            let failed = (0..100).any(|_| {
                splitter.feed(piece.as_bytes());
                splitter.next().is_err()
            });
            assert!(failed, "{begin}");
        }
    }

    /// Many small objects take no memory here.
    #[test]
    fn objects_are_not_kept() {
        let mut splitter = Splitter::default();
        splitter.feed(b"{\"items\":[");
        let piece = r#"{"a":1},"#.repeat(1000);
        let mut items = 0;
        for _ in 0..1000 {
            splitter.feed(piece.as_bytes());
            while splitter.next().unwrap().is_some() {
                items += 1;
            }
        }
        assert_eq!(items, 1_000_000);
        assert!(splitter.buffer.capacity() < 1 << 20);
    }

    proptest! {
        #[test]
        fn what_is_split_is_what_was_there(
            items in prop::collection::vec(prop::sample::select(vec![
                json!({}), json!({"items": [1, 2]}), json!({"a": "\"]},{[\\"}), json!([[], "]"]),
            ]), 0..5),
            length in 1_usize..40,
        ) {
            let list = json!({"items": items, "metadata": {"resourceVersion": "7"}});
            let (found, rest) = split(list.to_string().as_bytes(), length).unwrap();
            let found: Vec<Value> = found.iter().map(|i| serde_json::from_str(i).unwrap()).collect();
            prop_assert_eq!(found, items);
            let rest: Value = serde_json::from_str(&rest).unwrap();
            prop_assert_eq!(rest, json!({"items": [], "metadata": {"resourceVersion": "7"}}));
        }
    }
}
