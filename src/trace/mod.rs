//! `tripod trace`: the path of real packets through this node, as reported by the tracing of
//! nf_tables and by the notifications of conntrack.

mod pairs;
mod print;
mod report;
mod start;
mod story;
mod words;

use std::{
    collections::HashMap,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::Instant,
};

use ipvs::connections;
use net::{Family, Protocol};
use netlink::{
    Socket,
    conntrack::{
        events::{Event, Events},
        flows::{self, Flow, Match, Reply},
    },
};
use nftables::{RuleSummary, TraceTarget, TracedChain, TracedStep, Tracer};
use nix::{errno::Errno, net::if_::if_indextoname};
use tokio::time;
use xtables::legacy_tables;

use self::{
    pairs::{Asker, Pairs},
    report::{Report, Start, Summary},
    start::{asker, endpoints, own, start},
    story::{Proxy, Step, Stories},
};
use crate::{
    ask,
    cli::{self, Ends, Trace},
    config::ModeName,
};

/// Exit status: nothing can be traced.
const UNABLE: u8 = 2;

/// How long the running proxy may take to tell which Service the destination belongs to: packets
/// are printed only after that.
const PATIENCE: time::Duration = time::Duration::from_secs(5);

/// How long to wait for the endpoint of the last reported connection.
const LAST: time::Duration = time::Duration::from_secs(1);

/// Time between two checks for packets whose end is not reported, and between two requests to the
/// proxy.
const OVERDUE: time::Duration = time::Duration::from_millis(100);

/// Follows packets as requested, and prints what happens to them. Returns the exit status:
/// 0; 1 if tracing fails on the way; 2 if nothing can be traced.
pub async fn trace(asked: &Trace) -> ExitCode {
    // Before anything is changed on the node: a signal to end waits until the change is undone.
    let mut ends = match Ends::listen() {
        Ok(ends) => ends,
        Err(error) => return unable(&format!("cannot listen for signals: {error}")),
    };
    let target = match target(asked).await {
        Ok(target) => target,
        Err(why) => return unable(&why),
    };
    let (mut tracing, start) = match Tracing::begin(asked, target).await {
        Ok(begun) => begun,
        Err(why) => return unable(&why),
    };
    let done = tracing.run(start, &mut ends).await;
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot continue tracing: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints why nothing can be traced. Returns the exit status.
pub fn unable(why: &str) -> ExitCode {
    cli::fail(&why, UNABLE)
}

/// Returns the sender about which the running proxy is asked.
fn sender(from: Option<IpAddr>) -> String {
    from.map_or_else(|| "pod".to_owned(), |ip| ip.to_string())
}

/// Determines which packets to follow; the address of a Service comes from the running proxy.
async fn target(asked: &Trace) -> Result<TraceTarget, String> {
    let found = ask::addresses(&asked.common.socket, &asked.to, &sender(asked.from)).await?;
    let [(to, protocol)] = &*found else {
        let all = found
            .iter()
            .map(|(to, protocol)| format!("{to}/{protocol}"));
        let all: Vec<_> = all.collect();
        return Err(format!(
            "the Service has a cluster IP of each IP family: name one of them, {}",
            all.join(" or ")
        ));
    };
    let protocol = Protocol::named(protocol);
    Ok(TraceTarget {
        to: *to,
        protocol: protocol.ok_or("the Service has a port of an unknown protocol")?,
        from: asked.from,
    })
}

/// A running trace.
struct Tracing<'a> {
    asked: &'a Trace,
    target: TraceTarget,
    /// Reads the steps in nf_tables; `None` if rules cannot be traced.
    tracer: Option<Tracer>,
    /// Reads changes of conntrack; `None` if it cannot be followed.
    events: Option<Events>,
    stories: Stories,
    /// Asks the proxy for its connections; `None` if it makes none of its own, or does not report
    /// them.
    asker: Option<Asker>,
    pairs: Pairs,
    rules: HashMap<(TracedChain, u64), Option<RuleSummary>>,
    is_ipvs: bool,
    summary: Summary,
}

