#!/bin/bash
# Completes a system in a directory as its packages' own programs do, without booting it: creating an initramfs
# on an emulated processor takes ten minutes. Runs in a mount namespace of its own.
#   prepare.sh SYSTEM HEADER INITRAMFS UUID: HEADER is the header of the disk that the system will be on, which the
#   hook of cryptsetup finds by its UUID. INITRAMFS is made for the machine that installs: it opens no disk. UUID is
#   that of the root file system.
set -eu
system=$1 header=$2 initramfs=$3 root=$4
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
uuid=$(cryptsetup luksUUID "$header")
cp -a "$loop" "$system/dev/"
ln -s "../../${loop#/dev/}" "$system/dev/disk/by-uuid/$uuid"
mv "$system/etc/crypttab" "$system/crypttab"
chroot "$system" sh -c 'apt-get install --yes --no-install-recommends --quiet /var/tmp/packages/*.deb'
mv "$system/crypttab" "$system/etc/crypttab"
if [ -x "$system/usr/bin/dracut" ]; then
    kernel=$(ls "$system/lib/modules")
    chroot "$system" dracut --force --no-hostonly --modules \
        'base dracut-systemd fs-lib kernel-modules rootfs-block systemd-initrd udev-rules' /installer.img "$kernel"
    mv "$system/installer.img" "$initramfs"
    chroot "$system" dracut --force --no-hostonly --uefi --kernel-cmdline "root=UUID=$root rd.luks.name=$uuid=root_crypt \
rd.neednet=1 ip=dhcp rw console=tty0 console=ttyS0,115200" /unified.efi "$kernel"
else
    # A trigger of the package made one without the disk.
    cp "$system"/boot/initrd.img-* "$initramfs"
    chroot "$system" update-initramfs -u
fi
