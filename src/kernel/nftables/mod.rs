//! nf_tables over netlink (`linux/netfilter/nf_tables.h`): whether anybody
//! changed anything, what there is, and removing a table.

use nix::{errno::Errno, libc};

use super::netlink::{Error, Protocol, Request, Socket};
use crate::net::Family;

/// NFNL_SUBSYS_NFTABLES.
const SUBSYSTEM: u16 = 10;
// Begin and end of a transaction, see linux/netfilter/nfnetlink.h.
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
/// The subsystem in the upper byte: `NFT_MSG_*`.
const GET_TABLE: u16 = 10 << 8 | 1;
const DELETE_TABLE: u16 = 10 << 8 | 2;
const GET_CHAIN: u16 = 10 << 8 | 4;
const DELETE_RULE: u16 = 10 << 8 | 8;
const GET_GENERATION: u16 = 10 << 8 | 16;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
// enum nft_gen_attributes
const GENERATION_ID: u16 = 1;
// enum nft_table_attributes
const TABLE_NAME: u16 = 1;
// enum nft_rule_attributes
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
// enum nft_chain_attributes
const CHAIN_TABLE: u16 = 1;
const CHAIN_HANDLE: u16 = 2;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_USE: u16 = 6;

/// Tells that the rules of this network namespace changed.
pub struct Rules {
    socket: Socket,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name of its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// A number that no other chain of the table ever had.
    pub handle: u64,
    /// How many rules it has and how many lead to it, in one number.
    pub uses: u32,
    /// The kernel calls it by itself.
    pub base: bool,
}

impl Rules {
    /// Of the network namespace of the calling thread.
    ///
    /// # Errors
    /// When no netlink socket can be had.
    pub fn open() -> Result<Rules, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        Ok(Rules { socket })
    }

    /// A number that grows by one with each change that anybody makes.
    ///
    /// # Errors
    /// When the kernel has no nf_tables, or refuses.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let request = Request::new(GET_GENERATION, 0, "read", "the generation of nf_tables")
            .header(&[0; HEADER]);
        let found = self.socket.call(&request, |message| {
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                if attribute.kind == GENERATION_ID {
                    let number = attribute.payload.try_into().map(u32::from_be_bytes);
                    return Ok(number.ok());
                }
            }
            Ok(None)
        })?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Hands every chain of `family` to `each`.
    ///
    /// # Errors
    /// When the kernel refuses, or goes on changing while it answers.
    pub fn chains(&mut self, family: Family, mut each: impl FnMut(Chain)) -> Result<(), Error> {
        let request = Request::new(
            GET_CHAIN,
            0,
            "list",
            format!("{family} chains of nf_tables"),
        )
        .header(&[family.number(), 0, 0, 0]);
        let found = self.socket.dump(&request, |message| {
            let mut chain = Chain {
                table: String::new(),
                name: String::new(),
                handle: 0,
                uses: 0,
                base: false,
            };
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                let payload = attribute.payload;
                match attribute.kind {
                    CHAIN_TABLE => chain.table = attribute.text()?.to_owned(),
                    CHAIN_NAME => chain.name = attribute.text()?.to_owned(),
                    CHAIN_HOOK => chain.base = true,
                    CHAIN_HANDLE => {
                        chain.handle = payload.try_into().map_or(0, u64::from_be_bytes);
                    }
                    CHAIN_USE => chain.uses = payload.try_into().map_or(0, u32::from_be_bytes),
                    _ => {}
                }
            }
            Ok(Some(chain))
        })?;
        found.into_iter().for_each(&mut each);
        Ok(())
    }

    /// Names of the tables of `family`. One of both families, `inet`, is of
    /// neither.
    ///
    /// # Errors
    /// When the kernel has no nf_tables, or refuses.
    pub fn tables(&mut self, family: Family) -> Result<Vec<String>, Error> {
        let object = format!("{family} tables of nf_tables");
        let request =
            Request::new(GET_TABLE, 0, "list", object).header(&[family.number(), 0, 0, 0]);
        self.socket.dump(&request, |message| {
            for attribute in message.attributes(HEADER) {
                let attribute = attribute?;
                if attribute.kind == TABLE_NAME {
                    return Ok(Some(attribute.text()?.to_owned()));
                }
            }
            Ok(None)
        })
    }

    /// Deletes the table `name` of `family` with all that is in it, in one
    /// step. Answers whether it was there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_table(&mut self, family: Family, name: &str) -> Result<bool, Error> {
        let object = format!("{family} table {name} of nf_tables");
        let delete = Request::new(DELETE_TABLE, libc::NLM_F_ACK as u16, "delete", object)
            .header(&[family.number(), 0, 0, 0])
            .text(TABLE_NAME, name);
        gone(self.transaction(delete))
    }

    /// Deletes the rules in those chains of the table `name` of `family` that
    /// the kernel calls by itself, so that nothing comes to the others any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unlink_table(&mut self, family: Family, name: &str) -> Result<(), Error> {
        let mut called = Vec::new();
        self.chains(family, |chain| {
            if chain.base && chain.table == name {
                called.push(chain.name);
            }
        })?;
        for chain in called {
            let object = format!("{family} chain {chain} of table {name} of nf_tables");
            let delete = Request::new(DELETE_RULE, libc::NLM_F_ACK as u16, "empty", object)
                .header(&[family.number(), 0, 0, 0])
                .text(RULE_TABLE, name)
                .text(RULE_CHAIN, &chain);
            gone(self.transaction(delete))?;
        }
        Ok(())
    }

    /// Changes are taken only between a begin and an end, all in one datagram.
    fn transaction(&mut self, change: Request) -> Result<(), Error> {
        let [high, low] = SUBSYSTEM.to_be_bytes();
        let frame = |kind| {
            let request = Request::new(kind, 0, change.operation(), change.object());
            request.header(&[0, 0, high, low])
        };
        let (begin, end) = (frame(BEGIN), frame(END));
        self.socket.transaction(&[begin, change, end])
    }
}

