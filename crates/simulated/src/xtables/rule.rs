//! A rule, read from its line as the programs read it.

use std::{net::IpAddr, ops::RangeInclusive, time::Duration};

use net::{Family, octets};

/// Bits of an address, and which of them are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    value: u128,
    mask: u128,
}

impl Bits {
    /// An address as a number.
    fn number(ip: &IpAddr) -> u128 {
        let octets = octets(ip);
        let each = |number, octet: &u8| number << 8 | u128::from(*octet);
        octets.iter().fold(0, each)
    }

    /// Reads an address, alone or with a prefix or a mask.
    fn parse(text: &str, family: Family) -> Option<Bits> {
        let (address, mask) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().ok()?;
        if Family::of(&address) != family {
            return None;
        }
        let size = 8 * octets(&address).len() as u32;
        let prefix = |length: u32| {
            let all = u128::MAX >> (128 - size);
            let low = all.checked_shr(length).unwrap_or(0);
            (length <= size).then_some(all ^ low)
        };
        let mask = match mask {
            "" => prefix(size)?,
            mask => match mask.parse() {
                Ok(length) => prefix(length)?,
                Err(_) => Bits::number(&mask.parse().ok()?),
            },
        };
        let value = Bits::number(&address) & mask;
        Some(Bits { value, mask })
    }

    /// Returns true if an address has these bits.
    pub(super) fn contain(self, ip: &IpAddr) -> bool {
        Bits::number(ip) & self.mask == self.value
    }
}

/// A condition of a rule on packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Source(Bits),
    Destination(Bits),
    Input(String),
    Protocol(u8),
    SourcePorts(RangeInclusive<u16>),
    DestinationPorts(RangeInclusive<u16>),
    Mark(u32, u32),
    States(Vec<String>),
    LocalSource,
    LocalDestination,
    /// A random number decides (`statistic`): the rule may match or not.
    Chance,
    /// The source was put into that list at most this long ago.
    Recently(String, Duration),
    /// The source is put into that list.
    Remembers(String),
    /// A counter of that name is there.
    Account(String),
    /// The values at those ends of it are a member of that set.
    Set(String, Vec<End>),
    /// True of no packet here: there are neither bridges nor transparent sockets.
    Absent,
    /// True of every packet.
    Nothing,
}

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// Target of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Nothing,
    Jump(String),
    Goto(String),
    Accept,
    Drop,
    Return,
    Reject,
    Mark(u32, u32),
    Dnat(std::net::SocketAddr),
    Redirect(u16),
    Masquerade,
}

/// A rule as it was read, with its conditions and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The rule in the words of iptables-save, without its chain.
    pub(super) text: String,
    /// Its conditions; true: the condition is negated.
    pub(super) asks: Vec<(bool, Asks)>,
    pub(super) target: Target,
}

/// Why a line is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    Option(String),
    Match(String),
    Target(String),
    Value(String),
}

impl Rule {
    /// Reads a rule of `family`; `is_chain` is true of names of chains.
    pub(super) fn parse(
        words: &[String],
        family: Family,
        is_chain: impl Fn(&str) -> bool,
    ) -> Result<Rule, Unread> {
        let mut reader = Reader {
            words: words.iter(),
            family,
            protocol: 0,
            rule: Rule {
                text: text(words),
                asks: Vec::new(),
                target: Target::Nothing,
            },
        };
        reader.read(is_chain)?;
        Ok(reader.rule)
    }

    /// Returns the chain to which it jumps.
    pub(super) fn leads_to(&self) -> Option<&str> {
        match &self.target {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// The lists of recent sources that it uses.
    pub(super) fn lists(&self) -> impl Iterator<Item = &str> {
        let lists = self.asks.iter().map(|(_, asks)| match asks {
            Asks::Recently(list, _) | Asks::Remembers(list) => Some(&**list),
            _ => None,
        });
        lists.flatten()
    }

    /// Returns the sets that it matches against.
    pub(super) fn sets(&self) -> impl Iterator<Item = &str> {
        let names = self.asks.iter().map(|(_, asks)| match asks {
            Asks::Set(name, _) => Some(&**name),
            _ => None,
        });
        names.flatten()
    }

    /// Returns the counters that it uses.
    pub(super) fn accounts(&self) -> impl Iterator<Item = &str> {
        let names = self.asks.iter().map(|(_, asks)| match asks {
            Asks::Account(name) => Some(&**name),
            _ => None,
        });
        names.flatten()
    }
}

impl End {
    fn parse(text: &str) -> Option<End> {
        match text {
            "src" => Some(End::Source),
            "dst" => Some(End::Destination),
            _ => None,
        }
    }
}

struct Reader<'a> {
    words: std::slice::Iter<'a, String>,
    family: Family,
    protocol: u8,
    rule: Rule,
}

impl Reader<'_> {
    fn value(&mut self, option: &str) -> Result<String, Unread> {
        let value = self.words.next().cloned();
        value.ok_or_else(|| Unread::Value(option.to_owned()))
    }

