//! Has the kernel trace packets to a destination through the legacy tables, and receives
//! notifications of their way. What this takes is removed again: rules with target TRACE in table
//! raw, and another logger (`net.netfilter.nf_log.2` or `.10`), stay as long as the [`Tracer`]. A
//! process that is killed leaves them; the rules' comment says what to restore; that nobody needs
//! them any more shows when group 0 of nfnetlink_log, which only one process can have, is free. The
//! next trace, a proxy that begins and `--cleanup` remove them.

use std::{io, net::IpAddr};

use nix::{errno::Errno, libc};

use super::{
    Engine, Error, Xtables, rule,
    run::Writer,
    traced::Traced,
    words::{Line, target, values},
};
use crate::{
    kernel::{
        netlink::{self, Notifications, Request, Socket},
        nftables::TraceTarget,
        sysctl,
    },
    net::{Family, Protocol},
};

const CONFIG: u16 = (libc::NFNL_SUBSYS_ULOG << 8 | libc::NFULNL_MSG_CONFIG) as u16;
/// The group that packets of TRACE are of (`default_loginfo` of `nfnetlink_log.c`).
const GROUP: u16 = 0;
const COMMAND: u16 = libc::NFULA_CFG_CMD as u16;
const MODE: u16 = libc::NFULA_CFG_MODE as u16;
const THRESHOLD: u16 = libc::NFULA_CFG_QTHRESH as u16;
const BIND: u8 = libc::NFULNL_CFG_CMD_BIND as u8;
const COPY_PACKET: u8 = libc::NFULNL_COPY_PACKET as u8;
/// Bytes of each packet: its headers, with any options.
const COPIED: u32 = 128;
/// The logger whose messages can be read here.
const LOGGER: &str = "nfnetlink_log";
/// The most packets that are traced in a second: each has the kernel write some dozen
/// messages.
const RATE: u32 = 100;
/// How the comment of our rules begins; the logger that was there before follows.
const COMMENT: &str = "tripod trace; goes when that ends; nf_log was ";
/// The chains of table raw that see packets first: those that arrive, and the node's own.
const CHAINS: [&str; 2] = ["PREROUTING", "OUTPUT"];
/// How often removing the rules is tried.
const ATTEMPTS: u32 = 3;

/// Why packets cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is no program that adds the rule.
    #[error(
        "no {0} program for the legacy tables works here: install iptables-legacy (Debian \
         package iptables), or trace where Tripod runs"
    )]
    NoProgram(Family),
    /// It is not known whether there is such a program.
    #[error("{0}")]
    Program(Error),
    /// Another process receives traced packets.
    #[error(
        "another process has group 0 of nfnetlink_log, in which the kernel reports traced packets: \
         stop it first (ulogd, or another tripod trace)"
    )]
    Taken,
    /// The kernel cannot report packets to a process.
    #[error(
        "{0}: the kernel reports traced packets only by nfnetlink_log: load that module \
         (CONFIG_NETFILTER_NETLINK_LOG)"
    )]
    Log(netlink::Error),
    /// The logger cannot be set.
    #[error(
        "{0}: it must be nfnetlink_log while packets are traced; run tripod trace where \
         /proc/sys can be written, with the module nfnetlink_log loaded"
    )]
    Logger(sysctl::Error),
    /// The rule is not possible.
    #[error(
        "{0}: tracing needs target TRACE in table raw: load the modules {modules}",
        modules = modules(*.1)
    )]
    Rule(Error, Family),
    /// Table raw cannot be read or written.
    #[error("{0}")]
    Table(#[from] Error),
}

fn modules(family: Family) -> &'static str {
    match family {
        Family::V4 => {
            "iptable_raw, xt_TRACE, xt_limit and nf_log_syslog (before Linux 5.13 nf_log_ipv4)"
        }
        Family::V6 => {
            "ip6table_raw, xt_TRACE, xt_limit and nf_log_syslog (before Linux 5.13 nf_log_ipv6)"
        }
    }
}

/// Traces packets until it is ended.
#[derive(Debug)]
pub struct Tracer {
    writer: Writer,
    notifications: Notifications,
}