/// Whether it was there, of what is to go.
fn gone(outcome: Result<(), Error>) -> Result<bool, Error> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespace::in_namespace;

    #[test]
    fn changes_and_uses_are_seen() {
        in_namespace(|| {
            let nft = |line: &str| {
                let mut command = std::process::Command::new("iptables-nft");
                let status = command.args(line.split(' ')).status().unwrap();
                assert!(status.success(), "{line}");
            };
            let mut rules = Rules::open().unwrap();
            let x = |rules: &mut Rules| {
                let mut found = None;
                let each = |c: Chain| found = (c.name == "X").then_some(c).or(found.take());
                rules.chains(Family::V4, each).unwrap();
                found.unwrap()
            };
            nft("-t nat -N X");
            let (first, empty) = (rules.generation().unwrap(), x(&mut rules));
            assert_eq!(
                (empty.table.as_str(), empty.uses, empty.base),
                ("nat", 0, false)
            );
            assert_eq!(rules.generation().unwrap(), first);
            nft("-t nat -A X -j RETURN");
            nft("-t nat -A PREROUTING -j X");
            assert_eq!(
                x(&mut rules).uses,
                2,
                "its rule and the one that leads here"
            );
            assert_ne!(rules.generation().unwrap(), first);
            nft("-t nat -F");
            nft("-t nat -X X");
            nft("-t nat -N X");
            assert_ne!(x(&mut rules).handle, empty.handle);
        });
    }

    /// Makes a table, with a chain that the kernel calls and one that a rule
    /// could lead to.
    fn make(rules: &mut Rules, family: u8, name: &str) {
        const ACK_CREATE: u16 = 0x4 | 0x400;
        const HOOK_NUMBER: u16 = 1;
        const HOOK_PRIORITY: u16 = 2;
        let new = |kind: u16| {
            let request = Request::new(10 << 8 | kind, ACK_CREATE, "make", name);
            request.header(&[family, 0, 0, 0]).text(1, name)
        };
        rules.transaction(new(0)).unwrap();
        let hook = |r: Request| {
            r.attribute(HOOK_NUMBER, &0u32.to_be_bytes())
                .attribute(HOOK_PRIORITY, &0u32.to_be_bytes())
        };
        let base = new(3).text(CHAIN_NAME, "base").nested(CHAIN_HOOK, hook);
        rules.transaction(base.text(7, "filter")).unwrap();
        let plain = new(3).text(CHAIN_NAME, "services");
        rules.transaction(plain).unwrap();
    }

    #[test]
    fn nothing_leads_to_the_chains_of_an_unlinked_table() {
        in_namespace(|| {
            let mut rules = Rules::open().unwrap();
            make(&mut rules, Family::V4.number(), "kube-proxy");
            make(&mut rules, Family::V4.number(), "other");
            let uses = |rules: &mut Rules| {
                let mut found = Vec::new();
                let each = |c: Chain| found.push((c.table, c.name, c.uses));
                rules.chains(Family::V4, each).unwrap();
                found.sort();
                found.into_iter().map(|c| c.2).collect::<Vec<_>>()
            };
            for (table, chain) in [
                ("kube-proxy", "base"),
                ("kube-proxy", "services"),
                ("other", "base"),
            ] {
                // One without expressions, which matches everything.
                let rule = Request::new(10 << 8 | 6, 0x4 | 0x400 | 0x800, "make", "a rule")
                    .header(&[Family::V4.number(), 0, 0, 0])
                    .text(RULE_TABLE, table)
                    .text(RULE_CHAIN, chain);
                rules.transaction(rule).unwrap();
            }
            assert_eq!(uses(&mut rules), [1, 1, 1, 0]);
            rules.unlink_table(Family::V4, "kube-proxy").unwrap();
            assert_eq!(uses(&mut rules), [0, 1, 1, 0]);
            rules.unlink_table(Family::V6, "kube-proxy").unwrap();
        });
    }

    #[test]
    fn a_table_goes_with_its_chains_and_no_other_does() {
        in_namespace(|| {
            let mut rules = Rules::open().unwrap();
            let (v4, v6, both) = (Family::V4.number(), Family::V6.number(), 1);
            for family in [v4, v6, both] {
                make(&mut rules, family, "kube-proxy");
                make(&mut rules, family, "kube-proxy-2");
            }
            for family in Family::ALL {
                assert_eq!(
                    rules.tables(family).unwrap(),
                    ["kube-proxy", "kube-proxy-2"]
                );
                assert!(rules.delete_table(family, "kube-proxy").unwrap());
                assert!(!rules.delete_table(family, "kube-proxy").unwrap(), "again");
                assert_eq!(rules.tables(family).unwrap(), ["kube-proxy-2"]);
            }
            let nft = std::process::Command::new("nft")
                .args(["list", "tables"])
                .output();
            // Only an observer: not every machine has it.
            if let Ok(output) = nft {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(said.contains("table inet kube-proxy\n"), "{said}");
            }
        });
    }
}
