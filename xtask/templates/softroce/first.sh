#!/busybox sh
# The guest's first program. Makes the host's files the root: read-only below, in memory what is written, so that
# every program of the host runs as it is and none can change anything. The kernel's console shows what goes wrong.
/busybox mkdir -p /bin /proc /sys /dev /lower /upper /root
/busybox --install -s /bin
export PATH=/bin
set -e
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module"
done </modules.list
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /lower
mount -t tmpfs -o mode=755 upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /root
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts /root/lib/modules
mount -t tmpfs shm /root/dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs -o mode=755 run /root/run
# The kernel asks modprobe for what it lacks, and modprobe looks here.
ln -sfn "$(cat /modules.folder)" "/root/lib/modules/$(uname -r)"
cp /second.sh /command.sh /root/run
exec switch_root /root /bin/sh /run/second.sh
