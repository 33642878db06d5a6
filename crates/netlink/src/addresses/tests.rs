use super::*;

#[test]
fn the_loopback_address_is_listed() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let all = list(&mut socket).unwrap();
    let loopback = all
        .iter()
        .find(|a| a.address == IpAddr::from([127, 0, 0, 1]))
        .expect("this machine has a loopback address");
    assert_eq!(
        (loopback.interface.as_str(), loopback.prefix, loopback.scope),
        ("lo", 8, libc::RT_SCOPE_HOST)
    );
}

#[test]
fn the_kernel_chooses_no_address_that_was_retired() {
    use testing::{in_namespace, ip};

    in_namespace(|| {
        // Addresses on a link that is down, as kube-proxy makes them, and
        // another link without any of its own.
        ip("link add services type bridge");
        let there = ["10.96.0.1", "10.96.0.2", "fd00:96::1"].map(|a| a.parse().unwrap());
        for address in there {
            let bits = Family::of(&address).bits();
            let more = if address.is_ipv6() { "nodad" } else { "" };
            ip(&format!("addr add {address}/{bits} dev services {more}"));
        }
        ip("link add out type veth peer name far");
        ip("link set far up");
        ip("link set out up");
        ip("route add 198.51.100.0/24 dev out");
        let index = links::index("services").unwrap();
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let mut listed = || -> Vec<Address> {
            let all = list(&mut socket).unwrap().into_iter();
            all.filter(|a| a.index == index).collect()
        };
        let source = || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            let connected = socket.connect("198.51.100.1:9");
            connected
                .and_then(|()| socket.local_addr())
                .map(|a| a.ip())
                .ok()
        };
        assert_eq!(source(), Some(there[0]), "this should be prevented");
        assert!(listed().iter().all(Address::is_eligible), "{:?}", listed());

        // A connection from such an address survives.
        let server = std::net::TcpListener::bind((there[0], 0)).unwrap();
        let client = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let mut other = Socket::open(Protocol::Route).unwrap();
        for outcome in retire(&mut other, index, &there).unwrap() {
            outcome.unwrap();
        }
        assert!(!listed().iter().any(Address::is_eligible), "{:?}", listed());
        let mut now: Vec<IpAddr> = listed().iter().map(|a| a.address).collect();
        now.sort();
        assert_eq!(now, there);
        assert_ne!(source(), Some(there[0]));
        let (mut accepted, _) = server.accept().unwrap();
        use std::io::{Read, Write};
        (&client).write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        let routes = std::process::Command::new("ip")
            .args(["route", "show", "table", "local", "metric", "1"])
            .output();
        assert_eq!(routes.unwrap().stdout, b"", "the temporary route is gone");
    });
}

#[test]
fn changes_by_other_programs_are_noticed_and_own_ones_are_not() {
    use std::time::Duration;

    use testing::{block_on, in_namespace, ip};

    in_namespace(|| {
        block_on(async {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let mut changes = AddressChanges::open(None).unwrap();
            let service = IpAddr::from([10, 96, 0, 1]);
            assign(&mut socket, 1, &[service])
                .unwrap()
                .remove(0)
                .unwrap();
            assert_eq!(list_assigned(&mut socket).unwrap()[0].address, service);
            assert!(
                !list(&mut socket)
                    .unwrap()
                    .iter()
                    .any(|a| a.address == service)
            );
            // Its notification is there already: the kernel sends before it
            // acknowledges.
            let quiet = tokio::time::timeout(Duration::from_millis(20), changes.changed());
            assert!(quiet.await.is_err());
            for step in [
                "addr add 192.0.2.1/32 dev lo",
                "addr del 192.0.2.1/32 dev lo",
                // With detection of duplicates there would be two
                // notifications.
                "addr add fd00::1/128 dev lo nodad",
            ] {
                ip(step);
                let noticed = tokio::time::timeout(Duration::from_secs(10), changes.changed());
                noticed.await.expect(step).unwrap();
            }
            unassign(&mut socket, 1, &[service]).unwrap();
            assert!(list_assigned(&mut socket).unwrap().is_empty());
            // An address of a pod; without detection of duplicates, it is there
            // at once.
            ip("link add pod type veth peer name far");
            ip("link set far addrgenmode none");
            ip("link set pod addrgenmode none");
            ip("link set far up");
            ip("link set pod up");
            ip("addr add fe80::1/64 dev pod nodad");
            ip("addr del fe80::1/64 dev pod");
            let quiet = tokio::time::timeout(Duration::from_millis(20), changes.changed());
            assert!(quiet.await.is_err(), "a link-local address counts");
            for step in ["addr add 169.254.7.7/32 dev pod", "link del pod"] {
                ip(step);
                let noticed = tokio::time::timeout(Duration::from_secs(10), changes.changed());
                noticed.await.expect(step).unwrap();
            }
        });
    });
}
