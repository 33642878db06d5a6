//! Tripod sends the same messages for a transaction as `nft` sends for its text, attribute by
//! attribute.

use net::Family;
use netlink::Messages;
use testing::in_namespace;

use super::{
    super::{transaction::Grouping, *},
    example, nft,
};

/// A message: its type, its family, and its attributes.
#[derive(Debug, PartialEq)]
struct Sent(u16, u8, Vec<Tree>);

/// An attribute with its content.
#[derive(Clone, PartialEq)]
enum Tree {
    Octets(u16, Vec<u8>),
    Nested(u16, Vec<Tree>),
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tree::Octets(kind, octets) => match std::str::from_utf8(octets) {
                Ok(text) if octets.len() > 1 && text.bytes().all(|b| b == 0 || b > 31) => {
                    write!(f, "{kind}: {text:?}")
                }
                _ => write!(f, "{kind}: {octets:02x?}"),
            },
            Tree::Nested(kind, inner) => write!(f, "{kind}: {inner:?}"),
        }
    }
}

impl Tree {
    fn kind(&self) -> u16 {
        match self {
            Tree::Octets(kind, _) | Tree::Nested(kind, _) => *kind,
        }
    }

    fn inner(&self) -> &[Tree] {
        match self {
            Tree::Octets(..) => &[],
            Tree::Nested(_, inner) => inner,
        }
    }

    fn read(mut octets: &[u8]) -> Vec<Tree> {
        let mut all = Vec::new();
        while octets.len() >= 4 {
            let length = usize::from(u16::from_ne_bytes([octets[0], octets[1]]));
            let kind = u16::from_ne_bytes([octets[2], octets[3]]);
            let payload = &octets[4..length];
            all.push(match kind & 0x8000 {
                0 => Tree::Octets(kind, payload.to_vec()),
                _ => Tree::Nested(kind & 0x3fff, Tree::read(payload)),
            });
            octets = octets.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        // The order of attributes means nothing, except among attributes of one kind.
        all.sort_by_key(Tree::kind);
        all
    }
}

const NEW_SET: u16 = kind(libc::NFT_MSG_NEWSET);
const NEW_ELEMENTS: u16 = kind(libc::NFT_MSG_NEWSETELEM);
const DELETE_ELEMENTS: u16 = kind(libc::NFT_MSG_DELSETELEM);

impl Sent {
    fn new(kind: u16, body: &[u8]) -> Sent {
        let mut sent = Sent(kind, body[0], Tree::read(&body[4..]));
        sent.normalise();
        sent
    }

