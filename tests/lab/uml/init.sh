#!/bin/sh
# First process of a guest. The root is the host's, by hostfs: nothing of it but
# the job's folder may be written to. From the kernel's command line:
# TRIPOD_GUEST_JOB, TRIPOD_GUEST_PROFILE, TRIPOD_GUEST_MODULES.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
mount -t proc proc /proc
mount -t sysfs sysfs /sys
# The job's folder is in the host's /run, which is about to be hidden.
mount --bind "$TRIPOD_GUEST_JOB" /mnt
mount -t tmpfs tmpfs /run
mkdir -p /run/tmp /run/bin
export TMPDIR=/run/tmp HOME=/run/tmp

# The guest's modules, in a place of their own: /lib/modules is the host's.
mkdir -p /run/modules/lib/modules
ln -s "$TRIPOD_GUEST_MODULES" "/run/modules/lib/modules/${TRIPOD_GUEST_MODULES##*/}"
[ -d /lib/modules ] && mount -t tmpfs tmpfs /lib/modules
load() {
    for module in "$@"; do
        modprobe -d /run/modules "$module"
    done
}

load ipv6 veth bridge
case $TRIPOD_GUEST_PROFILE in
full)
    # nf_tables knows no IPv4 in this kernel: only the legacy iptables work.
    for name in iptables ip6tables; do
        for tool in "$name" "$name-save" "$name-restore"; do
            ln -s /usr/sbin/xtables-legacy-multi "/run/bin/$tool"
        done
    done
    # For programs that call modprobe, and for the kernel, which does, too.
    printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/bin/modprobe
    chmod +x /run/bin/modprobe
    echo /run/bin/modprobe >/proc/sys/kernel/modprobe
    PATH=/run/bin:$PATH
    load dummy ip_vs ip_tables ip6_tables iptable_nat ip6table_nat
    ;;
bare)
    rm -r /run/modules
    echo /bin/false >/proc/sys/kernel/modprobe
    ;;
esac

ip link set lo up
/mnt/work </dev/null 2>&1
echo $? >/mnt/status
sync
echo o >/proc/sysrq-trigger
# Powering off takes a moment, and init must not end before.
sleep 60
