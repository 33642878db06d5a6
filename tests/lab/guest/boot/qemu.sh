#!/bin/sh
# Boots a kernel under QEMU, with this machine's root as its own.
#
#   qemu KERNEL MEMORY SHARED PARAMETER...
#
# KERNEL is a folder with `vmlinuz` and `lib/modules/VERSION`; parameters are the kernel's. What is
# written stays in the working folder, which has the guest's `init`. If KERNEL has a `root`, it is for
# aarch64, and the guest's root is that one, with the folder SHARED of this machine in it.
set -eu
kernel=$1 memory=$2 shared=$3
shift 3
PATH=$PATH:/usr/sbin:/sbin
job=$(pwd)
version=$(ls "$kernel/lib/modules")
if [ -d "$kernel/root" ]; then
    busybox=$kernel/root/usr/bin/busybox
    qemu='qemu-system-aarch64 -machine virt -cpu neoverse-n1' console=ttyAMA0
else
    busybox=$(command -v busybox)
    qemu='qemu-system-x86_64 -cpu max,-erms,-fsrm' console=ttyS0
fi

# The root is mounted by modules, which are in a first root in memory.
mkdir initrd initrd/new initrd/dev
cp "$busybox" initrd
for module in virtio_pci virtiofs; do
    modprobe -d "$kernel" -S "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >modules
{
    echo '#!/busybox sh'
    echo '/busybox mount -t devtmpfs devtmpfs /dev'
    while read -r file; do
        cp "$file" initrd
        echo "/busybox insmod /${file##*/}"
    done <modules
    echo '/busybox mount -t virtiofs root /new'
    if [ -d "$kernel/root" ]; then
        # Nothing is written to the folder itself.
        cat <<INIT
/busybox mkdir -p /root
/busybox mount -t tmpfs -o mode=755 tmpfs /root
cd /root
/busybox cp -a /new$kernel/root/bin /new$kernel/root/lib /new$kernel/root/sbin .
/busybox mkdir -p dev mnt proc run sys tmp usr etc ./$shared ./$job
/busybox chmod 1777 tmp
/busybox mount -t devtmpfs devtmpfs dev
/busybox mount --bind /new$kernel/root/usr usr
/busybox mount --bind /new$kernel/root/etc etc
/busybox mount --bind /new$shared ./$shared
/busybox mount --bind /new$job ./$job
exec /busybox switch_root /root $job/init
INIT
    fi
    echo "exec /busybox switch_root /new $job/init"
} >initrd/init
chmod +x initrd/init
(cd initrd && find . | busybox cpio -o -H newc >../initrd.cpio 2>/dev/null)

/usr/lib/qemu/virtiofsd --socket-path="$job/root.socket" -o source=/ -o sandbox=chroot 2>/dev/null &
while [ ! -S root.socket ]; do sleep 0.1; done
# The guest's clock follows the instructions that it runs, so that a busy machine does not look like a
# fault: nothing takes longer than the guest's timeouts because the emulation is slow. This takes one
# thread for all processors; with several, one may also run code that another is patching (int3).
# String instructions are emulated one octet at a time: kernels avoid them without these flags.
# shellcheck disable=SC2086 # a list of words
exec $qemu -accel tcg,thread=single -icount shift=1 -smp 2 -m "$memory" -nodefaults \
    -no-user-config -display none -serial stdio -no-reboot \
    -object memory-backend-memfd,id=memory,size="$memory",share=on -numa node,memdev=memory \
    -chardev socket,id=root,path=root.socket -device vhost-user-fs-pci,chardev=root,tag=root \
    -kernel "$kernel/vmlinuz" -initrd initrd.cpio \
    -append "console=$console quiet panic=1 TRIPOD_GUEST_MODULES=$kernel/lib/modules/$version $*"
