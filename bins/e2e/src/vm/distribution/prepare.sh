#!/bin/bash
# Completes a system in a directory as its packages' own programs do, without booting it: creating an initramfs
# on an emulated processor takes ten minutes. Runs in a mount namespace of its own.
#   prepare.sh SYSTEM HEADER INITRAMFS: HEADER is the header of the disk that the system will be on, which the
#   hook of cryptsetup finds by its UUID. INITRAMFS is made for the machine that installs: it opens no disk.
set -eu
system=$1 header=$2 initramfs=$3
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
mount --make-rprivate /
mount --bind "$system" "$system"
mount -t proc proc "$system/proc"
mount -t sysfs sysfs "$system/sys"
mount -t tmpfs tmpfs "$system/dev"
mkdir -p "$system/dev/disk/by-uuid" "$system/dev/mapper"
for node in null zero full random urandom tty; do
    cp -a "/dev/$node" "$system/dev/$node"
done
ln -s /proc/self/fd "$system/dev/fd"
loop=$(losetup --find --show --read-only "$header")
trap 'losetup --detach "$loop"' EXIT
cp -a "$loop" "$system/dev/"
ln -s "../../${loop#/dev/}" "$system/dev/disk/by-uuid/$(cryptsetup luksUUID "$header")"
mv "$system/etc/crypttab" "$system/crypttab"
chroot "$system" update-initramfs -u
cp "$system"/boot/initrd.img-* "$initramfs"
mv "$system/crypttab" "$system/etc/crypttab"
chroot "$system" update-initramfs -u
