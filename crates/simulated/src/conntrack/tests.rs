//! The model against this machine's kernel: random programs have the same outcome and leave
//! the same.

use std::net::SocketAddr;

use net::Family;
use netlink::{
    Protocol, Socket,
    conntrack::{
        entries,
        flows::{self, Match, Reply, TCP, Tuple, UDP},
    },
};
use nix::errno::Errno;
use testing::{cases, in_namespace};

use crate::{
    Faultless, Kernel,
    random_steps::{Step, programs},
};

/// How many random programs there are: each list walks the kernel's whole table.
const CASES: u32 = 10;

/// Carries out steps, and describes their outcomes.
struct Side {
    socket: Socket,
    /// The model that answers the socket; `None`: the real kernel.
    model: Option<Kernel>,
}

impl Side {
    fn new(model: Option<Kernel>) -> Side {
        let socket = Socket::open(Protocol::Netfilter).expect("a socket");
        Side { socket, model }
    }

    fn of_model() -> Side {
        let kernel = Kernel::new(Faultless);
        let _entered = kernel.enter();
        Side::new(Some(kernel.clone()))
    }

    fn step(&mut self, (what, one, other, more): Step) -> String {
        let family = family(one);
        match what % 8 {
            0..4 => self.enter(protocol(other), tuples(one, other, more)),
            4 | 5 => {
                let deleted = flows::delete(&mut self.socket, family, &[matching(one, other)]);
                format!("{:?}", deleted.map_err(|error| error.errno()))
            }
            6 => {
                let both = [matching(one, other), matching(one, more)];
                let listed = flows::list(&mut self.socket, family, &both).expect("a list");
                let mut lines: Vec<_> = listed.iter().map(ToString::to_string).collect();
                lines.sort();
                format!("{lines:?}")
            }
            _ => format!("{:?}", flows::translated(&mut self.socket, family).ok()),
        }
    }

    fn enter(&mut self, protocol: u8, [original, reply]: [Tuple; 2]) -> String {
        let entered = match &self.model {
            Some(model) => {
                let mut entered = false;
                model.change(|state| {
                    entered = state.conntrack.enter(protocol, original, reply);
                });
                entered
            }
            None => {
                let request = entries::flow(protocol, original, reply, 600);
                match self.socket.call(&request, |_| Ok(None::<()>)) {
                    Ok(_) => true,
                    Err(error) if error.errno() == Some(Errno::EEXIST) => false,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        format!("entered: {entered}")
    }

    /// Describes the entries that are there.
    fn contents(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for family in Family::ALL {
            let all = [Match::all(TCP), Match::all(UDP)];
            let listed = flows::list(&mut self.socket, family, &all).expect("a list");
            lines.extend(listed.iter().map(ToString::to_string));
        }
        lines.sort();
        lines
    }
}

fn family(choice: u8) -> Family {
    Family::ALL[usize::from(choice) % 2]
}

fn protocol(choice: u8) -> u8 {
    [UDP, TCP][usize::from(choice / 64) % 2]
}

/// Returns one of few addresses with one of two ports, so that flows meet.
fn place(family: Family, choice: u8) -> SocketAddr {
    let host = choice % 3;
    let port = 50 + u16::from(choice / 4 % 2);
    let text = match family {
        Family::V4 => format!("10.0.0.{}:{port}", host + 1),
        Family::V6 => format!("[fd00::{}]:{port}", host + 1),
    };
    text.parse().expect("an address")
}

/// Both tuples of a flow that NAT may translate.
fn tuples(one: u8, other: u8, more: u8) -> [Tuple; 2] {
    let family = family(one);
    let (client, called) = (place(family, one / 2), place(family, other));
    let served = if more & 64 == 0 {
        called
    } else {
        place(family, more)
    };
    let tuple = |source, destination| Tuple {
        source,
        destination,
    };
    [tuple(client, called), tuple(served, client)]
}

fn matching(one: u8, other: u8) -> Match {
    let at = place(family(one), other);
    let sources = || [place(family(one), other / 8).into()].into();
    let named = |bit: u8| other & bit == 0;
    Match {
        protocol: protocol(one),
        destination: named(1).then_some(at.ip()),
        port: named(2).then_some(at.port()),
        reply: match other / 32 % 3 {
            0 => Reply::Any,
            1 => Reply::From(sources()),
            _ => Reply::NotFrom(sources()),
        },
    }
}

#[test]
fn random_programs_do_the_same_as_in_the_real_kernel() {
    in_namespace(|| {
        let mut real = Side::new(None);
        for program in programs(cases(CASES)) {
            let mut model = Side::of_model();
            for family in Family::ALL {
                let all = [Match::all(TCP), Match::all(UDP)];
                flows::delete(&mut real.socket, family, &all).unwrap();
            }
            for at in program {
                let expected = (real.step(at), real.contents());
                assert_eq!((model.step(at), model.contents()), expected, "{at:?}");
            }
        }
    });
}