impl Tracer {
    /// Begins to trace, in the network namespace of the calling thread; must be called
    /// within a tokio runtime. It must be [ended](Tracer::end).
    ///
    /// # Errors
    /// What is missing; nothing is left then.
    pub async fn open(target: &TraceTarget) -> Result<Tracer, TraceError> {
        let family = Family::of(&target.to.ip());
        let engine = Engine::Legacy;
        let engines = Xtables::engines(family).await;
        let writer = match (engines.writer(engine), engines.unknown(engine)) {
            (Some(writer), _) => writer.clone(),
            (None, Some(unknown)) => return Err(TraceError::Program(unknown)),
            (None, None) => return Err(TraceError::NoProgram(family)),
        };
        let tracer = Tracer {
            writer,
            notifications: bind()?,
        };
        clear(&tracer.writer).await?;
        match tracer.begin(target).await {
            Ok(()) => Ok(tracer),
            Err(error) => {
                // A program that was interrupted may have added them. Why it failed says more
                // than that they could not be removed.
                if let Err(left) = tracer.end().await {
                    tracing::error!(
                        "rules of this trace may be left in table raw: {left}; remove them with \
                         tripod cleanup"
                    );
                }
                Err(error)
            }
        }
    }

    async fn begin(&self, target: &TraceTarget) -> Result<(), TraceError> {
        let family = self.writer.family();
        let name = logger(family);
        let former = sysctl::read(&name).map_err(TraceError::Logger)?;
        // First the rules: their comment says what is to be restored.
        let added = self.writer.restore(&batch(target, &former)).await;
        added.map_err(|error| TraceError::Rule(error, family))?;
        sysctl::write(&name, LOGGER).map_err(TraceError::Logger)
    }

    /// Removes what it took.
    ///
    /// # Errors
    /// When table raw still cannot be read or written after several tries.
    pub async fn end(self) -> Result<(), Error> {
        for _ in 1..ATTEMPTS {
            if clear(&self.writer).await.is_ok() {
                return Ok(());
            }
        }
        clear(&self.writer).await
    }

    /// Returns the programs that read the tables.
    pub fn xtables(&self) -> &Xtables {
        &self.writer.xtables
    }

    /// Waits until steps may have arrived; they must be drained then.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn arrived(&self) -> io::Result<()> {
        self.notifications.arrived().await
    }

    /// Calls `each` with each step that waits. Returns true if some were lost.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, mut each: impl FnMut(Traced)) -> io::Result<bool> {
        self.notifications.drain(|message| {
            if let Ok(Some(step)) = Traced::read(message) {
                each(step);
            }
        })
    }
}

/// Removes what traces of `family` that were killed have left, if none is under way.
///
/// # Errors
/// When table raw cannot be read or written.
pub async fn clear_traces(family: Family) -> Result<(), Error> {
    if !Engine::Legacy.has_table(family, "raw") {
        return Ok(());
    }
    let engine = Engine::Legacy;
    let engines = Xtables::engines(family).await;
    let Some(writer) = engines.writer(engine) else {
        return engines.unknown(engine).map_or(Ok(()), Err);
    };
    if left(writer).await?.is_empty() {
        return Ok(());
    }
    match bind() {
        // A trace is under way.
        Err(TraceError::Taken) => Ok(()),
        // Nothing can be traced where the group cannot be had for another reason.
        Ok(_) | Err(_) => clear(writer).await,
    }
}

/// Returns the setting that names the logger of a family.
fn logger(family: Family) -> String {
    format!("net.netfilter.nf_log.{}", family.number())
}

/// Takes the group in which the kernel reports packets.
fn bind() -> Result<Notifications, TraceError> {
    let object = "group 0 of nfnetlink_log";
    let failed = |error: netlink::Error| match error.errno() {
        // `nfulnl_recv_config`: it is of another socket, or of another one of ours.
        Some(Errno::EPERM | Errno::EBUSY) => TraceError::Taken,
        _ => TraceError::Log(error),
    };
    let mut socket = Socket::open(netlink::Protocol::Netfilter).map_err(TraceError::Log)?;
    socket.expect_many_answers();
    let request = |operation| Request::new(CONFIG, 0, operation, object).nfgenmsg_of(0, GROUP);
    let bind = request("take").attribute(COMMAND, &[BIND]);
    // struct nfulnl_msg_config_mode is packed: range, mode, and a byte that pads it.
    let [a, b, c, d] = COPIED.to_be_bytes();
    let configure = request("configure")
        .attribute(MODE, &[a, b, c, d, COPY_PACKET, 0])
        // Each message comes at once.
        .be32(THRESHOLD, 1);
    for request in [bind, configure] {
        socket.call(&request, |_| Ok(None::<()>)).map_err(failed)?;
    }
    Notifications::of(socket, object).map_err(TraceError::Log)
}

