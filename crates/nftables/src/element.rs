//! Elements of sets and maps.

use std::{collections::HashSet, fmt, time::Duration};

use netlink::{Attribute, Malformed, Message, Request};

use super::{
    HEADER,
    datatype::{DataType, Span, write_range},
    expression::{Expression, attributes::counter},
    set::Set,
    userdata::{self, Comment, UserData},
    verdict::{Datum, VALUE},
};

// enum nft_set_elem_list_attributes
pub(super) const TABLE: u16 = 1;
pub(super) const SET: u16 = 2;
pub(super) const ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM` of `linux/netfilter/nf_tables.h`.
const ELEMENT: u16 = 1;
// enum nft_set_elem_attributes
const KEY: u16 = 1;
const DATA: u16 = 2;
const FLAGS: u16 = 3;
const TIMEOUT: u16 = 4;
const EXPIRATION: u16 = 5;
const USERDATA: u16 = 6;
const EXPRESSION: u16 = 7;
const KEY_END: u16 = 10;
/// `NFT_SET_ELEM_INTERVAL_END` of `linux/netfilter/nf_tables.h`.
const F_END: u32 = 1;
/// `NFT_SET_ELEM_CATCHALL` of `linux/netfilter/nf_tables.h`.
const F_CATCHALL: u32 = 2;
/// `NFTNL_UDATA_SET_ELEM_COMMENT` of `libnftnl/udata.h`.
const COMMENT: u8 = 0;
/// Elements are put into one message up to this size: the length of the
/// attribute that holds them all has 16 bits.
const MESSAGE: usize = 60_000;

/// An element of a set or a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The key, as [`concat`](super::concat) makes it; for a range, the least.
    pub key: Box<[u8]>,
    /// The greatest key of a range: in a concatenation each value is at least that of `key` and at
    /// most that of `end`; `None`: the element is a single key.
    pub end: Option<Box<[u8]>>,
    /// The value to which a map maps the key; `None`: the element is of a set.
    pub data: Option<Datum>,
    /// Time after which the kernel removes the element; `None`: that of the set, if it has one.
    pub timeout: Option<Duration>,
    /// Remaining time until the element is removed; `None`: it has no timeout. For a new element,
    /// it is added as if the rest of `timeout` had passed.
    pub expires: Option<Duration>,
    /// Its counter, in a set whose elements count; never sent to the kernel. `None`: it has none.
    pub counted: Option<Counted>,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
}

/// Packets that matched an element since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counted {
    /// Number of packets that matched the element.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
}

impl Counted {
    /// Returns the counts of a counter; `None` for other expressions.
    pub(super) fn of(expression: &Expression) -> Option<Counted> {
        (expression.name == "counter").then(|| Counted {
            packets: expression.number(counter::PACKETS),
            bytes: expression.number(counter::BYTES),
        })
    }
}

impl Element {
    /// Returns an element of a set.
    pub fn new(key: impl Into<Box<[u8]>>) -> Element {
        Element {
            key: key.into(),
            end: None,
            data: None,
            timeout: None,
            expires: None,
            counted: None,
            comment: None,
        }
    }

    /// Returns an element of a map.
    pub fn with(key: impl Into<Box<[u8]>>, data: Datum) -> Element {
        Element {
            data: Some(data),
            ..Element::new(key)
        }
    }

    /// Returns a range of a set, its ends included.
    pub fn range(key: impl Into<Box<[u8]>>, end: impl Into<Box<[u8]>>) -> Element {
        Element {
            end: Some(end.into()),
            ..Element::new(key)
        }
    }

    /// Returns the same element with a comment.
    #[must_use]
    pub fn commented(mut self, comment: &str) -> Element {
        self.comment = Some(Comment::new(comment));
        self
    }

    /// Returns the same element without the parts that change by themselves: the rest of its
    /// timeout, and its counter. An element that was sent equals the listed one in this form.
    #[must_use]
    pub fn comparable(self) -> Element {
        Element {
            expires: None,
            counted: None,
            ..self
        }
    }

    /// Returns how it is named as an element of `set`, in the words of `nft`.
    pub fn named(&self, set: &Set) -> String {
        format!("element {} of set {}", Shown(self, set), set.name)
    }

    /// Returns at least the number of its octets on the wire.
    fn room(&self) -> usize {
        let octets = |o: &Option<Box<[u8]>>| o.as_ref().map_or(0, |o| o.len() + 12);
        let comment = self.comment.as_ref().map_or(0, |c| c.as_str().len() + 12);
        let data = match &self.data {
            Some(Datum::Value(octets)) => octets.len() + 12,
            // With the longest name of a chain (NFT_NAME_MAXLEN).
            Some(Datum::Verdict(_)) => 280,
            None => 0,
        };
        // A range of single values is two elements.
        2 * (self.key.len() + 12) + octets(&self.end) + data + comment + 60
    }

    fn write(&self, r: Request, set: &Set, purpose: Purpose) -> Request {
        let millis = |time: Duration| time.as_millis() as u64;
        let adds = purpose == Purpose::Add;
        let r = r.nested(ELEMENT, |mut r| {
            if let Some(timeout) = self.timeout.filter(|_| adds) {
                r = r.be64(TIMEOUT, millis(timeout));
            }
            if let Some(expires) = self.expires.filter(|_| adds) {
                r = r.be64(EXPIRATION, millis(expires));
            }
            r = value(r, KEY, &self.key);
            if set.ranges_of_concat() {
                r = value(r, KEY_END, self.end.as_ref().unwrap_or(&self.key));
            }
            if !adds {
                return r;
            }
            if let Some(data) = &self.data {
                r = r.nested(DATA, |r| data.write(r));
            }
            let user = UserData::default().comment(COMMENT, self.comment.as_ref());
            match user.octets() {
                Some(octets) => r.attribute(USERDATA, octets),
                None => r,
            }
        });
        if !set.ranges_of_one() {
            return r;
        }
        // The end is the first key after the range, unless there is none.
        let mut after = self.end.as_ref().unwrap_or(&self.key).to_vec();
        if !step(&mut after, u8::overflowing_add) {
            return r;
        }
        r.nested(ELEMENT, |r| value(r.be32(FLAGS, F_END), KEY, &after))
    }
}

fn value(r: Request, kind: u16, octets: &[u8]) -> Request {
    r.nested(kind, |r| r.attribute(VALUE, octets))
}

/// Adds 1 to a number in network order, or subtracts it, as `with` does with one
/// octet; false if that number does not fit. Ranges are only of types in that order.
fn step(octets: &mut [u8], with: fn(u8, u8) -> (u8, bool)) -> bool {
    for octet in octets.iter_mut().rev() {
        let (next, over) = with(*octet, 1);
        *octet = next;
        if !over {
            return true;
        }
    }
    false
}

/// Returns how many of `elements` go into one message.
pub(super) fn fitting(elements: &[Element]) -> usize {
    let mut room = 0;
    let fits = |element: &&Element| {
        room += element.room();
        room <= MESSAGE
    };
    elements.iter().take_while(fits).count().max(1)
}

/// Purpose of a message with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Add,
    /// The key names the element.
    Delete,
}

/// Appends the list of `elements` to a message about `set`.
pub(super) fn write(r: Request, set: &Set, elements: &[Element], purpose: Purpose) -> Request {
    r.nested(ELEMENTS, |r| {
        let each = |r: Request, element: &Element| element.write(r, set, purpose);
        elements.iter().fold(r, each)
    })
}

/// An element on the wire: for a range of single values, one of its ends.
struct Raw {
    element: Element,
    is_end: bool,
    is_catchall: bool,
}

impl Raw {
    fn read(attribute: Attribute<'_>) -> Result<Raw, Malformed> {
        let mut element = Element::new([]);
        let mut flags = 0;
        for inner in attribute.nested() {
            let inner = inner?;
            match inner.kind {
                KEY => element.key = Datum::octets(inner)?,
                KEY_END => element.end = Some(Datum::octets(inner)?),
                DATA => element.data = Some(Datum::read(inner)?),
                FLAGS => flags = inner.be32()?,
                TIMEOUT => element.timeout = Some(Duration::from_millis(inner.be64()?)),
                EXPIRATION => element.expires = Some(Duration::from_millis(inner.be64()?)),
                EXPRESSION => {
                    element.counted = Counted::of(&Expression::read(inner)?);
                }
                USERDATA => element.comment = userdata::comment(inner.payload, COMMENT),
                _ => {}
            }
        }
        let key = &element.key;
        element.end = element.end.take_if(|end| end != key);
        Ok(Raw {
            element,
            is_end: flags & F_END != 0,
            is_catchall: flags & F_CATCHALL != 0,
        })
    }
}

/// Content of one message of a dump; [`Found::elements`] puts the messages together.
pub struct Found(Vec<Raw>);

impl Found {
    /// Reads the elements in a message of a dump.
    pub fn read(message: Message<'_>) -> Result<Found, Malformed> {
        let mut found = Vec::new();
        for attribute in message.attributes(HEADER) {
            let attribute = attribute?;
            if attribute.kind == ELEMENTS {
                for element in attribute.nested() {
                    found.push(Raw::read(element?)?);
                }
            }
        }
        Ok(Found(found))
    }

    /// Returns true if an element is listed more than once. The kernel dumps a
    /// hash table that grows in the background by the number of elements that it
    /// listed already: it lists some twice, and others never
    /// (`nft_rhash_walk` in `net/netfilter/nft_set_hash.c`). The generation is
    /// the same then.
    pub(super) fn repeats(messages: &[Found]) -> bool {
        let mut seen = HashSet::new();
        let raw = messages.iter().flat_map(|found| &found.0);
        let listed = raw.filter(|raw| !raw.is_catchall);
        let mut listed = listed.map(|raw| (&raw.element.key, &raw.element.end, raw.is_end));
        !listed.all(|one| seen.insert(one))
    }

    /// Puts together the elements of `set` in all messages of its dump, in no order.
    pub(super) fn elements(messages: Vec<Found>, ranges_of_one: bool) -> Vec<Element> {
        let raw = messages.into_iter().flat_map(|found| found.0);
        let raw = raw.filter(|raw| !raw.is_catchall);
        if !ranges_of_one {
            return raw.map(|raw| raw.element).collect();
        }
        let mut raw: Vec<Raw> = raw.collect();
        // The end of one range comes before the beginning of the next.
        raw.sort_by(|a, b| (&a.element.key, !a.is_end).cmp(&(&b.element.key, !b.is_end)));
        let mut ranges: Vec<Element> = Vec::new();
        let mut open = false;
        for raw in raw {
            if open && let Some(last) = ranges.last_mut() {
                let mut end = raw.element.key.clone();
                step(&mut end, u8::overflowing_sub);
                last.end = Some(end).filter(|end| *end != last.key);
            }
            open = !raw.is_end;
            if open {
                ranges.push(raw.element);
            }
        }
        if let (true, Some(last)) = (open, ranges.last_mut()) {
            let greatest = vec![u8::MAX; last.key.len()].into_boxed_slice();
            last.end = Some(greatest).filter(|end| *end != last.key);
        }
        ranges
    }
}

/// The key of an element of a set, whose types say how its octets read.
pub(super) struct Key<'a>(pub &'a Element, pub &'a Set);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key(element, set) = self;
        let end = element.end.as_ref().unwrap_or(&element.key);
        values(&set.key.types(), &element.key, end, f)
    }
}

/// An element with all that belongs to it.
pub(super) struct Shown<'a>(pub &'a Element, pub &'a Set);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(element, set) = self;
        Key(element, set).fmt(f)?;
        if let Some(timeout) = element.timeout {
            write!(f, " timeout {}", Span(timeout))?;
        }
        if let Some(expires) = element.expires {
            write!(f, " expires {}", Span(expires))?;
        }
        if let Some(comment) = &element.comment {
            write!(f, " comment \"{}\"", comment.as_str())?;
        }
        match &element.data {
            None => Ok(()),
            Some(Datum::Verdict(verdict)) => write!(f, " : {verdict}"),
            Some(Datum::Value(octets)) => {
                f.write_str(" : ")?;
                values(&set.data_types(), octets, octets, f)
            }
        }
    }
}

/// Writes a concatenation; octets that its types do not account for are left out.
fn values(types: &[DataType], key: &[u8], end: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut at = 0;
    for (index, of) in types.iter().enumerate() {
        let point = if index == 0 { "" } else { " . " };
        f.write_str(point)?;
        let part = at..at + of.octets();
        let part = |octets: &'_ [u8]| octets.get(part.clone()).unwrap_or_default().to_vec();
        write_range(*of, &part(key), &part(end), f)?;
        at += of.padded();
    }
    Ok(())
}
