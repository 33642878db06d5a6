//! Lines of shell, as far as documents use it, split into commands.

/// Splits `line` into commands and their words, including those within `$( )`, without
/// redirections, variable assignments and comments. `$()` stands for the output of a command.
pub fn commands(line: &str) -> Vec<Vec<String>> {
    let mut split = Split::default();
    split.read(&mut line.chars().peekable(), None);
    split.done
}

#[derive(Default)]
struct Split {
    done: Vec<Vec<String>>,
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// A command that is being read.
#[derive(Default)]
struct Command {
    words: Vec<String>,
    word: Option<String>,
    /// Whether the next word names a file that is read or written.
    redirects: bool,
}

impl Command {
    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        let is_set = self.words.is_empty()
            && word.split_once('=').is_some_and(|(name, _)| {
                let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
                !name.is_empty() && name.chars().all(is_of_name)
            });
        if !std::mem::take(&mut self.redirects) && !is_set {
            self.words.push(word);
        }
    }
}

impl Split {
    /// Reads until `end`, or the end of the line.
    fn read(&mut self, from: &mut Characters<'_>, end: Option<char>) {
        let mut command = Command::default();
        let mut quote = None;
        while let Some(character) = from.next() {
            match (quote, character) {
                (Some(open), close) if open == close => quote = None,
                (None | Some('"'), '$') if from.next_if_eq(&'(').is_some() => {
                    self.read(from, Some(')'));
                    command.word.get_or_insert_default().push_str("$()");
                }
                (Some(_), other) => command.push(other),
                (None, '"' | '\'') => {
                    quote = Some(character);
                    command.word.get_or_insert_default();
                }
                (None, '#') if command.word.is_none() => break,
                (None, ')') if end == Some(')') => break,
                (None, '>' | '<') => {
                    // A number before it is that of the stream.
                    let number = |word: &String| word.parse::<u8>().is_ok();
                    if command.word.as_ref().is_some_and(number) {
                        command.word = None;
                    }
                    command.end_word();
                    command.redirects = true;
                    from.next_if_eq(&'&');
                }
                (None, '|' | ';' | '&' | '(' | ')') => {
                    command.end_word();
                    self.end(std::mem::take(&mut command));
                }
                (None, space) if space.is_whitespace() => command.end_word(),
                (None, other) => command.push(other),
            }
        }
        command.end_word();
        self.end(command);
    }

    fn end(&mut self, command: Command) {
        if !command.words.is_empty() {
            self.done.push(command.words);
        }
    }
}

#[test]
fn lines_of_the_shell_are_split_into_commands() {
    for (line, expected) in [
        ("make demo  # at work", &["make demo"][..]),
        ("(cd a && b \"$X\") | c; d &", &["cd a", "b $X", "c", "d"]),
        ("T=$(x create token y)", &["x create token y"]),
        (
            "x \"s/$(h -I | cut -d' ' -f1)/\" f >g 2>&1",
            &["h -I", "cut -d  -f1", "x s/$()/ f"],
        ),
        ("a 'b | c' >/dev/null", &["a b | c"]),
        ("# a remark", &[]),
    ] {
        let found: Vec<_> = commands(line).iter().map(|words| words.join(" ")).collect();
        assert_eq!(found, expected, "{line}");
    }
}
