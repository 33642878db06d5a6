//! What it costs to follow a large cluster, in a process of its own:
//! `cargo test --release --test suite footprint -- --ignored --nocapture`.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::json;
use tripod::{
    services::{ServiceName, Tracker},
    watch::api::{self, Access, Connection, Settings},
};

use super::{
    credentials::Site,
    objects::{service, slice},
    recorder::NODE,
    tls::Authority,
};

const KUBECONFIG: &str = "TRIPOD_FOOTPRINT_KUBECONFIG";
const EVENTS: u32 = 20_000;

#[tokio::test]
#[ignore = "a measurement"]
async fn of_large_clusters() {
    for (services, endpoints) in [(5_000u32, 5u8), (20_000, 10)] {
        for streaming in [true, false] {
            let name = format!("footprint-{services}-{streaming}");
            let site = Site::open(&name, &Authority::new(), false).await;
            site.server.script().streaming = streaming;
            site.server.change(|cluster| {
                for i in 0..services {
                    let name = format!("service-{i:05}");
                    let mut object = service(&name, 0);
                    let ip = format!("10.96.{}.{}", i / 250, i % 250 + 1);
                    object["spec"]["clusterIP"] = json!(ip);
                    object["spec"]["clusterIPs"] = json!([ip]);
                    cluster.put(object);
                    let mut of = slice(&format!("{name}-abcde"), &name, &vec![1; endpoints.into()]);
                    for e in 0..endpoints {
                        let ip = format!("10.{}.{}.{}", 1 + e, i / 250, i % 250 + 1);
                        of["endpoints"][usize::from(e)]["addresses"] = json!([ip]);
                        of["endpoints"][usize::from(e)]["nodeName"] =
                            json!(format!("node-{}", i % 500));
                    }
                    cluster.put(of);
                }
            });
            println!("{services} Services of {endpoints} endpoints, streaming {streaming}:");
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "api::footprint::of_one_client",
                    "--ignored",
                    "--nocapture",
                ])
                .env(KUBECONFIG, site.connection().kubeconfig.unwrap())
                .spawn()
                .unwrap();
            while site.server.script().calls.len() < 3 || child.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if fs::exists(
                    site.connection()
                        .kubeconfig
                        .unwrap()
                        .with_extension("ready"),
                )
                .unwrap()
                {
                    break;
                }
            }
            site.server.change(|cluster| {
                for i in 0..EVENTS {
                    let number = i % 1000;
                    let name = format!("service-{number:05}");
                    let last = u8::try_from(i / 1000 + 1).unwrap();
                    cluster.put(slice(
                        &format!("{name}-abcde"),
                        &name,
                        &[last, 100, 101, 102, 103],
                    ));
                }
                cluster.put(slice("last", "service-00000", &[104]));
            });
            let ended = tokio::task::spawn_blocking(move || child.wait())
                .await
                .unwrap();
            assert!(ended.unwrap().success());
        }
    }
}

#[tokio::test]
#[ignore = "the other half of `of_large_clusters`"]
async fn of_one_client() {
    let Some(kubeconfig) = std::env::var_os(KUBECONFIG) else {
        return;
    };
    let ready = std::path::PathBuf::from(&kubeconfig).with_extension("ready");
    let connection = Connection {
        kubeconfig: Some(kubeconfig.into()),
        ..Connection::default()
    };
    let memory = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let lines = status
            .lines()
            .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
        lines.collect::<Vec<_>>().join(", ")
    };
    let processor = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    };
    println!("  before: {}", memory());
    let begun = Instant::now();
    let access = Access::open(connection).await.unwrap();
    let mut batches = api::spawn(access, Settings::for_node(NODE));
    let mut tracker = Tracker::new(NODE);
    tracker.apply(batches.recv().await.unwrap().events);
    println!(
        "  first sync: {:.2?}, {:.2} s of processor time, {} ServicePorts, {}",
        begun.elapsed(),
        processor(),
        tracker.map().len(),
        memory()
    );
    let (begun, used) = (Instant::now(), processor());
    fs::write(ready, "").unwrap();
    let first = ServiceName {
        namespace: "shop".into(),
        name: "service-00000".into(),
    };
    while tracker.slices(&first).count() < 2 {
        tracker.apply(batches.recv().await.unwrap().events);
    }
    println!(
        "  {EVENTS} events: {:.2?}, {:.2} s of processor time, {}",
        begun.elapsed(),
        processor() - used,
        memory()
    );
}
