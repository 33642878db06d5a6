//! Sets, and maps, which are sets whose elements have data.

use std::{fmt, sync::Arc};

use netlink::{Malformed, Message, Request};

use super::{
    datatype::{ByteOrder, DataType},
    described,
    expression::Expression,
    field::{Concat, Field},
    userdata::{Comment, UserData},
};

// enum nft_set_attributes
pub(super) const TABLE: u16 = 1;
pub(super) const NAME: u16 = 2;
const FLAGS: u16 = 3;
const KEY_TYPE: u16 = 4;
const KEY_LEN: u16 = 5;
const DATA_TYPE: u16 = 6;
const DATA_LEN: u16 = 7;
const DESCRIPTION: u16 = 9;
const ID: u16 = 10;
const USERDATA: u16 = 13;
const EXPRESSION: u16 = 17;
// enum nft_set_desc_attributes
const SIZE: u16 = 1;
const CONCAT: u16 = 2;
/// `NFTA_SET_FIELD_LEN` of `linux/netfilter/nf_tables.h`.
const FIELD_LEN: u16 = 1;
/// `NFTA_LIST_ELEM` of `linux/netfilter/nf_tables.h`.
const ELEMENT: u16 = 1;
// enum nft_set_flags
const F_ANONYMOUS: u32 = 0x1;
const F_INTERVAL: u32 = 0x4;
const F_MAP: u32 = 0x8;
const F_TIMEOUT: u32 = 0x10;
const F_EVAL: u32 = 0x20;
const F_CONCAT: u32 = 0x80;
/// `NFT_DATA_VERDICT` of `linux/netfilter/nf_tables.h`.
const VERDICT: u32 = 0xffff_ff00;
// NFTNL_UDATA_SET_*
const KEY_ORDER: u8 = 0;
const DATA_ORDER: u8 = 1;
const KEY_TYPEOF: u8 = 3;
const DATA_TYPEOF: u8 = 4;
const DATA_INTERVAL: u8 = 6;
const COMMENT: u8 = 7;

/// The type of keys or data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Values of these types (`type …`).
    Named(Vec<DataType>),
    /// The types of these fields (`typeof …`): types without a name, such as that of `numgen`, can
    /// be declared only in this way.
    Of(Vec<Field>),
}

impl Type {
    /// The types of the values, in the order of a concatenation.
    pub fn types(&self) -> Vec<DataType> {
        match self {
            Type::Named(types) => types.clone(),
            Type::Of(fields) => fields.iter().map(Field::data_type).collect(),
        }
    }

    fn len(&self) -> usize {
        match &self.types()[..] {
            [one] => one.octets(),
            many => many.iter().map(|t| t.padded()).sum(),
        }
    }

    fn order(&self) -> ByteOrder {
        match &self.types()[..] {
            [one] => one.order(),
            _ => ByteOrder::Invalid,
        }
    }

    fn described(&self) -> Option<UserData> {
        match self {
            Type::Named(types) => (types.len() > 1).then(described::bare_concat),
            Type::Of(fields) => described::write(fields),
        }
    }
}

/// Data of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Each key has a verdict.
    Verdict,
    /// Values. They have to be declared as the key is: by types or by fields.
    Values(Type),
}

impl Data {
    fn number(&self) -> u32 {
        match self {
            Data::Verdict => VERDICT,
            Data::Values(data) => DataType::concatenation(&data.types()),
        }
    }
}

/// What the kernel lists the elements of a set by.
pub(super) struct Listing<'a> {
    /// `set` or `map`.
    pub(super) word: &'static str,
    pub(super) name: &'a str,
    /// Whether packets add elements meanwhile.
    pub(super) dynamic: bool,
    /// Whether it holds ranges of single values: the kernel has their ends as elements of their own.
    pub(super) ranges_of_one: bool,
}

/// A set or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The name, unique in its table.
    pub name: Arc<str>,
    /// Type of its keys.
    pub key: Type,
    /// Type of the values of a map; `None`: it is a set.
    pub data: Option<Data>,
    /// Its elements may be ranges.
    pub interval: bool,
    /// Whether rules add or update elements.
    pub dynamic: bool,
    /// Its elements may have timeouts.
    pub timeouts: bool,
    /// Maximum number of elements, for which the kernel allocates a hash table at once; `None`: the
    /// table grows with the elements. Then there is no limit, except for a dynamic set: it has at
    /// most [`Set::MOST_DYNAMIC`].
    pub size: Option<u32>,
    /// Whether each element has a counter of packets and bytes.
    pub counter: bool,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
}

