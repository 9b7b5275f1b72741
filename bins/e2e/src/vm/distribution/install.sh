#!/bin/sh
# Process 1 of the machine that installs: copies this system to the encrypted second disk and makes it boot, as the
# distribution's installer does.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
trap 'echo "INSTALL: failed"; sync; poweroff -f' EXIT
set -eu
/lib/systemd/systemd-udevd --daemon
udevadm trigger
udevadm settle
modprobe -a dm-crypt vfat nls_cp437 nls_ascii
disk=/dev/vdb root=/dev/mapper/root_crypt
cryptsetup open --key-file /passphrase "${disk}3" root_crypt
mkfs.ext4 -q -O ^has_journal -U 22222222-2222-4333-8444-555555555555 "$root"
mount "$root" /mnt
mkfs.ext4 -q -U 33333333-2222-4333-8444-555555555555 "${disk}2"
mkfs.vfat -i ABCD1234 "${disk}1" > /dev/null
mkdir -p /mnt/boot
mount "${disk}2" /mnt/boot
mkdir -p /mnt/boot/efi
mount "${disk}1" /mnt/boot/efi
# A kernel may be a hard link to a file on another of the new file systems.
tar --hard-dereference --one-file-system --create --directory / --exclude=./mnt --exclude=./install --exclude=./passphrase --exclude=./esp --file - . |
    tar --extract --preserve-permissions --directory /mnt --file -
mkdir -p /mnt/mnt
if [ -d /esp ]; then
    cp -r /esp/. /mnt/boot/efi/
else
    for place in proc sys dev; do mount --rbind "/$place" "/mnt/$place"; done
    mkdir -p /mnt/run/udev
    mount --bind /run /mnt/run
    chroot /mnt grub-install --target=x86_64-efi --efi-directory=/boot/efi --uefi-secure-boot --no-nvram \
        --force-extra-removable
    chroot /mnt update-grub
fi
sync
umount --recursive /mnt || umount --lazy /mnt
cryptsetup close root_crypt || true
sync
trap - EXIT
echo "INSTALL: done"
poweroff -f
