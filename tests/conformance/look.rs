//! One caller at one address: calling as often as it takes to tell.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::addresses::{TARGET, socket_address};
use super::ask::{self, Client};
use super::case::{Caller, Expectation, Protocol, Target};
use super::endpoints::Pod;
use super::run::Run;
use super::sight::{self, Answered, How, Outcome, Sight};
use super::stray;
use super::world::{CLIENTS, further_address, node_addresses};

/// Sockets that are kept from stage to stage.
pub type Open = HashMap<(Caller, SocketAddr, Protocol), Client>;

/// A caller, a socket address and what is seen there.
pub struct Look {
    pub caller: Caller,
    pub to: SocketAddr,
    pub target: Target,
    pub protocol: Protocol,
    pub one_socket: bool,
    pub stray: bool,
    pub large: bool,
    pub sight: Sight,
}

impl Run<'_> {
    /// What an expectation of case `number` is made of.
    pub fn looks(&self, expectation: &Expectation, number: u16) -> Vec<Look> {
        let mut looks = Vec::new();
        for caller in &expectation.callers {
            for target in &expectation.targets {
                for family in &expectation.families {
                    for protocol in &expectation.protocols {
                        let to = socket_address(*target, *family, number, expectation.port);
                        looks.push(Look {
                            caller: *caller,
                            to,
                            target: *target,
                            protocol: *protocol,
                            one_socket: expectation.one_socket,
                            stray: expectation.stray,
                            large: expectation.large,
                            sight: expectation
                                .sight_in(self.column, *caller, *target, *protocol)
                                .0,
                        });
                    }
                }
            }
        }
        looks
    }

    /// Calls as often as it takes to tell.
    pub fn attempt(&self, look: &Look, open: &mut Open) -> Result<(), String> {
        let patience = match look.sight {
            Sight::Silent | Sight::SilentOrRefused => self.patience.silence,
            _ => self.patience.answer,
        };
        let call = |from| match look.target {
            Target::HealthCheck => ask::health(look.to, patience),
            _ => ask::once(look.protocol, from, look.to, patience, look.large),
        };
        if let Sight::Answered(Answered { by, how, .. }) = &look.sight
            && matches!(how, How::Sticky | How::StickyForASecond)
        {
            return self.enter(look.caller, || self.stickiness(look, by.len(), *how, &call));
        }
        let outcomes = self.enter(look.caller, || {
            if look.one_socket {
                let key = (look.caller, look.to, look.protocol);
                let client = match open.entry(key) {
                    Entry::Occupied(kept) => kept.into_mut(),
                    Entry::Vacant(empty) => {
                        match Client::open(look.protocol, None, look.to, patience) {
                            Ok(client) => empty.insert(client),
                            Err(error) => return vec![ask::fate(&error)],
                        }
                    }
                };
                if look.stray
                    && let Err(error) = self.send_astray(client, look)
                {
                    return vec![Outcome::Odd(format!("no stray packet: {error}"))];
                }
                // What the packet brings about may come after the first answer.
                let answers = if look.stray { 3 } else { 1 };
                return (0..answers).map(|_| client.ask(look.large)).collect();
            }
            let (least, most) = sight::calls(&look.sight);
            let mut outcomes: Vec<Outcome> = Vec::new();
            while outcomes.len() < least
                || outcomes.len() < most && !sight::all_met(&look.sight, &outcomes)
            {
                outcomes.push(call(self.source(look)));
                if !matches!(outcomes.last(), Some(Outcome::Answer(_))) {
                    break;
                }
            }
            outcomes
        });
        self.judge(look, &outcomes)
    }

    /// Has pod `a` send a packet of this connection that is far off its window.
    fn send_astray(&self, client: &Client, look: &Look) -> io::Result<()> {
        let stream = client.stream().ok_or(io::ErrorKind::Unsupported)?;
        let numbers = stray::numbers(stream)?;
        let to = stream.local_addr()?;
        let (v4, v6) = Pod::A.addresses();
        let from: IpAddr = match look.to {
            SocketAddr::V4(_) => v4.into(),
            SocketAddr::V6(_) => v6.into(),
        };
        let from = SocketAddr::new(from, TARGET);
        self.enter(Caller::Backend, || stray::send(from, to, numbers))
    }

    /// The address to call from, where it matters: the router tells each
    /// address only once a second what it does not know (`ip_error` in
    /// net/ipv4/route.c; no namespace can change that).
    fn source(&self, look: &Look) -> Option<IpAddr> {
        if look.caller != Caller::Pod || look.sight != Sight::Unserved {
            return None;
        }
        let any = match look.to.ip() {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        let (v4, v6) = further_address(1 + any % CLIENTS);
        Some(match look.to {
            SocketAddr::V4(_) => v4.into(),
            SocketAddr::V6(_) => v6.into(),
        })
    }

    /// Every client at an endpoint of its own.
    fn stickiness(
        &self,
        look: &Look,
        endpoints: usize,
        how: How,
        call: &dyn Fn(Option<IpAddr>) -> Outcome,
    ) -> Result<(), String> {
        let round = || -> Result<Vec<String>, String> {
            let (least, _) = sight::calls(&look.sight);
            let mut pins = Vec::new();
            for number in 1..=CLIENTS {
                let (v4, v6) = further_address(number);
                let from = match look.to {
                    SocketAddr::V4(_) => IpAddr::from(v4),
                    SocketAddr::V6(_) => v6.into(),
                };
                let calls = if how == How::Sticky { least } else { 1 };
                let outcomes: Vec<_> = (0..calls).map(|_| call(Some(from))).collect();
                self.judge(look, &outcomes)?;
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
            return match alike && endpoints > 1 {
                true => Err(format!("all clients meet {}", pins[0])),
                false => Ok(()),
            };
        }
        // The silence is what is tested; it is no wait for anything else.
        std::thread::sleep(Duration::from_millis(2_100));
        match round()? == pins {
            true => Err("every client is where it was".into()),
            false => Ok(()),
        }
    }

    fn judge(&self, look: &Look, outcomes: &[Outcome]) -> Result<(), String> {
        let caller = self.world.host(look.caller).name();
        sight::judge(&look.sight, outcomes, caller, &node_addresses())
    }
}