impl Set {
    /// Maximum number of elements of a set that a rule writes, if its declaration names none
    /// (`nft_dynset_init` of `net/netfilter/nft_dynset.c`).
    pub const MOST_DYNAMIC: u32 = 0xffff;

    /// Returns a set of these keys.
    pub fn new(name: &str, key: Type) -> Set {
        Set {
            name: name.into(),
            key,
            data: None,
            interval: false,
            dynamic: false,
            timeouts: false,
            size: None,
            counter: false,
            comment: None,
        }
    }

    /// Returns a map from these keys to these data.
    pub fn map(name: &str, key: Type, data: Data) -> Set {
        Set {
            data: Some(data),
            ..Set::new(name, key)
        }
    }

    /// Returns true if it holds ranges of concatenations, not of single values.
    pub(super) fn ranges_of_concat(&self) -> bool {
        self.interval && self.key.types().len() > 1
    }

    pub(super) fn ranges_of_one(&self) -> bool {
        self.interval && self.key.types().len() == 1
    }

    pub(super) fn listing(&self) -> Listing<'_> {
        Listing {
            word: self.word(),
            name: &self.name,
            dynamic: self.dynamic,
            ranges_of_one: self.ranges_of_one(),
        }
    }

    pub(super) fn data_types(&self) -> Vec<DataType> {
        match &self.data {
            Some(Data::Values(data)) => data.types(),
            _ => Vec::new(),
        }
    }

    fn flags(&self) -> u32 {
        [
            (self.interval, F_INTERVAL),
            (self.ranges_of_concat(), F_CONCAT),
            (self.data.is_some(), F_MAP),
            (self.timeouts, F_TIMEOUT),
            (self.dynamic, F_EVAL),
        ]
        .into_iter()
        .filter(|(is, _)| *is)
        .fold(0, |flags, (_, flag)| flags | flag)
    }

    /// Appends the set; `id` is a number that no other new set of the transaction has.
    pub(super) fn write(&self, request: Request, id: u32) -> Request {
        let types = self.key.types();
        let mut r = request
            .text(NAME, &self.name)
            .be32(FLAGS, self.flags())
            .be32(KEY_TYPE, DataType::concatenation(&types))
            .be32(KEY_LEN, self.key.len() as u32);
        if let Some(data) = &self.data {
            let len = match data {
                Data::Verdict => 0,
                Data::Values(data) => data.len(),
            };
            r = r.be32(DATA_TYPE, data.number()).be32(DATA_LEN, len as u32);
        }
        r = r.be32(ID, id);
        if self.size.is_some() || self.ranges_of_concat() {
            r = r.nested(DESCRIPTION, |mut r| {
                if let Some(size) = self.size {
                    r = r.be32(SIZE, size);
                }
                if !self.ranges_of_concat() {
                    return r;
                }
                r.nested(CONCAT, |r| {
                    types.iter().fold(r, |r, t| {
                        r.nested(ELEMENT, |r| r.be32(FIELD_LEN, t.octets() as u32))
                    })
                })
            });
        }
        if let Some(octets) = self.user_data().octets() {
            r = r.attribute(USERDATA, octets);
        }
        if self.counter {
            r = r.nested(EXPRESSION, |r| Expression::new("counter").write(r));
        }
        r
    }

    fn user_data(&self) -> UserData {
        let mut user = UserData::default().number(KEY_ORDER, self.key.order() as u32);
        if let Some(data) = &self.data {
            let order = match data {
                Data::Verdict => ByteOrder::Invalid,
                Data::Values(data) => data.order(),
            };
            user = user.number(DATA_ORDER, order as u32);
        }
        if let Some(described) = self.key.described() {
            user = user.nested(KEY_TYPEOF, described);
        }
        let data = match (&self.data, &self.key) {
            (Some(Data::Verdict), Type::Of(_)) => Some(described::bare(described::VERDICT)),
            (Some(Data::Values(data)), _) => data.described(),
            _ => None,
        };
        if let Some(described) = data {
            user = user.nested(DATA_TYPEOF, described);
        }
        if self.data.is_some() {
            user = user.number(DATA_INTERVAL, 0);
        }
        user.comment(COMMENT, self.comment.as_ref())
    }

    pub(super) fn word(&self) -> &'static str {
        word(self.data.is_some())
    }

    /// Writes the text between the braces after `add set` or `add map`.
    pub(super) fn body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ ")?;
        match &self.key {
            Type::Named(types) => {
                f.write_str("type ")?;
                names(types, f)?;
            }
            Type::Of(fields) => write!(f, "typeof {}", Concat(fields))?,
        }
        match &self.data {
            None => {}
            Some(Data::Verdict) => f.write_str(" : verdict")?,
            Some(Data::Values(Type::Named(types))) => {
                f.write_str(" : ")?;
                names(types, f)?;
            }
            Some(Data::Values(Type::Of(fields))) => write!(f, " : {}", Concat(fields))?,
        }
        f.write_str(";")?;
        if let Some(size) = self.size {
            write!(f, " size {size};")?;
        }
        let flags = [
            (self.interval, "interval"),
            (self.dynamic, "dynamic"),
            (self.timeouts, "timeout"),
        ];
        let flags: Vec<_> = flags
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, w)| *w)
            .collect();
        if !flags.is_empty() {
            write!(f, " flags {};", flags.join(","))?;
        }
        if self.counter {
            f.write_str(" counter;")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{}\";", comment.as_str())?;
        }
        f.write_str(" }")
    }
}

