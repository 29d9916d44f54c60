#!/usr/bin/env bash
# The README on a fresh machine: a minimal Debian with a C compiler and this machine's Rust toolchain, and nothing
# else; a /dev/shm of 64 MB, as containers have. Clones the committed repository into it and runs both commands.
#
#   tests/fresh_machine.sh FOLDER        (root; needs debootstrap; FOLDER is made, and kept for the next time)
set -euo pipefail
folder=${1:?usage: tests/fresh_machine.sh FOLDER}
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

[ -e "$folder/usr/bin/gcc" ] ||
    debootstrap --variant=minbase --include=gcc,libc6-dev,ca-certificates,git bookworm "$folder"

finish() {
    umount -q "$folder/dev/shm" "$folder/dev" "$folder/proc" "$folder/opt/rustup" || true
}
finish 2>/dev/null
trap finish EXIT
mkdir -p "$folder/opt/rustup" "$folder/root/.cargo/bin"
mount --bind "${RUSTUP_HOME:-$HOME/.rustup}" "$folder/opt/rustup"
mount -t proc proc "$folder/proc"
mount -t tmpfs -o mode=755 tmpfs "$folder/dev"
mkdir "$folder/dev/shm"
mount -t tmpfs -o size=64m tmpfs "$folder/dev/shm"
for device in null zero full random urandom tty; do
    mknod "$folder/dev/$device" c $((0x$(stat -c %t "/dev/$device"))) $((0x$(stat -c %T "/dev/$device")))
    chmod 666 "$folder/dev/$device"
done
ln -s /proc/self/fd "$folder/dev/fd"
cp -L "${CARGO_HOME:-$HOME/.cargo}"/bin/{cargo,rustc,rustup,rustdoc,rustfmt,cargo-fmt,cargo-clippy,clippy-driver} \
    "$folder/root/.cargo/bin/"
cp -L /etc/resolv.conf "$folder/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
rm -rf "$folder/root/rdmaccl"
git clone --quiet "$repository" "$folder/root/rdmaccl"

inside() {
    chroot "$folder" /usr/bin/env -i HOME=/root RUSTUP_HOME=/opt/rustup PATH=/root/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c "cd /root/rdmaccl && $1"
}
inside "cargo run --release --bin all_reduce_perf -- -b 8 -e 128M -f 4"
inside "cargo xtask test --no-skip"
