//! Against the real kernel, in a network namespace of the test's own thread.

use netlink::conntrack::{
    entries,
    flows::{self, Match, Tuple},
};
use testing::{block_on, in_namespace, ip};
use xtables::{Search, Xtables};

use super::{tree::FEW, *};
use crate::modes::userspace::capture::{Capture, Method, Target};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

fn frontend(family: Family, address: Option<&str>, port: u16) -> Frontend {
    match address {
        Some(ip) => Frontend::service(net::Protocol::Tcp, ip.parse().unwrap(), port),
        None => Frontend::node_port(net::Protocol::Tcp, family, port),
    }
}

/// Longer than the interval between checks for changes by others.
const NOTICED: std::time::Duration = std::time::Duration::from_millis(2500);

/// Our lines in both tables of `family`, without those that declare chains.
async fn ours(family: Family) -> String {
    let xtables = Xtables::chosen(&Search::new(family)).await.unwrap().0;
    let saved = xtables.saved("filter").await.unwrap() + &xtables.saved("nat").await.unwrap();
    let rules = saved.lines().filter(|line| line.starts_with("-A"));
    let ours = rules.filter(|line| line.contains("TRIPOD-US"));
    ours.map(|line| format!("{line}\n")).collect()
}

/// Adds a UDP flow to the conntrack table, in the form that nat gives it.
fn enter_udp(socket: &mut Socket, client: &str, called: &str, served: &str) {
    let [client, called, served] = [client, called, served].map(|at| at.parse().unwrap());
    let original = Tuple {
        source: client,
        destination: called,
    };
    let reply = Tuple {
        source: served,
        destination: client,
    };
    let flow = entries::flow(flows::UDP, original, reply, 600);
    socket.call(&flow, |_| Ok(None::<()>)).unwrap();
}

/// All UDP flows of `family`, in order, each as "what was called from where answers".
fn udp(socket: &mut Socket, family: Family) -> Vec<String> {
    let flows = flows::list(socket, family, &[Match::all(flows::UDP)]).unwrap();
    let lines = flows
        .iter()
        .map(|flow| format!("{} {}", flow.original.destination, flow.reply.source));
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

#[test]
fn rules_follow_are_repaired_and_go() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let mut redirect = Capture::of_both(Method::Redirect);
            let web = frontend(Family::V4, Some("10.96.0.1"), 80);
            let web6 = frontend(Family::V6, Some("fd96::1"), 80);
            let node = frontend(Family::V4, None, 30_080);
            let mut desired = Desired::from([web, web6, node].map(|f| (f, Target::at(40_000))));
            assert_eq!(redirect.sync_both(&desired, None).await.unwrap().failed, []);
            let v4 = ours(Family::V4).await;
            for part in [
                "-A PREROUTING -m comment",
                "-A OUTPUT -m mark ! --mark 0x54500050 -m comment",
                "-A INPUT -m conntrack",
                "--ctstate DNAT -m socket --transparent --nowildcard -j RETURN",
                "--dport 40000 -j REJECT",
                "-d 10.96.0.1/32 -p tcp -m tcp --dport 80",
                "--dst-type LOCAL -m tcp --dport 30080",
                "--to-destination 192.0.2.1:40000",
            ] {
                assert!(v4.contains(part), "{part} is missing in\n{v4}");
            }
            // Without an address of the family only REDIRECT is left.
            let v6 = ours(Family::V6).await;
            assert!(v6.contains("-j REDIRECT --to-ports 40000"), "{v6}");

            desired.remove(&web6);
            let https = frontend(Family::V4, Some("10.96.0.1"), 443);
            desired.insert(https, Target::at(40_001));
            redirect
                .sync_both(&desired, Some(&[web6, https]))
                .await
                .unwrap();
            let step = ours(Family::V4).await;
            assert!(step.contains("--dport 443") && step.contains("40001 -j REJECT"));
            assert!(!ours(Family::V6).await.contains("40000"));

            // Another process flushes our chain and drops a jump: a full sync repairs them.
            let xtables = Xtables::chosen(&Search::new(Family::V4)).await.unwrap().0;
            let sorted = |text: String| {
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            let broken = format!("*nat\n-F {}\n-F PREROUTING\nCOMMIT\n", plan::CHAIN);
            xtables.restore(&broken).await.unwrap();
            redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(sorted(ours(Family::V4).await), sorted(step));

            // A change at that time also causes everything to be repaired.
            xtables.restore(&broken).await.unwrap();
            desired.remove(&https);
            redirect.sync_both(&desired, Some(&[https])).await.unwrap();
            let good = ours(Family::V4).await;
            assert!(!good.contains("--dport 443") && good.contains("--dport 30080"));
            assert!(good.contains("-A PREROUTING -m comment"), "{good}");

            let foreign = "*nat\n-A POSTROUTING -s 192.0.2.0/24 -j RETURN\nCOMMIT\n";
            xtables.restore(foreign).await.unwrap();
            Redirect::cleanup(&BOTH, &Preserved::nothing())
                .await
                .unwrap();
            Redirect::cleanup(&BOTH, &Preserved::nothing())
                .await
                .unwrap();
            assert_eq!(ours(Family::V4).await + &ours(Family::V6).await, "");
            let left = xtables.saved("nat").await.unwrap();
            assert!(left.contains("-A POSTROUTING -s 192.0.2.0/24"), "{left}");
        });
    });
}

