#!/bin/sh
# First process of a guest. The root is the host's, by hostfs: nothing but the
# job's folder may be written to. From the kernel's command line:
# TRIPOD_GUEST_JOB, TRIPOD_GUEST_PROFILE, TRIPOD_GUEST_MODULES.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/tmp /run/bin
export TMPDIR=/run/tmp HOME=/run/tmp

# Hide the host's modules; show the guest's only where they are wanted.
[ -d /lib/modules ] && mount -t tmpfs tmpfs /lib/modules

case $TRIPOD_GUEST_PROFILE in
full)
    # nf_tables knows no IPv4 in this kernel: only the legacy iptables work.
    for name in iptables ip6tables; do
        for tool in "$name" "$name-save" "$name-restore"; do
            ln -s /usr/sbin/xtables-legacy-multi "/run/bin/$tool"
        done
    done
    PATH=/run/bin:$PATH
    # modprobe, also when the kernel itself calls it, looks here.
    ln -s "$TRIPOD_GUEST_MODULES" "/lib/modules/${TRIPOD_GUEST_MODULES##*/}"
    for module in ipv6 veth bridge dummy ip_vs ip_tables ip6_tables iptable_nat ip6table_nat; do
        modprobe "$module"
    done
    ;;
bare)
    # Straight from their files, in the order in which they need each other.
    for module in ipv6 veth llc stp bridge; do
        file=$(find "$TRIPOD_GUEST_MODULES" -name "$module.ko*" | head -n 1)
        [ -z "$file" ] || insmod "$file"
    done
    ;;
esac

ip link set lo up
"$TRIPOD_GUEST_JOB/work" </dev/null 2>&1
echo $? >"$TRIPOD_GUEST_JOB/status"
sync
echo o >/proc/sysrq-trigger
# Powering off takes a moment, and init must not end before.
sleep 60
