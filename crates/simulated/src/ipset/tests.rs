//! The model against this machine's kernel: random programs have the same outcome and leave
//! the same.

use ipvs::ipset::{Element, IpSets, Kind, Set};
use net::Family;
use netlink::Error;
use testing::{cases, in_namespace};

use crate::{
    Faultless, Kernel,
    random_steps::{Step, programs},
};

/// How many random programs there are.
const CASES: u32 = 60;

fn name(choice: u8) -> &'static str {
    ["A", "B", "C"][usize::from(choice % 3)]
}

fn set(one: u8, other: u8) -> Set {
    let family = if other & 8 == 0 {
        Family::V4
    } else {
        Family::V6
    };
    let kind = Kind::ALL[usize::from(other) % Kind::ALL.len()];
    Set {
        max_members: if other & 16 == 0 { 3 } else { 65_536 },
        ..Set::new(name(one), kind, family)
    }
}

/// A member that fits the kind of `set`, but that it may refuse.
fn member(set: &Set, choice: u8) -> Element {
    let v4 = ["10.0.0.1", "10.0.0.2", "0.0.0.0", "10.0.0.3"];
    let v6 = ["fd00::1", "fd00::2", "::", "fd00::3"];
    let of_set = (set.family == Family::V4) != (choice == 255);
    let address = |at: u8| {
        let all = if of_set { v4 } else { v6 };
        all[usize::from(at) % 4].parse().expect("an address")
    };
    let nets = if of_set {
        ["10.0.0.0/8", "10.1.2.3/16", "0.0.0.0/0", "10.0.0.1/32"]
    } else {
        ["fd00::/16", "fd00::1/64", "::/0", "fd00::1/128"]
    };
    let net = nets[usize::from(choice / 2) % 4]
        .parse()
        .expect("a network");
    let (ip, other) = (address(choice), address(choice / 4));
    let protocol = [6, 17, 132, 0, 89][usize::from(choice / 8) % 5];
    let port = u16::from(choice % 3);
    match set.kind {
        Kind::Ip => Element::Ip(ip),
        Kind::Port => Element::Port(port),
        // Not every kernel takes the unspecified address of IPv6 here.
        Kind::IpPort => Element::IpPort {
            ip: if ip.is_unspecified() { address(0) } else { ip },
            protocol,
            port,
        },
        Kind::IpPortIp => Element::IpPortIp {
            ip,
            protocol,
            port,
            other,
        },
        Kind::IpPortNet => Element::IpPortNet {
            ip,
            protocol,
            port,
            net,
        },
    }
}

fn text_of<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    }
}

/// Carries out a step, and describes its outcome.
fn step(sets: &mut IpSets, (what, one, other, more): Step) -> String {
    let set = set(one, other);
    match what % 8 {
        0 | 1 => text_of(sets.create(&set)),
        2 if one % 2 == 0 => text_of(sets.destroy(&set.name)),
        2 => text_of(sets.swap(name(one), name(other))),
        3..6 => {
            // Its kind is that of the existing set, if there is one.
            let there = sets.list().expect("a list").into_iter();
            let there = there.filter(|there| there.name == set.name);
            let kind = there.filter_map(|there| Kind::of(&there.kind)).next();
            let set = Set {
                kind: kind.unwrap_or(set.kind),
                ..set
            };
            let members = [more, more.wrapping_add(3), more.wrapping_mul(5)];
            let members = members.map(|choice| member(&set, choice));
            let refused = if what % 8 < 5 {
                sets.add(&set, &members)
            } else {
                sets.remove(&set, &members)
            };
            let refused = refused.map(|refused| {
                let refused = refused.into_iter();
                refused
                    .map(|one| format!("{} {}", one.element, one.error))
                    .collect::<Vec<_>>()
            });
            text_of(refused)
        }
        6 => {
            // If several members do not fit, their order decides which of them is named.
            let enlarged = sets.enlarge(&set.with_room_for(u32::from(more) << 10));
            format!("{:?}", enlarged.map_err(|error| error.errno()))
        }
        _ => text_of(sets.members(&set.name).map(|members| members.len())),
    }
}

/// Describes the sets that are there.
fn contents(sets: &mut IpSets) -> Vec<String> {
    let mut lines = Vec::new();
    for listed in sets.list().expect("a list") {
        let mut members = sets.members(&listed.name).expect("its members");
        members.sort();
        lines.push(format!("{listed:?} {members:?}"));
    }
    lines.sort();
    lines
}

#[test]
fn random_programs_do_the_same_as_in_the_real_kernel() {
    in_namespace(|| {
        let mut real = IpSets::open().unwrap();
        for program in programs(cases(CASES)) {
            let kernel = Kernel::new(Faultless);
            let mut model = {
                let _entered = kernel.enter();
                IpSets::open().unwrap()
            };
            for name in ["A", "B", "C"] {
                real.destroy(name).unwrap();
            }
            for at in program {
                let outcomes = [&mut real, &mut model].map(|sets| step(sets, at));
                assert_eq!(outcomes[0], outcomes[1], "{at:?} {:?}", set(at.1, at.2));
                let [real_has, has] = [&mut real, &mut model].map(contents);
                assert_eq!(real_has, has, "{at:?}");
            }
        }
    });
}