impl Tracing<'_> {
    /// Begins to trace. Returns the facts that are known before the first packet.
    async fn begin(asked: &Trace, target: TraceTarget) -> Result<(Tracing<'_>, Start), String> {
        let mut unseen = Vec::new();
        let events = match Events::open() {
            Ok(events) => Some(events),
            Err(error) if error.errno() == Some(Errno::EPERM) => return Err(privileges(&error)),
            Err(error) => {
                unseen.push(format!("connections, and where they are sent: {error}"));
                None
            }
        };
        let tracer = match Tracer::open(&target) {
            Ok(tracer) => Some(tracer),
            Err(failure) => {
                let error = failure.first();
                if error.errno() == Some(Errno::EPERM) {
                    return Err(privileges(&error));
                }
                unseen.push(format!(
                    "rules of nf_tables, which this kernel cannot trace (this needs nf_tables with \
                     table owners, Linux 5.12): {error}"
                ));
                None
            }
        };
        let legacy = legacy_tables(Family::of(&target.to.ip()));
        if !legacy.is_empty() {
            let tables = legacy.join(", ");
            unseen.push(format!(
                "rules of iptables-legacy (it has the tables {tables}), which the kernel does not report"
            ));
        }
        if tracer.is_none() && events.is_none() {
            return Err(format!("nothing can be traced: {}", unseen.join("; ")));
        }
        let most = asked.timeout.min(PATIENCE);
        let protocol = target.protocol.name();
        // Only the node itself calls its loopback addresses.
        let loopback = Some(target.to.ip()).filter(IpAddr::is_loopback);
        let from = sender(target.from.or(loopback));
        let explained =
            ask::explanation(&asked.common.socket, most, target.to, protocol, &from).await;
        let asker = asker(asked, &target, explained.as_ref().ok(), &mut unseen).await;
        let start = start(&target, explained.as_ref(), unseen);
        let mode = start.mode.clone();
        let runs = |name: ModeName| mode.as_deref() == Some(&*name.to_string());
        let relays = runs(ModeName::Userspace);
        let proxy = Proxy {
            relays,
            serves: (explained.as_ref()).is_ok_and(|it| it.verdict != "notServed"),
            endpoints: match (&asker, &explained) {
                (None, Ok(explained)) => endpoints(explained),
                _ => Vec::new(),
            },
            own: if relays { own() } else { Vec::new() },
        };
        let tracing = Tracing {
            asked,
            target,
            tracer,
            events,
            stories: Stories::new(target, proxy),
            asker,
            pairs: Pairs::new(target.to),
            rules: HashMap::new(),
            is_ipvs: runs(ModeName::Ipvs),
            summary: Summary::default(),
        };
        Ok((tracing, start))
    }

    async fn run(&mut self, start: Start, ends: &mut Ends) -> io::Result<()> {
        print::print(&Report::Start(start), self.asked.common.format.output)?;
        let end = time::sleep(self.asked.timeout);
        tokio::pin!(end);
        let mut tick = time::interval(OVERDUE);
        // While the proxy does not answer, the kernel's reports are read between two requests.
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        while self.summary.connections < self.asked.count {
            tokio::select! {
                () = &mut end => break,
                () = ends.arrived() => break,
                arrived = self.arrived() => arrived?,
                _ = tick.tick() => {
                    // Clients first: an attempt whose client is known need not wait.
                    self.read().await?;
                    self.pair().await?;
                }
            }
            self.read().await?;
            self.end_overdue(Some(Instant::now()))?;
        }
        self.read().await?;
        self.end_overdue(None)?;
        self.pair_last(ends).await?;
        let summary = Report::Summary(std::mem::take(&mut self.summary));
        print::print(&summary, self.asked.common.format.output)
    }

    /// Asks the proxy for its connections to endpoints, and prints those whose client was
    /// reported.
    async fn pair(&mut self) -> io::Result<()> {
        let Some(asker) = &mut self.asker else {
            return Ok(());
        };
        // A busy proxy reports them later.
        if let Ok((dials, lost)) = asker.ask().await {
            self.summary.lost |= lost;
            for report in self.pairs.add(dials) {
                self.print(Some(report))?;
            }
        }
        Ok(())
    }

    /// Repeats this until the endpoint of each relayed connection is known, for [`LAST`] at most.
    async fn pair_last(&mut self, ends: &mut Ends) -> io::Result<()> {
        let end = Instant::now() + LAST;
        loop {
            self.pair().await?;
            if self.asker.is_none() || self.pairs.are_complete() || Instant::now() >= end {
                return Ok(());
            }
            tokio::select! {
                () = ends.arrived() => return Ok(()),
                () = time::sleep(OVERDUE) => {}
            }
        }
    }

    /// Waits until steps or changes may have arrived.
    async fn arrived(&self) -> io::Result<()> {
        let steps = async {
            match &self.tracer {
                Some(tracer) => tracer.arrived().await,
                None => std::future::pending().await,
            }
        };
        let changes = async {
            match &self.events {
                Some(events) => events.arrived().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            arrived = steps => arrived,
            arrived = changes => arrived,
        }
    }

    /// Reads new steps and changes, and prints the resulting reports.
    async fn read(&mut self) -> io::Result<()> {
        // Changes are read before steps: by then all steps of their packets have arrived, because
        // the entry of a packet is confirmed after its rules.
        let mut changes = Vec::new();
        if let Some(events) = &mut self.events {
            self.summary.lost |= events.drain(|event| changes.push(event))?;
        }
        let mut steps = Vec::new();
        if let Some(tracer) = &mut self.tracer {
            self.summary.lost |= tracer.drain(|trace| steps.push(trace))?;
        }
        let steps: Vec<Step> = steps.iter().map(|trace| self.step(trace)).collect();
        for step in steps {
            let report = self.stories.step(step, Instant::now());
            self.print(report)?;
        }
        for event in changes {
            let report = self.change(&event);
            self.print(report)?;
        }
        Ok(())
    }

    fn change(&mut self, event: &Event) -> Option<Report> {
        let real_server = self.real_servers();
        self.stories.change(event, Instant::now(), real_server)
    }

    /// Reports packets whose path has ended although no step says so.
    fn end_overdue(&mut self, now: Option<Instant>) -> io::Result<()> {
        let overdue = self.stories.overdue(now);
        if overdue.is_empty() {
            return Ok(());
        }
        let flows = self.flows();
        for client in overdue {
            let flow = flows.iter().find(|flow| flow.original.source == client);
            let real_server = self.real_servers();
            let report = self.stories.end(client, flow, real_server);
            self.print(Some(report))?;
        }
        Ok(())
    }

    /// Returns a function that finds the endpoint to which IPVS sends a client.
    fn real_servers(&self) -> impl Fn(SocketAddr) -> Option<SocketAddr> + use<> {
        let (is_ipvs, protocol, to) = (self.is_ipvs, self.target.protocol, self.target.to);
        move |client| {
            let found = is_ipvs.then(|| connections::real_server(protocol, client, to));
            found?.ok().flatten()
        }
    }

    /// Lists the entries of conntrack for the destination; none if it cannot be read.
    fn flows(&self) -> Vec<Flow> {
        let to = Match {
            protocol: self.target.protocol.number(),
            destination: Some(self.target.to.ip()),
            port: Some(self.target.to.port()),
            reply: Reply::Any,
        };
        let family = Family::of(&self.target.to.ip());
        let socket = Socket::open(netlink::Protocol::Netfilter);
        let found = socket.and_then(|mut socket| flows::list(&mut socket, family, &[to]));
        found.unwrap_or_default()
    }

    fn step(&mut self, trace: &nftables::Trace) -> Step {
        let rule = self.rule(trace);
        Step {
            id: trace.id,
            packet: trace.packet,
            input: trace.input.and_then(link),
            words: words::step(&trace.chain, &trace.step, rule.as_ref()),
        }
    }

    /// Describes the rule of that step, if it still exists.
    fn rule(&mut self, trace: &nftables::Trace) -> Option<RuleSummary> {
        let TracedStep::Rule { handle, .. } = trace.step else {
            return None;
        };
        let key = (trace.chain.clone(), handle);
        if let Some(known) = self.rules.get(&key) {
            return known.clone();
        }
        let tracer = self.tracer.as_mut()?;
        let found = tracer.rule(&trace.chain, handle).ok();
        self.rules.insert(key, found.clone());
        found
    }

    fn print(&mut self, report: Option<Report>) -> io::Result<()> {
        // Connections that arrived together with the last requested one are omitted.
        let is_enough = self.summary.connections >= self.asked.count;
        let report =
            report.filter(|report| !(is_enough && matches!(report, Report::Connection(_))));
        let Some(report) = report else { return Ok(()) };
        if let Report::Connection(connection) = &report {
            self.pairs.reported(connection);
        }
        self.summary.add(&report);
        print::print(&report, self.asked.common.format.output)
    }
}

fn privileges(error: &netlink::Error) -> String {
    format!("{error}: tracing needs root, or CAP_NET_ADMIN in the node's network namespace")
}

/// Looks up the name of the interface with that index.
fn link(index: u32) -> Option<String> {
    let name = if_indextoname(index).ok()?;
    name.into_string().ok()
}