/// With every available engine: the kernel accepts trees of chains, and lists them as they were
/// written; another process finds nothing to write.
#[test]
fn many_frontends_have_trees_of_chains() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            for family in BOTH {
                for writer in Xtables::engines(family).await.writers() {
                    many_in(writer.clone()).await;
                }
            }
        });
    });
}

async fn many_in(writer: Writer) {
    let family = writer.family();
    let mut redirect = Redirect::with(writer, Features::all());
    let full = Scope {
        extent: Extent::Full,
        changed: Vec::new(),
        has_predecessor: false,
    };
    let mut desired: Desired = (0..300_u16).map(|number| many(family, number)).collect();
    let (served, report) = (Served::All, &mut Report::default());
    redirect
        .sync(&desired, &full, &served, report)
        .await
        .unwrap();
    for steps in [1, 7, 20] {
        let mut changed: Vec<_> = (0..300)
            .step_by(9)
            .take(steps)
            .map(|n| many(family, n).0)
            .collect();
        desired.retain(|frontend, _| !changed.contains(frontend));
        for number in 1000..1000 + steps as u16 {
            let (frontend, target) = many(family, number);
            desired.insert(frontend, target);
            changed.push(frontend);
        }
        let scope = Scope {
            extent: Extent::Changed,
            changed,
            has_predecessor: false,
        };
        redirect
            .sync(&desired, &scope, &served, report)
            .await
            .unwrap();
        let differences = redirect.differences(&desired, &served).await.unwrap();
        assert_eq!(differences, vec![]);
        let environment = redirect.environment(&own_addresses().unwrap(), &desired, &served);
        let tables = environment.tables();
        let applied = Applied::of(&desired, environment, report);
        let nothing = |_: Table, _: &str| {};
        let observed = redirect
            .writer
            .observe(plan::interest, tables, nothing)
            .await
            .unwrap();
        let again = exact_difference(&observed, applied.rule_set(), family);
        assert!(again.is_empty(), "{again}");
    }
    let nothing_failed = Report {
        is_of_all: true,
        ..Report::default()
    };
    assert_eq!(*report, nothing_failed);
    Redirect::cleanup(&[family], &Preserved::nothing())
        .await
        .unwrap();
    assert!(!Redirect::is_there(&Preserved::nothing()).await.unwrap());
}

/// One of many frontends: service addresses, dense and sparse, and node ports.
fn many(family: Family, number: u16) -> (Frontend, Target) {
    let [high, low] = number.wrapping_mul(7919).to_be_bytes();
    let address = match (family, number % 3) {
        (Family::V4, 0) => format!("10.96.{high}.{low}"),
        (Family::V4, _) => format!("10.112.0.{}", number % 128),
        (Family::V6, 0) => format!("fd96::{high:x}:{low:x}"),
        (Family::V6, _) => format!("fd97::{:x}", number % 128),
    };
    let address = (!number.is_multiple_of(5)).then_some(&*address);
    (
        frontend(family, address, 20_000 + number),
        Target::at(40_000 + number),
    )
}

