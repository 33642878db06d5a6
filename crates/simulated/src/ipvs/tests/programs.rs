//! Random programs for IPVS, dummy links and their addresses, and their outcomes. A test in a guest
//! has its kernel run them and compares that with the record, another test has the model do so.

use std::{fmt::Write as _, net::IpAddr, time::Duration};

use ipvs::{Change, Forwarding, HASH_PORTS, Ipvs, RealServer, ServerId, VirtualServer};
use net::Protocol;
use netlink::{Error, Protocol as Netlink, Socket, addresses, links};
use testing::Random;

const PROGRAMS: u64 = 12;
const STEPS: usize = 40;
const LINK: &str = "kube-ipvs0";

/// The simulated kernel that the test programs run on.
struct Kernel {
    ipvs: Ipvs,
    route: Socket,
    random: Random,
}

/// Runs all programs in the network namespace of the calling thread, in which an interface is up.
/// Returns the outcome of each step.
pub fn transcript() -> String {
    let mut text = String::new();
    for seed in 0..PROGRAMS {
        let mut kernel = Kernel {
            ipvs: Ipvs::open().expect("IPVS"),
            route: Socket::open(Netlink::Route).expect("a socket"),
            random: Random::new(seed),
        };
        let _ = writeln!(text, "program {seed}");
        for server in kernel.ipvs.list().expect("a list") {
            kernel.ipvs.delete(&server.id).expect("it is gone");
        }
        links::delete(&mut kernel.route, LINK).expect("it is gone");
        for _ in 0..STEPS {
            let _ = writeln!(text, "{}", kernel.step());
        }
        text += &kernel.state();
    }
    text
}

/// Returns the result as text.
fn text_of<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(error) => match error.errno() {
            Some(errno) => format!("{errno:?}"),
            None => error.to_string(),
        },
    }
}

fn each(outcomes: Result<Vec<Result<(), Error>>, Error>) -> String {
    let outcomes = outcomes.expect("the socket");
    let texts: Vec<String> = outcomes.into_iter().map(text_of).collect();
    texts.join(", ")
}

impl Kernel {
    fn id(&mut self) -> ServerId {
        let address = ["10.96.0.1:80", "10.96.0.2:53", "[fd00:96::1]:80"];
        ServerId {
            protocol: self.random.one(&[Protocol::Tcp, Protocol::Udp]),
            address: self.random.one(&address).parse().expect("an address"),
        }
    }

    fn server(&mut self) -> VirtualServer {
        let id = self.id();
        let scheduler = self.random.one(&["rr", "rr", "wrr", "sh", "mh", "nosuch"]);
        let mut server = VirtualServer::new(id, scheduler);
        match self.random.below(6) {
            0 => server.persistence = Some(Duration::from_secs(600)),
            1 => server.flags = HASH_PORTS,
            2 => server.client_bits = self.random.one(&[0, 24, 32]),
            _ => {}
        }
        server
    }

    fn real(&mut self) -> RealServer {
        let addresses = [
            "10.244.0.1:80",
            "10.244.0.1:81",
            "10.244.0.2:80",
            "[fd00:f4::1]:80",
            "[fd00:f4::2]:80",
            "224.0.0.1:80",
            "0.0.0.0:80",
            "[ff02::1]:80",
        ];
        let address = self.random.one(&addresses).parse().expect("an address");
        let methods = [
            Forwarding::Masquerade,
            Forwarding::Masquerade,
            Forwarding::Tunnel,
            Forwarding::DirectRoute,
        ];
        let method = self.random.one(&methods);
        let mut real = RealServer::new(address, self.random.one(&[0, 1, 100]), method);
        if self.random.chance(200) {
            real.upper_threshold = self.random.one(&[0, 10, 20]);
            real.lower_threshold = self.random.one(&[0, 10, 15]);
        }
        real
    }

    fn change(&mut self) -> Change {
        match self.random.below(9) {
            0 | 1 => Change::Add(self.server()),
            2 => Change::Edit(self.server()),
            3 => Change::Delete(self.id()),
            4..7 => Change::AddReal(self.id(), self.real()),
            7 => Change::EditReal(self.id(), self.real()),
            _ => Change::DeleteReal(self.id(), self.real().address),
        }
    }

    fn addresses(&mut self) -> Vec<IpAddr> {
        let all = ["10.96.0.1", "10.96.0.2", "fd00:96::1", "fd00:96::2"];
        let count = 1 + self.random.below(3);
        let some = (0..count).map(|_| self.random.one(&all).parse().expect("an address"));
        some.collect()
    }

    /// Carries out a step, and describes its outcome.
    fn step(&mut self) -> String {
        let index = links::find(&mut self.route, LINK);
        let at = *index.as_ref().unwrap_or(&999);
        match self.random.below(16) {
            0..7 => {
                let count = 1 + self.random.below(4);
                let changes: Vec<Change> = (0..count).map(|_| self.change()).collect();
                format!("change {}", each(self.ipvs.apply(&changes)))
            }
            7 => format!("check {}", text_of(self.ipvs.check())),
            8 => {
                let id = self.id();
                format!("totals {}", text_of(self.ipvs.totals(&id)))
            }
            9 => {
                let scheduler = self.random.one(&["lc", "wlc", "nosuch"]);
                let tried = self.ipvs.try_scheduler(scheduler);
                format!("try {}", text_of(tried.map(|missing| missing.is_none())))
            }
            10 => format!("link {}", text_of(links::add_dummy(&mut self.route, LINK))),
            11 if self.random.chance(300) => {
                format!("unlink {}", text_of(links::delete(&mut self.route, LINK)))
            }
            11..14 => {
                let some = self.addresses();
                format!("add {}", each(addresses::add(&mut self.route, at, &some)))
            }
            14 => {
                let some = self.addresses();
                let gone = addresses::remove(&mut self.route, at, &some);
                format!("remove {}", each(gone))
            }
            _ => {
                let some = self.addresses();
                let retired = addresses::retire(&mut self.route, at, &some);
                format!("retire {}", each(retired))
            }
        }
    }

    /// Describes the present state.
    fn state(&mut self) -> String {
        let mut lines = Vec::new();
        for server in self.ipvs.list().expect("a list") {
            lines.push(format!("{server:?}"));
        }
        for id in ["10.96.0.1:80", "10.96.0.2:53", "[fd00:96::1]:80"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let address = id.parse().expect("an address");
                let id = ServerId { protocol, address };
                let mut reals = self.ipvs.list_real(&id).expect("a list");
                reals.sort_by_key(|real| real.server.address);
                lines.extend(reals.iter().map(|real| format!("{id} {real:?}")));
            }
        }
        let shown = self.ipvs.each(|id, reals| {
            let mut reals = reals.to_vec();
            reals.sort();
            lines.push(format!("table {id} {reals:?}"));
        });
        shown.expect("the table can be read");
        if let Ok(index) = links::find(&mut self.route, LINK) {
            let kind = links::kind(&mut self.route, index).expect("a link");
            lines.push(format!("{LINK} is {kind:?}"));
            let all = addresses::list(&mut self.route).expect("addresses");
            let on_link = all.into_iter().filter(|one| one.index == index);
            lines.extend(on_link.map(|one| {
                let (ip, eligible) = (one.address, one.is_eligible());
                format!("{ip}/{} scope {} {eligible}", one.prefix, one.scope)
            }));
        }
        lines.sort();
        lines.join("\n") + "\n"
    }
}
