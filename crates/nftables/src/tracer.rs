//! Has the kernel trace packets to a destination, and receives notifications of their
//! way. This takes a table of this process's own, which the kernel removes with its
//! socket, however the process ends (`NFT_TABLE_F_OWNER`, since Linux 5.12).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    process,
};

use net::{Family, Protocol, octets};
use netlink::{Error, Notifications, Request, Socket};

use super::{
    Chain, ChainType, Failure, Field, Hook, Meta, Rule, Rules, Statement, Table, Test, Transaction,
    client::GET_RULE,
    rule,
    summary::RuleSummary,
    trace::{Trace, TracedChain},
    userdata::Comment,
};

/// `NFNLGRP_NFTRACE` of `linux/netfilter/nfnetlink.h`.
const GROUP: u32 = 9;
/// Before raw (-300), so that all usual chains are seen; after packets were put together
/// of fragments (-400, `enum nf_ip_hook_priorities`).
const PRIORITY: i32 = -350;
/// The most packets that are traced in a second: each has the kernel write some dozen
/// messages.
const RATE: u32 = 100;

/// Which packets are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address and port that they are sent to, before translation.
    pub to: SocketAddr,
    /// Their protocol. Of TCP only those are traced that begin a connection.
    pub protocol: Protocol,
    /// Their source; `None`: any.
    pub from: Option<IpAddr>,
}

/// Traces packets until it is dropped.
pub struct Tracer {
    /// Owns the table.
    rules: Rules,
    table: Table,
    notifications: Notifications,
    asker: Socket,
}

impl Tracer {
    /// Begins to trace, in the network namespace of the calling thread; must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// When the kernel has no nf_tables, or no tables that are deleted with their
    /// owner, or the caller lacks CAP_NET_ADMIN.
    pub fn open(target: &Target) -> Result<Tracer, Failure> {
        Tracer::of(&transaction(target))
    }

    /// Begins to trace what the rules of `transaction` have traced, which adds a table that its
    /// owner takes along.
    ///
    /// # Errors
    /// The same as for [`Tracer::open`].
    pub fn of(transaction: &Transaction) -> Result<Tracer, Failure> {
        let object = "traced packets of nf_tables";
        // First, so that no packet is missed.
        let notifications = Notifications::open(netlink::Protocol::Netfilter, &[GROUP], object)?;
        let asker = Socket::open(netlink::Protocol::Netfilter)?;
        let mut rules = Rules::open()?;
        rules.run(transaction, None)?;
        Ok(Tracer {
            rules,
            table: transaction.table().clone(),
            notifications,
            asker,
        })
    }

    /// Returns the table that does the tracing.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Changes that table.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn run(&mut self, transaction: &Transaction) -> Result<(), Failure> {
        self.rules.run(transaction, None)
    }

    /// Waits until steps may have arrived; they must be drained then.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn arrived(&self) -> io::Result<()> {
        self.notifications.arrived().await
    }

    /// Calls `each` with each step that waits, except those in the table that does the
    /// tracing. Returns true if some were lost.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, each: impl FnMut(Trace)) -> io::Result<bool> {
        self.drain_if(|own, of| own != of, each)
    }

    /// The same with the steps in that table alone.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain_own(&mut self, each: impl FnMut(Trace)) -> io::Result<bool> {
        self.drain_if(|own, of| own == of, each)
    }

    fn drain_if(
        &mut self,
        is_meant: impl Fn(&str, &str) -> bool,
        mut each: impl FnMut(Trace),
    ) -> io::Result<bool> {
        let own = &self.table.name;
        self.notifications.drain(|message| {
            if let Ok(Some(trace)) = Trace::read(message)
                && is_meant(own, &trace.chain.table)
            {
                each(trace);
            }
        })
    }

    /// Reads the rule of that number.
    ///
    /// # Errors
    /// When it has been deleted meanwhile.
    pub fn rule(&mut self, chain: &TracedChain, handle: u64) -> Result<RuleSummary, Error> {
        let object = format!("rule {handle} of chain {} of nf_tables", chain.name);
        let request = Request::new(GET_RULE, 0, "read", object)
            .nfgenmsg(chain.family)
            .text(rule::TABLE, &chain.table)
            .text(rule::CHAIN, &chain.name)
            .be64(rule::HANDLE, handle);
        let found = self
            .asker
            .call(&request, |m| RuleSummary::read(m).map(Some))?;
        Ok(found.into_iter().next().unwrap_or_default())
    }
}

/// The transaction that adds the table.
fn transaction(target: &Target) -> Transaction {
    let family = Family::of(&target.to.ip());
    let table = Table {
        comment: Some(Comment::new("tripod trace; goes when that ends")),
        owned: true,
        ..Table::new(family, format!("tripod-trace-{}", process::id()))
    };
    let address = |field, ip: IpAddr| Statement::Match(field, Test::Is(octets(&ip)));
    let port = target.to.port().to_be_bytes().to_vec();
    let mut statements = vec![
        address(Field::DestinationAddress(family), target.to.ip()),
        Statement::Match(
            Field::Meta(Meta::L4Proto),
            Test::Is(vec![target.protocol.number()]),
        ),
        Statement::Match(Field::DestinationPort, Test::Is(port)),
    ];
    statements.extend(
        target
            .from
            .map(|ip| address(Field::SourceAddress(family), ip)),
    );
    if target.protocol == Protocol::Tcp {
        statements.push(Statement::BeginsTcp);
    }
    statements.extend([Statement::Limit(RATE), Statement::Trace]);
    let mut transaction = Transaction::new(table);
    transaction.add_table();
    for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
        let chain = Chain::base(name, ChainType::Filter, hook, PRIORITY);
        transaction
            .add_chain(chain)
            .add_rule(name, Rule::new(statements.clone()));
    }
    transaction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_to_packets_but_that_they_are_traced() {
        let target = Target {
            to: "10.96.0.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Some([10, 244, 0, 9].into()),
        };
        let text = transaction(&target).to_string();
        let rule = "ip daddr 10.96.0.1 meta l4proto tcp th dport 80 ip saddr 10.244.0.9 \
                    tcp flags & (fin | syn | rst | ack) == syn \
                    limit rate 100/second burst 100 packets meta nftrace set 1\n";
        for chain in ["prerouting", "output"] {
            assert!(text.contains(&format!("{chain} {rule}")), "{text}");
        }
        assert_eq!(text.matches("add rule").count(), 2, "{text}");
    }
}