fn word(is_map: bool) -> &'static str {
    if is_map { "map" } else { "set" }
}

fn names(types: &[DataType], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, one) in types.iter().enumerate() {
        let point = if at == 0 { "" } else { " . " };
        write!(f, "{point}{}", one.name())?;
    }
    Ok(())
}

/// A set as it is in the kernel: what the kernel says of it, to be compared with what is sent for a
/// set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSet {
    /// Name of its table.
    pub table: String,
    /// Its name, unique in its table.
    pub name: Arc<str>,
    flags: u32,
    key: u32,
    data: Option<u32>,
    /// Maximum number of elements; `None`: there is no limit.
    pub size: Option<u32>,
    counter: bool,
    user: Box<[u8]>,
}

impl ListedSet {
    /// Returns true if it belongs to a rule and has no name of its own.
    pub fn is_anonymous(&self) -> bool {
        self.flags & F_ANONYMOUS != 0
    }

    /// Returns true if the kernel would have `set` in this form.
    pub fn is(&self, set: &Set) -> bool {
        // The kernel chose one when a rule was added that writes the set.
        let chosen = |size: &u32| set.dynamic && *size == Set::MOST_DYNAMIC;
        self.name == set.name
            && self.flags & (F_ANONYMOUS | F_INTERVAL | F_MAP | F_TIMEOUT | F_EVAL)
                == set.flags() & !F_CONCAT
            && self.key == DataType::concatenation(&set.key.types())
            && self.data == set.data.as_ref().map(Data::number)
            && self.size == set.size.or(self.size.filter(chosen))
            && self.counter == set.counter
            && *self.user == *set.user_data().octets().unwrap_or_default()
    }

    pub(super) fn listing(&self) -> Listing<'_> {
        Listing {
            word: word(self.flags & F_MAP != 0),
            name: &self.name,
            dynamic: self.flags & F_EVAL != 0,
            ranges_of_one: self.flags & F_INTERVAL != 0 && !DataType::is_concatenation(self.key),
        }
    }

    /// Returns the set that a message of a dump has.
    pub fn read(message: Message<'_>) -> Result<ListedSet, Malformed> {
        let mut set = ListedSet {
            table: String::new(),
            name: Arc::default(),
            flags: 0,
            key: 0,
            data: None,
            size: None,
            counter: false,
            user: Box::default(),
        };
        for attribute in message.attributes(super::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                TABLE => attribute.text()?.clone_into(&mut set.table),
                NAME => set.name = attribute.text()?.into(),
                FLAGS => set.flags = attribute.be32()?,
                KEY_TYPE => set.key = attribute.be32()?,
                DATA_TYPE => set.data = Some(attribute.be32()?),
                USERDATA => set.user = attribute.payload.into(),
                EXPRESSION => {
                    set.counter = Expression::read(attribute)?.name == "counter";
                }
                DESCRIPTION => {
                    for inner in attribute.nested() {
                        let inner = inner?;
                        if inner.kind == SIZE {
                            set.size = Some(inner.be32()?);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(set)
    }
}
