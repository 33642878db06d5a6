//! Splits a file into its documents, so that a broken one does not hide those after it.

use serde::de::IgnoredAny;

/// A document of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// Number among the documents of the file, from 1.
    pub(super) number: usize,
    /// The line of the file on which `text` begins, from 1.
    pub(super) first_line: usize,
    /// The document, including its `---` line if it has one.
    pub(super) text: &'a str,
}

/// Splits a YAML stream at its document markers. Lines suffice for that: YAML forbids a marker at
/// the start of a line inside any scalar (YAML 1.2.2, production 206 `c-forbidden`).
pub(super) fn split_yaml(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let mut open = Open::at(0, 1);
    let mut offset = 0;
    for (line_number, line) in (1..).zip(text.split_inclusive('\n')) {
        if is_marker(line, "---") {
            // Text before the first marker is a separate document only if it has content.
            if open.marked || open.has_content {
                open.close(&text[open.offset..offset], &mut documents);
                open = Open::at(offset, line_number);
            }
            open.marked = true;
        } else if !is_filler(line) {
            open.has_content = true;
        }
        offset += line.len();
        if is_marker(line, "...") {
            open.close(&text[open.offset..offset], &mut documents);
            open = Open::at(offset, line_number + 1);
        }
    }
    open.close(&text[open.offset..], &mut documents);
    documents
}

/// Splits a JSON file into its values: one after the other, or between `---` lines, which `kubectl`
/// also accepts. From the first syntax error on the rest is one document, since the start of the
/// next value is unknown.
pub(super) fn split_json(text: &str) -> Vec<Document<'_>> {
    let mut documents: Vec<Document<'_>> = Vec::new();
    for section in split_yaml(text) {
        let mut text = section.text;
        let mut first_line = section.first_line;
        while let Some(line) = text.split_inclusive('\n').next()
            && (is_marker(line, "---") || line.trim().is_empty())
        {
            text = &text[line.len()..];
            first_line += 1;
        }
        while !text.trim().is_empty() {
            let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
            let end = match values.next() {
                Some(Ok(_)) => values.byte_offset().min(text.len()),
                _ => text.len(),
            };
            let (value, rest) = text.split_at(end.max(1));
            documents.push(Document {
                number: documents.len() + 1,
                first_line,
                text: value,
            });
            first_line += value.matches('\n').count();
            text = rest;
        }
    }
    documents
}

struct Open {
    offset: usize,
    first_line: usize,
    marked: bool,
    has_content: bool,
}

impl Open {
    fn at(offset: usize, first_line: usize) -> Open {
        Open {
            offset,
            first_line,
            marked: false,
            has_content: false,
        }
    }

    fn close<'a>(&self, text: &'a str, documents: &mut Vec<Document<'a>>) {
        if self.marked || self.has_content {
            documents.push(Document {
                number: documents.len() + 1,
                first_line: self.first_line,
                text,
            });
        }
    }
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// Returns whether a line has no content: blank lines, comments, directives and
/// the end marker.
fn is_filler(line: &str) -> bool {
    let trimmed = line.trim();
    trimmed.is_empty()
        || trimmed.starts_with('#')
        || line.starts_with('%')
        || is_marker(line, "...")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A text, and number, first line and text of each of its documents.
    type Case = (&'static str, &'static [(usize, usize, &'static str)]);

    fn parts(documents: Vec<Document<'_>>) -> Vec<(usize, usize, &str)> {
        let documents = documents.into_iter();
        documents
            .map(|d| (d.number, d.first_line, d.text))
            .collect()
    }

    #[test]
    fn yaml_streams() {
        let cases: [Case; 11] = [
            ("", &[]),
            ("\n# nothing\n", &[]),
            ("a: 1\n", &[(1, 1, "a: 1\n")]),
            ("---\na: 1\n", &[(1, 1, "---\na: 1\n")]),
            (
                "# licence\n\n---\na: 1\n---\nb: 2",
                &[(1, 1, "# licence\n\n---\na: 1\n"), (2, 5, "---\nb: 2")],
            ),
            (
                "a: 1\r\n---\r\nb: 2\r\n",
                &[(1, 1, "a: 1\r\n"), (2, 2, "---\r\nb: 2\r\n")],
            ),
            (
                "---\n---\nb: 2\n",
                &[(1, 1, "---\n"), (2, 2, "---\nb: 2\n")],
            ),
            ("--- {a: 1}\n", &[(1, 1, "--- {a: 1}\n")]),
            ("---x\n ---\n", &[(1, 1, "---x\n ---\n")]),
            (
                "a: 1\n...\n# between\n%YAML 1.2\n---\nb: 2\n...\n",
                &[
                    (1, 1, "a: 1\n...\n"),
                    (2, 3, "# between\n%YAML 1.2\n---\nb: 2\n...\n"),
                ],
            ),
            ("\u{feff}---\na: 1\n", &[(1, 1, "---\na: 1\n")]),
        ];
        for (text, expected) in cases {
            assert_eq!(parts(split_yaml(text)), expected, "{text:?}");
        }
    }

    #[test]
    fn json_values() {
        let cases: [Case; 4] = [
            ("", &[]),
            ("{\"a\":\n1}\n", &[(1, 1, "{\"a\":\n1}")]),
            (
                "{}\n{}\n---\n{\"b\":2}\n",
                &[(1, 1, "{}"), (2, 1, "\n{}"), (3, 4, "{\"b\":2}")],
            ),
            ("{} {\n{}\n", &[(1, 1, "{}"), (2, 1, " {\n{}\n")]),
        ];
        for (text, expected) in cases {
            assert_eq!(parts(split_json(text)), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_lost_or_reordered(lines in prop::collection::vec(
            prop::sample::select(vec!["---", "...", "a: 1", "# c", "", "%YAML 1.2", "--- b", " x"]),
            0..20,
        )) {
            let text = lines.join("\n");
            let mut at = 0;
            for document in split_yaml(&text) {
                let found = text[at..].find(document.text);
                prop_assert!(found.is_some(), "{document:?}");
                at += found.unwrap_or(0);
                let line = text[..at].matches('\n').count() + 1;
                prop_assert!(document.first_line >= line);
                at += document.text.len();
            }
            prop_assert!(text[at..].lines().all(is_filler));
        }

        #[test]
        fn any_text_can_be_split(text in any::<String>()) {
            split_yaml(&text);
            split_json(&text);
        }
    }
}