#[test]
fn udp_flows_that_lead_elsewhere_are_forgotten_when_rules_change() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let udp_frontend = |address, port| Frontend {
                protocol: net::Protocol::Udp,
                ..frontend(Family::V4, address, port)
            };
            let dns = udp_frontend(Some("10.96.0.10"), 53);
            let node = udp_frontend(None, 30_053);
            let other = udp_frontend(Some("10.96.0.11"), 53);
            let mut netfilter = Socket::open(Protocol::Netfilter).unwrap();
            let socket = &mut netfilter;
            let good = "10.96.0.10:53 192.0.2.1:40000";
            let strange = "10.96.0.99:53 10.1.0.9:53";
            let enter = |socket: &mut Socket| {
                for (client, called, served) in [
                    ("10.0.0.1:1001", "10.96.0.10:53", "192.0.2.1:40000"),
                    ("10.0.0.1:1002", "10.96.0.10:53", "192.0.2.1:39999"),
                    ("10.0.0.1:1003", "10.96.0.10:53", "10.96.0.10:53"),
                    ("10.0.0.1:1004", "192.0.2.1:30053", "192.0.2.1:30053"),
                    ("10.0.0.1:1005", "10.96.0.99:53", "10.1.0.9:53"),
                ] {
                    enter_udp(socket, client, called, served);
                }
            };
            let mut redirect = Capture::of_both(Method::Redirect);
            let mut desired =
                Desired::from([(dns, Target::at(40_000)), (node, Target::at(40_001))]);
            enter(socket);
            let report = redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(report, Report::default());
            assert_eq!(udp(socket, Family::V4), [good, strange]);

            // Nothing changed, so no flows are read.
            let stray = ("10.0.0.1:1002", "10.96.0.10:53", "192.0.2.1:39999");
            enter_udp(socket, stray.0, stray.1, stray.2);
            redirect.sync_both(&desired, None).await.unwrap();
            desired.insert(other, Target::at(40_002));
            redirect
                .sync_both(&desired, Some(&[other, node]))
                .await
                .unwrap();
            assert_eq!(udp(socket, Family::V4).len(), 3);

            // Another listener, in an incremental sync; then its removal, in a full sync.
            desired.insert(dns, Target::at(39_999));
            redirect.sync_both(&desired, Some(&[dns])).await.unwrap();
            let led = "10.96.0.10:53 192.0.2.1:39999";
            assert_eq!(udp(socket, Family::V4), [led, strange]);
            desired.remove(&dns);
            redirect.sync_both(&desired, None).await.unwrap();
            assert_eq!(udp(socket, Family::V4), [strange]);
        });
    });
}

/// Returns false if a change of rules by another process is noticed.
async fn is_unmodified(capture: &mut Capture) -> bool {
    let modified = capture.externally_modified();
    tokio::time::timeout(NOTICED, modified).await.is_err()
}

/// Clients may not have been redirected while rules were missing, even if a change of ours restored
/// the rules before that was noticed.
#[test]
fn flows_are_forgotten_of_rules_that_a_change_restores() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            for writer in Xtables::engines(Family::V4).await.writers() {
                restored_in(writer.clone()).await;
            }
        });
    });
}

async fn restored_in(writer: Writer) {
    let (many, dns) = many_and_one();
    let mut desired = Desired::from([(dns, Target::at(40_002))]);
    let mut redirect = Redirect::with(writer.clone(), Features::all());
    let mut netfilter = Socket::open(Protocol::Netfilter).unwrap();
    let (socket, served) = (&mut netfilter, Served::All);
    let mut report = Report::default();
    for (step, extent) in [Extent::Full, Extent::Changed, Extent::Changed, Extent::Full]
        .into_iter()
        .enumerate()
    {
        // A full sync finds nothing to write.
        if extent == Extent::Changed {
            desired.insert(many[step], Target::at(40_003));
        }
        let scope = Scope {
            extent,
            changed: vec![many[step]],
            has_predecessor: false,
        };
        let before = redirect.before();
        let synced = redirect.sync(&desired, &scope, &served, &mut report);
        synced.await.unwrap();
        if step == 1 {
            // Another process changes rules before that sync has ended.
            let flushed = format!("*nat\n-F {}\nCOMMIT\n", plan::CHAIN);
            writer.xtables.restore(&flushed).await.unwrap();
            enter_udp(socket, "10.0.0.1:1007", "10.96.0.11:53", "10.96.0.11:53");
        }
        let made = redirect.transactions();
        redirect.after(before, made);
    }
    assert_eq!(udp(socket, Family::V4), [""; 0], "{:?}", writer.engine);
    let nothing = Preserved::nothing();
    Redirect::cleanup(&[Family::V4], &nothing).await.unwrap();
}

/// Number of chains of others that jump to each other, and then to ours: the kernel accepts no more
/// levels below (`NFT_JUMP_STACK_SIZE` of `net/netfilter/nf_tables.h`).
const DEEP: u32 = 14;

