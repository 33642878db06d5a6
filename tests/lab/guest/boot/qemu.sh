#!/bin/sh
# Boots a kernel under QEMU, with this machine's root as its own.
#
#   qemu KERNEL MEMORY PARAMETER...
#
# KERNEL is a folder with `vmlinuz` and `lib/modules/VERSION`; parameters are the kernel's. What is
# written stays in the working folder, which has the guest's `init`.
set -eu
kernel=$1 memory=$2
shift 2
PATH=$PATH:/usr/sbin:/sbin
job=$(pwd)
version=$(ls "$kernel/lib/modules")

# The root is mounted by modules, which are in a first root in memory.
mkdir initrd initrd/new initrd/dev
cp "$(command -v busybox)" initrd
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
exec qemu-system-x86_64 -cpu max,-erms,-fsrm -accel tcg,thread=single -icount shift=1 -smp 2 -m "$memory" -nodefaults \
    -no-user-config -display none -serial stdio -no-reboot \
    -object memory-backend-memfd,id=memory,size="$memory",share=on -numa node,memdev=memory \
    -chardev socket,id=root,path=root.socket -device vhost-user-fs-pci,chardev=root,tag=root \
    -kernel "$kernel/vmlinuz" -initrd initrd.cpio \
    -append "console=ttyS0 quiet panic=1 TRIPOD_GUEST_MODULES=$kernel/lib/modules/$version $*"
