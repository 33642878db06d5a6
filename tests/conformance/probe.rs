//! One caller at one address: calls as often as needed for a judgement.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::addresses::{TARGET, socket_address};
use super::call::{self, Client};
use super::case::{Caller, Expectation, Protocol, Target};
use super::endpoints::Pod;
use super::network::{CLIENTS, further_address, node_addresses};
use super::observation::{self, Answered, How, Observation, Outcome};
use super::run::Run;
use super::stray;

/// Sockets that stay open from stage to stage.
pub type Open = HashMap<(Caller, SocketAddr, Protocol), Client>;

/// A caller, a socket address and the expected result.
pub struct Probe {
    pub caller: Caller,
    pub to: SocketAddr,
    pub target: Target,
    pub protocol: Protocol,
    pub one_socket: bool,
    pub stray: bool,
    pub large: bool,
    pub observation: Observation,
}

impl Run<'_> {
    /// Splits an expectation of case `number` into probes.
    pub fn probes(&self, expectation: &Expectation, number: u16) -> Vec<Probe> {
        let mut probes = Vec::new();
        for caller in &expectation.callers {
            for target in &expectation.targets {
                for family in &expectation.families {
                    for protocol in &expectation.protocols {
                        let to = socket_address(*target, *family, number, expectation.port);
                        probes.push(Probe {
                            caller: *caller,
                            to,
                            target: *target,
                            protocol: *protocol,
                            one_socket: expectation.one_socket,
                            stray: expectation.stray,
                            large: expectation.large,
                            observation: expectation
                                .observation_in(self.column, *caller, *target, *protocol)
                                .observation,
                        });
                    }
                }
            }
        }
        probes
    }

    /// Calls as often as needed for a judgement.
    pub fn attempt(&self, probe: &Probe, open: &mut Open) -> Result<(), String> {
        let patience = match probe.observation {
            Observation::Silent | Observation::SilentOrRefused => self.patience.silence,
            _ => self.patience.answer,
        };
        let call = |from| match probe.target {
            Target::HealthCheck => call::health(probe.to, patience),
            _ => call::once(probe.protocol, from, probe.to, patience, probe.large),
        };
        if let Observation::Answered(Answered { by, how, .. }) = &probe.observation
            && matches!(how, How::Sticky | How::StickyForASecond)
        {
            return self.enter(probe.caller, || {
                self.stickiness(probe, by.len(), *how, &call)
            });
        }
        let outcomes = self.enter(probe.caller, || {
            if probe.one_socket {
                let key = (probe.caller, probe.to, probe.protocol);
                let client = match open.entry(key) {
                    Entry::Occupied(kept) => kept.into_mut(),
                    Entry::Vacant(empty) => {
                        match Client::open_kept(probe.protocol, probe.to, patience) {
                            Ok(client) => empty.insert(client),
                            Err(error) => return vec![call::outcome_of(&error)],
                        }
                    }
                };
                if probe.stray
                    && let Err(error) = self.send_stray(client, probe)
                {
                    return vec![Outcome::Odd(format!("no stray packet: {error}"))];
                }
                // Effects of the packet may come after the first answer.
                let answers = if probe.stray { 3 } else { 1 };
                return (0..answers).map(|_| client.ask(probe.large)).collect();
            }
            let (least, most) = observation::calls(&probe.observation, self.column.kernel);
            let mut outcomes: Vec<Outcome> = Vec::new();
            while outcomes.len() < least
                || outcomes.len() < most && !observation::all_met(&probe.observation, &outcomes)
            {
                outcomes.push(call(self.source(probe)));
                if !matches!(outcomes.last(), Some(Outcome::Answer(_))) {
                    break;
                }
            }
            outcomes
        });
        self.judge(probe, &outcomes)
    }

    /// Has pod `a` send a packet of this connection that is far outside its window.
    fn send_stray(&self, client: &Client, probe: &Probe) -> io::Result<()> {
        let stream = client.stream().ok_or(io::ErrorKind::Unsupported)?;
        let numbers = stray::numbers(stream)?;
        let to = stream.local_addr()?;
        let (v4, v6) = Pod::A.addresses();
        let from: IpAddr = match probe.to {
            SocketAddr::V4(_) => v4.into(),
            SocketAddr::V6(_) => v6.into(),
        };
        let from = SocketAddr::new(from, TARGET);
        self.enter(Caller::Backend, || stray::send(from, to, numbers))
    }

    /// The source address, if it matters: the router reports unknown destinations to each address
    /// only once a second (`ip_error` in net/ipv4/route.c; no namespace can change that).
    fn source(&self, probe: &Probe) -> Option<IpAddr> {
        if probe.caller != Caller::Pod || probe.observation != Observation::Unserved {
            return None;
        }
        let any = match probe.to.ip() {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        let (v4, v6) = further_address(1 + any % CLIENTS);
        Some(match probe.to {
            SocketAddr::V4(_) => v4.into(),
            SocketAddr::V6(_) => v6.into(),
        })
    }

    /// Checks that every client stays at its endpoint.
    fn stickiness(
        &self,
        probe: &Probe,
        endpoints: usize,
        how: How,
        call: &dyn Fn(Option<IpAddr>) -> Outcome,
    ) -> Result<(), String> {
        let round = || -> Result<Vec<String>, String> {
            let (least, _) = observation::calls(&probe.observation, self.column.kernel);
            let mut pins = Vec::new();
            for number in 1..=CLIENTS {
                let (v4, v6) = further_address(number);
                let from = match probe.to {
                    SocketAddr::V4(_) => IpAddr::from(v4),
                    SocketAddr::V6(_) => v6.into(),
                };
                let calls = if how == How::Sticky { least } else { 1 };
                let outcomes: Vec<_> = (0..calls).map(|_| call(Some(from))).collect();
                self.judge(probe, &outcomes)?;
                let names = outcomes.into_iter().map(|outcome| match outcome {
                    Outcome::Answer(answer) => answer.by,
                    other => format!("{other:?}"),
                });
                let mut names: Vec<String> = names.collect();
                names.dedup();
                match &names[..] {
                    [name] => pins.push(name.clone()),
                    _ => return Err(format!("{from} meets {names:?} in this order")),
                }
            }
            Ok(pins)
        };
        let pins = round()?;
        let alike = pins.iter().all(|pin| *pin == pins[0]);
        if how == How::Sticky {
            return if alike && endpoints > 1 {
                Err(format!("all clients meet {}", pins[0]))
            } else {
                Ok(())
            };
        }
        // The silence is part of the test; nothing else is awaited.
        std::thread::sleep(Duration::from_millis(2_100));
        if round()? == pins {
            Err("every client is where it was".into())
        } else {
            Ok(())
        }
    }

    fn judge(&self, probe: &Probe, outcomes: &[Outcome]) -> Result<(), String> {
        let caller = self.network.host(probe.caller).name();
        observation::judge(&probe.observation, outcomes, caller, &node_addresses())
    }
}