/// Returns the batch that adds the rules.
fn batch(target: &TraceTarget, former: &str) -> String {
    let to = target.to.ip();
    let length = Family::of(&to).bits();
    let protocol = rule::word(target.protocol);
    let from = |ip: IpAddr| format!("-s {ip}/{length} ");
    let from = target.from.map(from).unwrap_or_default();
    let flags = match target.protocol {
        Protocol::Tcp => " --tcp-flags FIN,SYN,RST,ACK SYN",
        Protocol::Udp | Protocol::Sctp => "",
    };
    // The name of a logger; nothing else must come into a comment.
    let former: String = former
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        .collect();
    let rule = format!(
        "{from}-d {to}/{length} -p {protocol} -m {protocol} --dport {port}{flags} \
         -m limit --limit {RATE}/sec --limit-burst {RATE} \
         -m comment --comment \"{COMMENT}{former}\" -j TRACE",
        port = target.to.port()
    );
    let rules = CHAINS.map(|chain| format!("-I {chain} 1 {rule}\n"));
    format!("*raw\n{}COMMIT\n", rules.concat())
}

/// What is left of a trace.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    chain: String,
    words: String,
    /// The logger that was there before.
    former: String,
}

impl Left {
    /// Returns the rule of ours that a line of `iptables-save` is.
    fn read(line: &str) -> Option<Left> {
        let Line::Rule { chain, words } = Line::parse(line)? else {
            return None;
        };
        let comment = values(words, "--comment").next()?;
        let former = comment.strip_prefix(COMMENT)?;
        (target(words) == Some("TRACE")).then(|| Left {
            chain: chain.to_owned(),
            words: words.to_owned(),
            former: former.to_owned(),
        })
    }
}

/// Returns the rules of traces that are in table raw.
async fn left(writer: &Writer) -> Result<Vec<Left>, Error> {
    let mut found = Vec::new();
    let each = |line: &str| found.extend(Left::read(line));
    writer.xtables.read(Some("raw"), each).await?;
    Ok(found)
}

/// Restores the logger, and removes the rules.
async fn clear(writer: &Writer) -> Result<(), Error> {
    if !Engine::Legacy.has_table(writer.family(), "raw") {
        return Ok(());
    }
    let left = left(writer).await?;
    let Some(first) = left.first() else {
        return Ok(());
    };
    // A former logger that is gone cannot be restored.
    let name = logger(writer.family());
    let restored = sysctl::write(&name, &first.former).or_else(|_| sysctl::write(&name, "NONE"));
    if let Err(error) = restored {
        tracing::warn!("cannot reset {name} to {}: {error}", first.former);
    }
    let rules = left
        .iter()
        .map(|left| format!("-D {} {}\n", left.chain, left.words));
    let batch = format!("*raw\n{}COMMIT\n", rules.collect::<String>());
    writer.restore(&batch).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(protocol: Protocol, from: Option<IpAddr>) -> TraceTarget {
        TraceTarget {
            to: "10.96.0.1:80".parse().unwrap(),
            protocol,
            from,
        }
    }

    #[test]
    fn first_packets_are_traced_and_only_so_many() {
        let from = Some([10, 244, 0, 9].into());
        let rule = "-s 10.244.0.9/32 -d 10.96.0.1/32 -p tcp -m tcp --dport 80 \
                    --tcp-flags FIN,SYN,RST,ACK SYN -m limit --limit 100/sec \
                    --limit-burst 100 -m comment --comment \
                    \"tripod trace; goes when that ends; nf_log was nf_log_ipv4\" -j TRACE";
        let expected = format!("*raw\n-I PREROUTING 1 {rule}\n-I OUTPUT 1 {rule}\nCOMMIT\n");
        assert_eq!(batch(&target(Protocol::Tcp, from), "nf_log_ipv4"), expected);
        let udp = batch(&target(Protocol::Udp, None), "NO\"\nNE");
        assert!(udp.contains("1 -d 10.96.0.1/32 -p udp -m udp --dport 80 -m limit"));
        assert!(udp.contains("nf_log was NONE\""), "{udp}");
    }

    #[test]
    fn only_rules_of_ours_are_taken_for_left() {
        let ours = batch(&target(Protocol::Tcp, None), "NONE");
        let line = ours
            .lines()
            .nth(2)
            .unwrap()
            .replace("-I OUTPUT 1", "-A OUTPUT");
        let found = Left::read(&line).expect("it is ours");
        assert_eq!((&*found.chain, &*found.former), ("OUTPUT", "NONE"));
        assert!(line.ends_with(&found.words));
        for other in [
            "-A OUTPUT -d 10.96.0.1/32 -j TRACE",
            "-A OUTPUT -m comment --comment \"tripod trace; goes when that ends; nf_log was",
            "-A OUTPUT -m comment --comment \"tripod trace; goes when that ends; nf_log was x\" -j DROP",
            ":OUTPUT ACCEPT [0:0]",
            "",
        ] {
            assert_eq!(Left::read(other), None, "{other}");
        }
    }
}