    /// Removes differences without a meaning.
    fn normalise(&mut self) {
        let Sent(kind, _, attributes) = self;
        match *kind {
            // A number of the set by which the transaction may refer to it. We
            // refer to it by name.
            NEW_SET => attributes.retain(|tree| tree.kind() != 10),
            NEW_ELEMENTS | DELETE_ELEMENTS => {
                attributes.retain(|tree| tree.kind() != 4);
                for tree in attributes {
                    if let Tree::Nested(3, elements) = tree {
                        // `nft` numbers the members of the list, and says of a
                        // new set of ranges that there is none at 0.
                        let none = |inner: &[Tree]| match inner {
                            [Tree::Nested(1, key), Tree::Octets(3, flags)] => {
                                let zero = |tree: &Tree| match tree {
                                    Tree::Octets(1, octets) => octets.iter().all(|o| *o == 0),
                                    _ => false,
                                };
                                flags[3] == 1 && key.iter().all(zero)
                            }
                            _ => false,
                        };
                        elements.retain(|element| !none(element.inner()));
                        for element in elements {
                            if let Tree::Nested(number, _) = element {
                                *number = 1;
                            }
                        }
                    }
                }
            }
            _ => attributes.iter_mut().for_each(without_ids),
        }
    }
}

/// Takes the number of the set out of expressions that refer to one, and a
/// default of bitwise that `nft` writes only sometimes.
fn without_ids(tree: &mut Tree) {
    let Tree::Nested(_, inner) = tree else { return };
    let id = match inner.first() {
        Some(Tree::Octets(1, name)) if name == b"lookup\0" => Some(4),
        Some(Tree::Octets(1, name)) if name == b"dynset\0" => Some(2),
        Some(Tree::Octets(1, name)) if name == b"bitwise\0" => Some(6),
        _ => None,
    };
    inner.retain(|tree| !turns_one_octet(tree));
    for tree in inner {
        if let (Some(id), Tree::Nested(2, data)) = (id, &mut *tree) {
            data.retain(|tree| tree.kind() != id);
        }
        without_ids(tree);
    }
}

/// Whether `nft` 1.0.6 turns round a single octet here, which recent kernels refuse.
fn turns_one_octet(tree: &Tree) -> bool {
    let Tree::Nested(_, expression) = tree else {
        return false;
    };
    match &expression[..] {
        [Tree::Octets(1, name), Tree::Nested(2, data)] if name == b"byteorder\0" => {
            data.contains(&Tree::Octets(4, 1_u32.to_be_bytes().into()))
        }
        _ => false,
    }
}

/// The messages that `nft` sends for `input`, which it loads.
fn sent_by_nft(input: &str) -> Vec<Sent> {
    let output = nft(&["--debug=mnl"], input);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    for code in ["\u{1b}[1;31m", "\u{1b}[1;32m", "\u{1b}[1;34m", "\u{1b}[0m"] {
        text = text.replace(code, "");
    }
    let mut messages: Vec<(u16, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line
            .split(['|', ' ', '\t'])
            .filter(|w| !w.is_empty())
            .collect();
        let is = |label: &str| line.contains(label);
        if is("| message length |") {
            messages.push((0, Vec::new()));
        }
        let Some((kind, body)) = messages.last_mut() else {
            continue;
        };
        if is("|  type | flags  |") {
            *kind = words[0].parse().unwrap();
        } else if is("|len |flags| type|") {
            let [length, flags, kind] = words[..3] else {
                panic!("{line}")
            };
            let nested = if flags.starts_with('N') { 0x8000 } else { 0 };
            body.extend(length.parse::<u16>().unwrap().to_ne_bytes());
            body.extend((kind.parse::<u16>().unwrap() | nested).to_ne_bytes());
        } else if is("|  extra header  |") || is("|      data      |") {
            let octets = words[..4].iter();
            body.extend(octets.map(|octet| u8::from_str_radix(octet, 16).unwrap()));
        }
    }
    let begin = messages.iter().position(|(kind, _)| *kind == 16).unwrap();
    let end = messages.iter().position(|(kind, _)| *kind == 17).unwrap();
    let inside = &messages[begin + 1..end];
    let mut sent: Vec<Sent> = Vec::new();
    for (kind, body) in inside {
        let message = Sent::new(*kind, body);
        // `nft` sends elements of a new set of ranges with the set, and again.
        if *kind != NEW_ELEMENTS || !sent.contains(&message) {
            sent.push(message);
        }
    }
    sent
}

fn sent_by_us(transaction: &Transaction) -> Vec<Sent> {
    let mut wire = Vec::new();
    for request in transaction.requests(None, Grouping::Many) {
        request.write(&mut wire, 0, 0);
    }
    let all = Messages::new(&wire).map(Result::unwrap);
    let inside = all.filter(|message| message.kind > 0xff);
    inside
        .map(|message| Sent::new(message.kind, message.body))
        .collect()
}

fn compare(transaction: &Transaction) {
    let text = transaction.to_string();
    let (mut nft, us) = (sent_by_nft(&text), sent_by_us(transaction));
    let mut differences = String::new();
    for (us, line) in us.iter().zip(text.lines()) {
        // In this order, except for elements of a new set of ranges.
        let at = nft.iter().position(|nft| nft == us);
        let early = |sent: &Sent| matches!(sent.0, NEW_ELEMENTS | NEW_SET);
        match at {
            Some(at) if at == 0 || early(us) => drop(nft.remove(at)),
            _ => {
                let first = nft.remove(0);
                differences += &format!("\n  {line}\n  we: {us:?}\n nft: {first:?}\n");
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert_eq!(nft, []);
}

#[test]
fn what_we_send_for_a_text_is_what_nft_sends_for_it() {
    for family in Family::ALL {
        in_namespace(move || compare(&example::whole(family)));
    }
}

#[test]
fn what_we_send_to_delete_is_what_nft_sends() {
    for family in Family::ALL {
        in_namespace(move || {
            let whole = example::whole(family);
            let mut rules = Rules::open().unwrap();
            rules.run(&whole, None).unwrap();
            let sets = example::Sets::new(family);
            let mut transaction = Transaction::new(Table::new(family, example::TABLE));
            transaction.flush_chain("raw").delete_chain("raw");
            compare(&transaction);
            let mut transaction = Transaction::new(Table::new(family, example::TABLE));
            for (set, elements) in sets.elements(family) {
                transaction.delete_elements(&set, elements);
            }
            compare(&transaction);
            let mut transaction = Transaction::new(Table::new(family, example::TABLE));
            transaction.delete_table();
            compare(&transaction);
            assert_eq!(rules.tables(family).unwrap(), []);
        });
    }
}
