#!/bin/bash
# Completes a system in a directory as its packages' own programs do, without booting it: creating an initramfs
# on an emulated processor takes ten minutes. Runs in a mount namespace of its own.
#   prepare.sh SYSTEM HEADER INITRAMFS UPDATE COMMAND_LINE: HEADER is the header of the disk that the system will be on,
#   which the hook of cryptsetup finds by its UUID. INITRAMFS is made for the machine that installs: it opens no disk.
#   UPDATE is what an upgrade makes: the initramfs, or the unified kernel image, with one more module. COMMAND_LINE is
#   that of unified kernel images. Of two kernels, the newer one is in /later, with its initramfs.
set -eu
system=$1 header=$2 initramfs=$3 update=$4 command_line=$5
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
kernel=$(ls "$system/lib/modules" | sort -V | head -n 1)
if [ -x "$system/usr/bin/dracut" ]; then
    # The one that a trigger of the package made is started by nothing.
    rm -f "$system"/boot/initrd.img-*
    chroot "$system" dracut --force --no-hostonly --modules \
        'base dracut-systemd fs-lib kernel-modules rootfs-block systemd-initrd udev-rules' /installer.img "$kernel"
    mv "$system/installer.img" "$initramfs"
    mkdir -p "$system/esp/EFI/BOOT"
    unified=/esp/EFI/BOOT/BOOTX64.EFI
    if [ -x "$system/usr/bin/bootctl" ]; then
        # It must be mounted, and is no FAT file system yet.
        mount --bind "$system/esp" "$system/esp"
        chroot "$system" env SYSTEMD_RELAX_ESP_CHECKS=1 bootctl --esp-path=/esp --no-variables install
        mkdir -p "$system/esp/EFI/Linux"
        unified=/esp/EFI/Linux/debian.efi
    fi
    unify() {
        chroot "$system" dracut --force --no-hostonly --uefi --kernel-cmdline "$command_line" "$@" "$kernel"
    }
    unify "$unified"
    unify --add-drivers zram /update.efi
    mv "$system/update.efi" "$update"
else
    # A trigger of the package made one without the disk.
    cp "$system/boot/initrd.img-$kernel" "$initramfs"
    chroot "$system" update-initramfs -u -k all
    later=$(ls "$system/lib/modules" | sort -V | tail -n 1)
    if [ "$later" != "$kernel" ]; then
        mkdir "$system/later"
        mv "$system"/boot/*-"$later" "$system/later/"
    fi
    echo zram >> "$system/etc/initramfs-tools/modules"
    chroot "$system" mkinitramfs -o /update.img "$kernel"
    mv "$system/update.img" "$update"
fi