#[test]
fn what_could_not_be_written_is_made_good_and_its_flows_with_it() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let (many, dns) = many_and_one();
            let mut desired = Desired::from([(dns, Target::at(40_002))]);
            let mut redirect = Capture::of_both(Method::Redirect);
            redirect.sync_both(&desired, None).await.unwrap();

            let xtables = Xtables::chosen(&Search::new(Family::V4)).await.unwrap().0;
            let name = |number| match number {
                DEEP => plan::CHAIN.to_owned(),
                _ => format!("THEIRS-{number}"),
            };
            let each = |line: &dyn Fn(u32) -> String| (0..DEEP).map(line).collect::<String>();
            let declared = each(&|number| format!(":{} - [0:0]\n", name(number)));
            let leads = each(&|number| format!("-A {} -j {}\n", name(number), name(number + 1)));
            let deleted = each(&|number| format!("-X {}\n", name(number)));
            let first = "OUTPUT -s 192.0.2.9/32 -j THEIRS-0";
            let others = format!("*nat\n{declared}{leads}-A {first}\nCOMMIT\n");
            xtables.restore(&others).await.unwrap();

            let mut netfilter = Socket::open(Protocol::Netfilter).unwrap();
            let socket = &mut netfilter;
            enter_udp(socket, "10.0.0.1:1006", "10.96.0.11:53", "192.0.2.1:40002");
            desired.extend(many.iter().map(|f| (*f, Target::at(40_003))));
            desired.remove(&dns);
            let web = frontend(Family::V4, Some("10.96.1.2"), 80);
            desired.insert(web, Target::at(40_003));
            let changed: Vec<_> = many.into_iter().chain([dns, web]).collect();
            let synced = redirect.sync_both(&desired, Some(&changed)).await;
            synced.unwrap_err();
            assert_eq!(udp(socket, Family::V4).len(), 1);
            let gone = format!("*nat\n{declared}-D {first}\n{deleted}COMMIT\n");
            xtables.restore(&gone).await.unwrap();
            redirect.sync_both(&desired, Some(&[])).await.unwrap();
            assert!(udp(socket, Family::V4).is_empty());
            assert!(!ours(Family::V4).await.contains("10.96.0.11"));
        });
    });
}

/// As many frontends as one chain holds, and one for UDP.
fn many_and_one() -> (Vec<Frontend>, Frontend) {
    let web = |port| frontend(Family::V4, Some("10.96.1.1"), port);
    let dns = Frontend {
        protocol: net::Protocol::Udp,
        ..frontend(Family::V4, Some("10.96.0.11"), 53)
    };
    ((1..=FEW as u16).map(web).collect(), dns)
}

#[test]
fn a_chain_that_others_lead_to_is_emptied_until_it_can_go() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        block_on(async {
            let (many, dns) = many_and_one();
            let all = many.iter().chain([&dns]);
            let mut desired: Desired = all.map(|f| (*f, Target::at(40_002))).collect();
            let mut redirect = Capture::of_both(Method::Redirect);
            redirect.sync_both(&desired, None).await.unwrap();

            let xtables = Xtables::chosen(&Search::new(Family::V4)).await.unwrap().0;
            let saved = xtables.saved("nat").await.unwrap();
            let declared = saved.lines().filter_map(|line| line.strip_prefix(':'));
            let mut names = declared.filter_map(|line| line.split(' ').next());
            let part = names.find(|name| plan::is_ours(name) && *name != plan::CHAIN);
            let part = part.unwrap();
            let others = |lines: &str| format!("*nat\n:THEIRS - [0:0]\n{lines}\nCOMMIT\n");
            let leads = format!("-A THEIRS -g {part}");
            xtables.restore(&others(&leads)).await.unwrap();

            desired.retain(|frontend, _| *frontend == many[0]);
            let changed: Vec<_> = many[1..].iter().chain([&dns]).copied().collect();
            let synced = redirect.sync_both(&desired, Some(&changed)).await;
            assert_eq!(synced.unwrap().messages.len(), 1);
            let left = ours(Family::V4).await;
            assert!(
                left.contains("--dport 1 ") && !left.contains("--dport 2 "),
                "{left}"
            );
            let saved = xtables.saved("nat").await.unwrap();
            assert!(saved.contains(&leads) && !saved.contains(&format!("-A {part}")));
            // The remaining rule is not a change by another process.
            for _ in 0..2 {
                redirect.sync_both(&desired, None).await.unwrap();
                assert!(is_unmodified(&mut redirect).await);
            }
            xtables.restore(&others("-X THEIRS")).await.unwrap();
            redirect.sync_both(&desired, None).await.unwrap();
            assert!(!xtables.saved("nat").await.unwrap().contains(part));
        });
    });
}
