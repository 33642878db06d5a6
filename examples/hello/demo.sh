#!/bin/sh
# Tripod at work, on this machine, in a playground of its own: network
# namespaces for a node, a client pod and three backends. Needs no root where
# ordinary users may have namespaces. Everything runs inside one PID namespace:
# when this script ends, however it ends, nothing of it is left.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}/debug
tripod=${TRIPOD:-$target/tripod}
whoami=${WHOAMI:-$target/examples/whoami}

if [ "${1-}" != inside ]; then
    for tool in ip unshare sysctl; do
        command -v "$tool" >/dev/null || {
            echo "demo: no $tool(8): apt-get install iproute2 util-linux procps" >&2
            exit 1
        }
    done
    [ "$(id -u)" = 0 ] && user= || user=-Ur
    # shellcheck disable=SC2086 # no flag at all for root
    unshare $user -nm true 2>/dev/null || {
        echo "demo: ordinary users may not make namespaces here: run it as root, or allow it with" >&2
        echo "      sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0" >&2
        exit 1
    }
    # shellcheck disable=SC2086
    exec setpriv --pdeathsig KILL -- unshare $user -nmp --fork --kill-child -- "$0" inside
fi

[ -t 1 ] && bold=$(printf '\033[1m') plain=$(printf '\033[0m') || bold='' plain=''
say() { printf '\n%s\n' "$bold$*$plain"; }
fail() {
    printf '\ndemo: %s\n' "$*" >&2
    for log in /run/*.log; do
        [ ! -s "$log" ] || { echo "$log:" >&2 && cat "$log" >&2; }
    done
    exit 1
}
trap 'exit 130' INT TERM

mount -t tmpfs playground /run # ip and iptables keep their things here

# --- the playground -----------------------------------------------------------
in_node() { ip netns exec node "$@"; }
ip netns add node
ip -n node link set lo up
ip -n node link add cni0 type bridge
ip -n node link set cni0 up
ip -n node addr add 10.244.0.1/24 dev cni0
ip -n node route add default via 10.244.0.254 # service addresses must lead somewhere
in_node sysctl -qw net.ipv4.ip_forward=1

pod() { # name address
    ip netns add "$1"
    ip -n node link add "to-$1" type veth peer name eth0 netns "$1"
    ip -n node link set "to-$1" master cni0 up
    ip -n "$1" link set lo up
    ip -n "$1" link set eth0 up
    ip -n "$1" addr add "$2/24" dev eth0
    ip -n "$1" route add default via 10.244.0.1
}
backend() { # name address
    pod "$1" "$2"
    ip netns exec "$1" "$whoami" serve "$1" "$2:8080" &
}
call() { ip netns exec client "$whoami" call 10.96.0.10:80; }
# Waits for a command to succeed, twenty seconds at most.
until_true() {
    deadline=$(($(date +%s) + 20))
    until "$@" >/dev/null 2>&1; do
        [ -z "${tripod_pid-}" ] || kill -0 "$tripod_pid" 2>/dev/null || fail "Tripod ended"
        [ "$(date +%s)" -lt "$deadline" ] || fail "this never came true: $*"
        sleep 0.05
    done
}
# Calls the Service that many times, and keeps the answers in a file.
calls() { # number file
    for _ in $(seq "$1"); do call >>"$2" || echo failed >>"$2"; done
}
# Prints who answered in a file. No call may have failed.
answers() { # file
    tally "$1"
    failed=$(grep -c '^failed$' "$1") || true
    echo "    $failed calls failed"
    [ "$failed" = 0 ] || fail "clients noticed"
}
tally() { grep -v '^failed$' "$1" | sort | uniq -c | awk '{printf "    %-6s answered %3d times\n", $2, $1}'; }

pod client 10.244.0.9
backend alice 10.244.0.11
backend bob 10.244.0.12
victim=$!
backend carol 10.244.0.13
for address in 10.244.0.11 10.244.0.12 10.244.0.13; do
    until_true in_node "$whoami" call $address:8080
done
say "A playground: a node, a client pod, and three backends that tell their name"
echo "    client 10.244.0.9, alice 10.244.0.11, bob 10.244.0.12, carol 10.244.0.13"

# --- Tripod -------------------------------------------------------------------
mkdir /run/manifests
cp "$here/hello.yaml" /run/manifests/
start() { # mode
    echo "    tripod --proxy-mode=$1 --manifests examples/hello --hostname-override node"
    # Standard output is the demo's own.
    ip netns exec node "$tripod" --proxy-mode="$1" --manifests /run/manifests \
        --hostname-override node >"/run/$1.log" 2>&1 &
    tripod_pid=$!
}
serves() { grep -q "serving .* in $1 mode" "/run/$1.log"; }

say "Tripod reads a folder: Service hello, 10.96.0.10 port 80. It serves it in nftables mode"
if in_node "$tripod" probe >/run/probe 2>&1 && grep -q '^nftables *can run' /run/probe; then
    start nftables
    until_true serves nftables
    say "The client pod calls 10.96.0.10, which no interface has: the kernel chooses a backend"
    calls 60 /run/first
    answers /run/first
    [ "$(sort -u /run/first | wc -l)" = 3 ] || fail "not all three backends answered"

    say "Another Tripod takes over, in userspace mode, while the client continues to call"
    old=$tripod_pid
    calls 200 /run/change &
    calling=$!
    start userspace
    until_true serves userspace
    # As the kubelet ends the old pod.
    kill -TERM "$old"
    wait "$old" || fail "Tripod ended badly"
    wait $calling
    answers /run/change
else
    echo "    This kernel cannot run nftables mode, as tripod probe says; userspace mode runs anywhere:"
    start userspace
    until_true serves userspace
fi

say "Userspace mode relays calls and tries again elsewhere: bob is killed (kill -9) after 40 of 120"
calls 40 /run/calls
kill -9 "$victim"
calls 80 /run/calls
answers /run/calls
tail -n 80 /run/calls | grep -q bob && fail "bob answered after his death"

say "An edit of the manifest: carol leaves the Service, at once"
grep -v carol /run/manifests/hello.yaml >/run/hello.new
mv /run/hello.new /run/manifests/hello.yaml
# shellcheck disable=SC2329 # called through until_true
only_alice() {
    for _ in 1 2 3 4 5 6; do [ "$(call)" = alice ] || return 1; done
}
until_true only_alice
calls 20 /run/edited
answers /run/edited
[ "$(sort -u /run/edited)" = alice ] || fail "another backend answered"

# --- the end ------------------------------------------------------------------
say "Tripod ends. As kube-proxy does, it leaves its rules in the kernel; tripod cleanup removes them"
# As Ctrl-C would: after SIGTERM it would wait for the next process to take over.
kill -INT $tripod_pid
wait $tripod_pid || fail "Tripod ended badly"
in_node "$tripod" cleanup >/run/cleanup.log 2>&1 || fail "cleanup failed"
! call >/dev/null 2>&1 || fail "10.96.0.10 still answers"
echo "    10.96.0.10 answers no more; the playground is gone with this script."
