#!/bin/sh
# First process of a guest. The root is the host's, by hostfs or virtiofs: nothing of it but
# the job's folder may be written to. From the kernel's command line:
# TRIPOD_GUEST_JOB, TRIPOD_GUEST_PROFILE, TRIPOD_GUEST_MODULES, TRIPOD_GUEST_WITHHELD.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
# An ordinary user's guest sees the host's root as nobody, and mount(8) would
# become nobody by its set-user-ID bit: leave such bits without effect.
[ "${1-}" = plain ] || exec setpriv --no-new-privs "$0" plain
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Our own things; the job's folder, too, because it is in the host's /run, which
# is about to be hidden. Not in /run: tests put a fresh one over that.
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/job /mnt/tmp /mnt/bin /mnt/modules/lib/modules
mount --bind "$TRIPOD_GUEST_JOB" /mnt/job
mount -t tmpfs tmpfs /run
export TMPDIR=/mnt/tmp HOME=/mnt/tmp

# The guest's modules, in a place of their own: /lib/modules is the host's.
ln -s "$TRIPOD_GUEST_MODULES" "/mnt/modules/lib/modules/${TRIPOD_GUEST_MODULES##*/}"
[ -d /lib/modules ] && mount -t tmpfs tmpfs /lib/modules
load() {
    for module in "$@"; do
        modprobe -d /mnt/modules "$module"
    done
}

# For programs that call modprobe, and for the kernel, which does, too. Names of modules, with
# commas between them, cannot be loaded.
offer_modules() {
    mkdir -p /mnt/withheld
    for module in $(echo "$1" | tr , ' '); do
        echo "install $module /bin/false"
    done >/mnt/withheld/modules.conf
    printf '#!/bin/sh\nexec /sbin/modprobe -d /mnt/modules -C /mnt/withheld "$@"\n' >/mnt/bin/modprobe
    chmod +x /mnt/bin/modprobe
    echo /mnt/bin/modprobe >/proc/sys/kernel/modprobe
    PATH=/mnt/bin:$PATH
}

load ipv6 veth bridge
case $TRIPOD_GUEST_PROFILE in
full)
    # nf_tables knows no IPv4 in this kernel: only the legacy iptables work.
    for name in iptables ip6tables; do
        for tool in "$name" "$name-save" "$name-restore"; do
            ln -s /usr/sbin/xtables-legacy-multi "/mnt/bin/$tool"
        done
    done
    offer_modules ''
    load dummy ip_vs ip_tables ip6_tables iptable_nat ip6table_nat
    # 8,192 by default with so little memory; a closed connection counts for two
    # minutes. Only the first namespace may say.
    echo 262144 >/proc/sys/net/netfilter/nf_conntrack_max
    ;;
debian)
    offer_modules "$TRIPOD_GUEST_WITHHELD"
    load nf_conntrack
    echo 262144 >/proc/sys/net/netfilter/nf_conntrack_max
    ;;
bare)
    rm -r /mnt/modules
    echo /bin/false >/proc/sys/kernel/modprobe
    ;;
esac

ip link set lo up
/mnt/job/work </dev/null 2>&1
echo $? >/mnt/job/status
sync
echo o >/proc/sysrq-trigger
# Powering off takes a moment, and init must not end before.
sleep 60
