//! User data: bytes that the kernel keeps with an object without looking at them. `nft` writes
//! types and comments there, and reads them when it lists.

/// Longest user data (`NFT_USERDATA_MAXLEN`).
const LONGEST: usize = 256;
/// Longest comment that `nft` takes, with its NUL (`NFTNL_UDATA_COMMENT_MAXLEN`).
const COMMENT: usize = 128;

/// A comment that `nft` can print and read again: at most 127 octets, without
/// quotation marks and control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Comment(Box<str>);

impl Comment {
    /// A comment with this text, cut to fit.
    pub fn new(text: &str) -> Comment {
        let mut comment = String::with_capacity(text.len().min(COMMENT));
        for c in text.chars().filter(|c| !c.is_control() && *c != '"') {
            if comment.len() + c.len_utf8() >= COMMENT {
                break;
            }
            comment.push(c);
        }
        Comment(comment.into())
    }

    /// The text of the comment.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Attributes of user data: a type, a length and the octets, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserData(Vec<u8>);

impl UserData {
    /// Appends an attribute. One that does not fit the whole is left out.
    pub(super) fn attribute(mut self, kind: u8, octets: &[u8]) -> UserData {
        let fits = self.0.len() + 2 + octets.len() <= LONGEST;
        if let (true, Ok(length)) = (fits, u8::try_from(octets.len())) {
            self.0.extend([kind, length]);
            self.0.extend(octets);
        }
        self
    }

    /// Appends a number in host order, as `nft` does.
    pub(super) fn number(self, kind: u8, number: u32) -> UserData {
        self.attribute(kind, &number.to_ne_bytes())
    }

    pub(super) fn nested(self, kind: u8, inner: UserData) -> UserData {
        self.attribute(kind, &inner.0)
    }

    pub(super) fn comment(self, kind: u8, comment: Option<&Comment>) -> UserData {
        match comment {
            Some(comment) => {
                let mut octets = comment.as_str().as_bytes().to_vec();
                octets.push(0);
                self.attribute(kind, &octets)
            }
            None => self,
        }
    }

    /// Returns its octets; `None` if there are none.
    pub(super) fn octets(&self) -> Option<&[u8]> {
        (!self.0.is_empty()).then_some(&self.0)
    }
}

/// Returns the attributes in user data that any process may have written: reading ends
/// with the first that is cut.
fn attributes(octets: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = octets;
    std::iter::from_fn(move || {
        let (kind, length) = (*rest.first()?, usize::from(*rest.get(1)?));
        let inner = rest.get(2..2 + length)?;
        rest = &rest[2 + length..];
        Some((kind, inner))
    })
}

/// Content of the attribute of that kind; `None`: there is none.
fn find(octets: &[u8], kind: u8) -> Option<&[u8]> {
    attributes(octets).find(|(k, _)| *k == kind).map(|(_, o)| o)
}

/// Reads the comment of that kind; `None` also for octets that are not a comment.
pub(super) fn comment(octets: &[u8], kind: u8) -> Option<Comment> {
    let text = find(octets, kind)?;
    let end = text.iter().position(|octet| *octet == 0)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    (!text.is_empty()).then(|| Comment::new(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_comment_is_what_nft_can_read_again() {
        assert_eq!(Comment::new("a/b:\"c\"\n").as_str(), "a/b:c");
        assert_eq!(Comment::new(&"x".repeat(300)).as_str().len(), 127);
        assert_eq!(Comment::new(&"é".repeat(300)).as_str().len(), 126);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_and_nothing_panics(
            octets in prop::collection::vec(any::<u8>(), 0..300),
            text in "[a-z/:]{1,40}",
        ) {
            for (kind, _) in attributes(&octets) {
                let _ = comment(&octets, kind);
            }
            let written = Comment::new(&text);
            let data = UserData::default().number(3, 7).comment(0, Some(&written));
            prop_assert_eq!(comment(data.octets().unwrap(), 0), Some(written));
            prop_assert_eq!(find(data.octets().unwrap(), 3), Some(&7u32.to_ne_bytes()[..]));
        }
    }
}
