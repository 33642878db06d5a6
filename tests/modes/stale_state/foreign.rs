//! Objects of other programs, mixed with ours where that is possible.

use super::super::probe::kernel;
use super::{engines, feed, restore};
use crate::lab::Host;

/// Virtual servers in this network belong to another program, whatever their port.
pub const EXCLUDED: &str = "--ipvs-exclude-cidrs=198.18.9.0/24";

/// The kubelet's rules, in its own engine: its marks, its KUBE-FIREWALL, and those of old
/// versions.
const KUBELET: &str = "\
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
";

/// The rule of KUBE-FIREWALL that both kubelet and kube-proxy write.
const MARTIANS: &str = "\
*filter
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet \
connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
";

/// Network policies, host ports and an administrator's rules, in every engine. Host ports
/// are masqueraded through kube-proxy's chain (`externalSetMarkChain` of the CNI plug-in
/// portmap), which stays for them.
const OTHERS: &str = "\
*mangle
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING
-A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-HOSTPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -o eth9 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"not -j KUBE-SERVICES\" -j CNI-HOSTPORT-SETMARK
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
COMMIT
*filter
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-POD-FW-ABCDEFGH - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:cali-FORWARD - [0:0]
-A INPUT -m comment --comment \"kube-router netpol - 4IA2OSFRMVNDXBVV\" -j KUBE-ROUTER-INPUT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -p tcp -j ACCEPT
-A KUBE-POD-FW-ABCDEFGH -j KUBE-NWPLCY-DEFAULT
-A KUBE-ROUTER-INPUT -p udp -j KUBE-POD-FW-ABCDEFGH
COMMIT
";

/// A set that a rule uses, and one that no rule uses.
const SETS: &str = "\
create KUBE-ROUTER-PODS hash:ip family inet hashsize 1024 maxelem 65536
add KUBE-ROUTER-PODS 10.1.2.3
create cali40all-pools hash:net family inet hashsize 1024 maxelem 65536
add cali40all-pools 10.244.0.0/16
";

const WITH_SET: &str = "\
*filter
-A KUBE-ROUTER-INPUT -m set --match-set KUBE-ROUTER-PODS src -j RETURN
COMMIT
";

/// A virtual server at an address of the node itself, one for a firewall mark, and one at
/// a port that is also a Service's node port, whose owner --ipvs-exclude-cidrs shows.
const SERVERS: &str = "\
-A -t 198.18.7.7:443 -s rr
-a -t 198.18.7.7:443 -r 10.1.2.3:443 -m -w 1
-A -f 77 -s rr
-a -f 77 -r 10.1.2.3:0 -m -w 1
-A -t 198.18.9.9:30080 -s rr
-a -t 198.18.9.9:30080 -r 10.1.2.3:443 -m -w 1
";

/// Adds other programs' objects to the node, with the kubelet's in the engine `kubelet`.
pub fn foreign(node: &Host, kubelet: &str) {
    for engine in engines() {
        for of in ["iptables", "ip6tables"] {
            restore(node, engine, of, OTHERS);
        }
    }
    for of in ["iptables", "ip6tables"] {
        restore(node, kubelet, of, KUBELET);
    }
    restore(node, kubelet, "iptables", MARTIANS);
    feed(node, "ipset restore", SETS);
    for engine in engines() {
        restore(node, engine, "iptables", WITH_SET);
    }
    node.ip(&[
        // The node's own addresses, see tests/vectors/node.yaml.
        "addr add 192.168.77.2/24 dev lo",
        "addr add fd00:192:168:77::2/64 dev lo nodad",
        "addr add 198.18.7.7/32 dev lo",
        "rule add from 198.18.7.7 lookup 100 priority 500",
        "route add local 198.18.8.8/32 dev lo table 100",
        "link add nodelocaldns type bridge",
        "addr add 169.254.20.10/32 dev nodelocaldns",
    ]);
    if kernel() == "full" {
        feed(node, "ipvsadm -R", SERVERS);
    } else {
        // Tables of the other families, or with another name.
        for table in ["inet kube-proxy", "ip kube-proxy-canary", "ip6 calico"] {
            node.show(&format!("nft add table {table}"));
        }
    }
}
