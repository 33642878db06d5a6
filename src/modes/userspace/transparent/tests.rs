//! Against the real kernel, in a network namespace of the test's own thread.

use std::process::Command;

use super::*;
use crate::{
    kernel::{
        namespace::{in_namespace, ip},
        probe::Kernel,
    },
    modes::userspace::insiders::DetectLocal,
    net::PerFamily,
};

const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

/// What a command prints.
fn shown(command: &str) -> String {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().expect("it is installed");
    String::from_utf8(output.stdout).unwrap()
}

/// All that is ours in the namespace's kernel, and the foreign rule.
fn traces() -> String {
    let commands = [
        "iptables-save -t mangle",
        "ip6tables-save -t mangle",
        "ip rule",
        "ip -6 rule",
        "ip route show table 1414791168",
        "ip -6 route show table 1414791168",
    ];
    let lines = commands.map(shown).concat();
    let noise = |line: &&str| line.starts_with(['#', ':', '*']) || *line == "COMMIT";
    let lines: Vec<_> = lines.lines().filter(|line| !noise(line)).collect();
    lines.join("\n")
}

fn transparent() -> Arc<Transparent> {
    let insiders = Arc::new(Insiders::new(DetectLocal::PodCidrs));
    Arc::new(Transparent::new(insiders))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

#[test]
fn the_way_of_answers_comes_is_repaired_and_goes() {
    in_namespace(|| {
        let foreign = "iptables -t mangle -A PREROUTING -i eth9 -j MARK --set-mark 1";
        let mut words = foreign.split(' ');
        let status = Command::new(words.next().unwrap()).args(words).status();
        assert!(status.unwrap().success());
        let before = traces();

        let transparent = transparent();
        let mut steering = Steering::new(true, Arc::clone(&transparent), &Kernel::examine(&[]));
        let notes = run(steering.sync(BOTH));
        assert_eq!(notes.len(), 2, "{notes:?}");
        let sees = |note: &steering::Note| note.as_ref().is_ok_and(|n| n.contains("see clients"));
        assert!(notes.iter().all(sees), "{notes:?}");
        assert!(
            Family::ALL
                .iter()
                .all(|f| transparent.steered(*f).load(Relaxed))
        );
        let there = traces();
        assert_eq!(
            there.matches("-m socket --transparent").count(),
            2,
            "{there}"
        );
        assert_eq!(there.matches("fwmark 0x54505448").count(), 2, "{there}");
        assert_eq!(
            there.matches("local ").count() - before.matches("local ").count(),
            2,
            "{there}"
        );

        assert_eq!(run(steering.sync(BOTH)), []);
        assert_eq!(traces(), there, "nothing was wrong");
        for damage in ["iptables -t mangle -F", "ip -6 rule del pref 76"] {
            let mut words = damage.split(' ');
            let status = Command::new(words.next().unwrap()).args(words).status();
            assert!(status.unwrap().success());
        }
        assert_eq!(run(steering.sync(BOTH)), []);
        let repaired = traces();
        assert_eq!(
            repaired.matches("-m socket --transparent").count(),
            2,
            "{repaired}"
        );
        assert_eq!(
            repaired.matches("fwmark 0x54505448").count(),
            2,
            "{repaired}"
        );

        // A process without the flag removes what one with it left.
        let mut other = Steering::new(false, transparent, &Kernel::default());
        assert_eq!(run(other.sync(BOTH)), []);
        let foreign = before.lines().filter(|line| !line.contains("eth9"));
        assert_eq!(traces(), foreign.collect::<Vec<_>>().join("\n"));
        run(cleanup()).expect("nothing to do");
    });
}

#[test]
fn a_kernel_that_would_drop_the_answers_is_named() {
    in_namespace(|| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/src_valid_mark", "1").unwrap();
        let transparent = transparent();
        let notes =
            run(Steering::new(true, Arc::clone(&transparent), &Kernel::examine(&[])).sync(BOTH));
        let said = notes.iter().find_map(|note| note.as_ref().err()).unwrap();
        assert!(
            said.contains("IPv4") && said.contains("src_valid_mark is 1"),
            "{said}"
        );
        assert!(!transparent.steered(Family::V4).load(Relaxed));
        assert!(transparent.steered(Family::V6).load(Relaxed));
    });
}

#[test]
fn two_sockets_never_share_client_and_endpoint() {
    in_namespace(|| {
        ip("link add pods type bridge");
        ip("link set pods up");
        ip("addr add 10.1.0.1/24 dev pods");
        let [client, a, b] = ["192.0.2.9:53", "10.1.0.2:53", "10.1.0.3:53"];
        let [client, a, b] = [client, a, b].map(|text| text.parse::<SocketAddr>().unwrap());
        let transparent = transparent();
        let bind = |endpoint| {
            let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
            let bound = transparent.bind_udp(&socket, client, endpoint)?;
            socket.connect(&endpoint.into()).unwrap();
            io::Result::Ok((socket, bound))
        };
        let first = bind(a).unwrap();
        let _other_endpoint = bind(b).unwrap();
        let again = bind(a).map(drop).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        bind(a).unwrap();
    });
}