    /// Reads the value of an option by `parse`.
    fn parsed<T>(
        &mut self,
        option: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Unread> {
        let value = self.value(option)?;
        parse(&value).ok_or(Unread::Value(value))
    }

    fn read(&mut self, is_chain: impl Fn(&str) -> bool) -> Result<(), Unread> {
        let mut negated = false;
        let mut extension = String::new();
        while let Some(word) = self.words.next() {
            let family = self.family;
            let asks = match word.as_str() {
                "!" => {
                    negated = true;
                    continue;
                }
                "-s" => Asks::Source(self.parsed(word, |text| Bits::parse(text, family))?),
                "-d" => Asks::Destination(self.parsed(word, |text| Bits::parse(text, family))?),
                "-i" => Asks::Input(self.value(word)?),
                "-p" => {
                    self.protocol = self.parsed(word, protocol)?;
                    Asks::Protocol(self.protocol)
                }
                "-m" => {
                    extension = self.value(word)?;
                    if !EXTENSIONS.contains(&extension.as_str()) {
                        return Err(Unread::Match(extension));
                    }
                    continue;
                }
                "-j" => {
                    let name = self.value(word)?;
                    self.rule.target = self.target(name, is_chain)?;
                    return Ok(());
                }
                "-g" => {
                    let name = self.value(word)?;
                    if !is_chain(&name) {
                        return Err(Unread::Target(name));
                    }
                    self.rule.target = Target::Goto(name);
                    continue;
                }
                option => self.option(&extension, option)?,
            };
            self.rule.asks.push((std::mem::take(&mut negated), asks));
        }
        Ok(())
    }

    /// Reads an option of a match.
    fn option(&mut self, extension: &str, option: &str) -> Result<Asks, Unread> {
        Ok(match (extension, option) {
            ("comment", "--comment") => self.value(option).map(|_| Asks::Nothing)?,
            ("tcp" | "udp" | "sctp", "--dport") => {
                Asks::DestinationPorts(self.parsed(option, ports)?)
            }
            ("tcp" | "udp" | "sctp", "--sport") => Asks::SourcePorts(self.parsed(option, ports)?),
            ("mark", "--mark") => {
                let (value, mask) = self.parsed(option, mark)?;
                Asks::Mark(value, mask)
            }
            ("conntrack", "--ctstate") => {
                let states = self.value(option)?;
                Asks::States(states.split(',').map(str::to_owned).collect())
            }
            ("addrtype", "--src-type") => self.value(option).map(|_| Asks::LocalSource)?,
            ("addrtype", "--dst-type") => self.value(option).map(|_| Asks::LocalDestination)?,
            ("statistic", "--mode") => self.value(option).map(|_| Asks::Nothing)?,
            ("statistic", "--probability") => {
                let probability: f64 = self.parsed(option, |text| text.parse().ok())?;
                match probability {
                    0.0 => Asks::Absent,
                    1.0 => Asks::Nothing,
                    _ => Asks::Chance,
                }
            }
            ("recent", "--set") => Asks::Remembers(self.list()?),
            ("recent", "--rcheck") => {
                let seconds = self.words.next().filter(|word| *word == "--seconds");
                seconds.ok_or_else(|| Unread::Option(option.to_owned()))?;
                let seconds = self.parsed("--seconds", |text| text.parse().ok())?;
                Asks::Recently(self.list()?, Duration::from_secs(seconds))
            }
            ("nfacct", "--nfacct-name") => Asks::Account(self.value(option)?),
            ("set", "--match-set") => {
                let name = self.value(option)?;
                let ends = |text: &str| text.split(',').map(End::parse).collect();
                Asks::Set(name, self.parsed(option, ends)?)
            }
            ("physdev", "--physdev-is-in") | ("socket", "--transparent") => Asks::Absent,
            // A packet translated to a wildcard address reaches a listener of Tripod.
            ("socket", "--nowildcard") => {
                self.rule.asks.retain(|(_, asks)| *asks != Asks::Absent);
                Asks::Nothing
            }
            _ => return Err(Unread::Option(option.to_owned())),
        })
    }

    /// Reads the rest of the options of a list of recent sources.
    fn list(&mut self) -> Result<String, Unread> {
        let mut name = None;
        while name.is_none() {
            let option = self.value("--name")?;
            match option.as_str() {
                "--reap" => {}
                "--name" => name = Some(self.value("--name")?),
                _ => return Err(Unread::Option(option)),
            }
        }
        for expected in ["--mask", "--rsource"] {
            let option = self.value(expected)?;
            if option != expected {
                return Err(Unread::Option(option));
            }
            if expected == "--mask" {
                self.value(expected)?;
            }
        }
        Ok(name.unwrap_or_default())
    }

    /// Reads a target and its options, which end the line.
    fn target(&mut self, name: String, is_chain: impl Fn(&str) -> bool) -> Result<Target, Unread> {
        let mut options: Vec<String> = self.words.by_ref().cloned().collect();
        let mut value = |option: &str| {
            let at = options.iter().position(|word| word == option)?;
            let value = options.get(at + 1).cloned();
            options.drain(at..(at + 2).min(options.len()));
            value
        };
        let unread = || Unread::Value(name.clone());
        let target = match name.as_str() {
            "ACCEPT" => Target::Accept,
            "DROP" => Target::Drop,
            "RETURN" => Target::Return,
            "REJECT" => {
                value("--reject-with");
                Target::Reject
            }
            "MARK" => {
                let set = value("--set-xmark").ok_or_else(unread)?;
                let (value, mask) = mark(&set).ok_or_else(unread)?;
                Target::Mark(value, mask)
            }
            "DNAT" => {
                let to = value("--to-destination").ok_or_else(unread)?;
                Target::Dnat(to.parse().map_err(|_| unread())?)
            }
            "REDIRECT" => {
                let to = value("--to-ports").ok_or_else(unread)?;
                Target::Redirect(to.parse().map_err(|_| unread())?)
            }
            "MASQUERADE" => {
                options.retain(|word| word != "--random-fully");
                Target::Masquerade
            }
            _ if is_chain(&name) => Target::Jump(name),
            _ => return Err(Unread::Target(name)),
        };
        match options.first() {
            Some(option) => Err(Unread::Option(option.clone())),
            None => Ok(target),
        }
    }
}

/// Matches that are known.
const EXTENSIONS: [&str; 13] = [
    "comment",
    "tcp",
    "udp",
    "sctp",
    "mark",
    "conntrack",
    "addrtype",
    "statistic",
    "recent",
    "nfacct",
    "physdev",
    "set",
    "socket",
];

fn protocol(name: &str) -> Option<u8> {
    let known = [("tcp", 6), ("udp", 17), ("sctp", 132)];
    let mut known = known.into_iter();
    known.find_map(|(of, number)| (of == name).then_some(number))
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn mark(text: &str) -> Option<(u32, u32)> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    Some((number(value)?, number(mask)?))
}

/// Returns a rule as iptables-save prints it.
fn text(words: &[String]) -> String {
    let mut text = String::new();
    let mut is_comment = false;
    for word in words {
        if !text.is_empty() {
            text.push(' ');
        }
        text += &if is_comment {
            quoted(word)
        } else {
            word.clone()
        };
        is_comment = word == "--comment";
        if word == "--nfacct-name" {
            // As its match prints it (`libxt_nfacct.c`).
            text.push(' ');
        }
    }
    text
}

/// Returns a comment as iptables-save prints it (`xtables_save_string`).
fn quoted(word: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if !word.is_empty() && word.chars().all(is_bare) {
        return word.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for c in word.chars() {
        if "\"\\'".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted + "\""
}

/// Splits a line into words, without quotes.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut is_word) = (String::new(), false);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in line.chars() {
        match c {
            _ if is_escaped => {
                word.push(c);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => {
                is_quoted = !is_quoted;
                is_word = true;
            }
            c if c.is_whitespace() && !is_quoted => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}
