#!/bin/bash
# dracut module of the Clevis pin trustee: the program, the TPM's drivers, the network, and the
# firmware's event log.

check() {
    require_binaries node-agent clevis || return 1
    # In an image for this host only when it is asked for, or when a disk of it is bound.
    [[ $hostonly ]] || return 0
    bound_by_clevis && return 0
    return 255
}

# `clevis luks list` shows the pins that Clevis brings along and no others; a host with node-agent
# is bound to this one.
bound_by_clevis() {
    local device
    for device in $(lsblk --noheadings --raw --paths --output NAME,FSTYPE |
        awk '$2 == "crypto_LUKS" { print $1 }'); do
        cryptsetup luksDump "$device" 2> /dev/null | grep -q ': clevis$' && return 0
    done
    return 1
}

depends() {
    echo clevis network
}

cmdline() {
    printf ' rd.neednet=1'
}

installkernel() {
    hostonly='' instmods '=drivers/char/tpm'
}

# DHCP on every card, unless the command line or an image for this host configures the network: the first file that
# matches counts. Without one, systemd-networkd leaves cards alone; other programs of dracut try DHCP by themselves.
dhcp() {
    printf '[Match]\nType=ether\nKernelCommandLine=!ip\n\n[Network]\nDHCP=yes\n'
}

install() {
    # Not only for this host: whoever includes the pin in an image needs a network.
    mkdir -p "$initdir/etc/cmdline.d" "$initdir/etc/systemd/network"
    cmdline > "$initdir/etc/cmdline.d/60clevis-pin-trustee.conf"
    dhcp > "$initdir/etc/systemd/network/zz-clevis-pin-trustee.network"
    inst_binary node-agent /usr/bin/node-agent
    inst_simple "$moddir/clevis-decrypt-trustee" /usr/bin/clevis-decrypt-trustee
    inst_simple "$moddir/clevis-encrypt-trustee" /usr/bin/clevis-encrypt-trustee
    inst_simple "$moddir/end" /usr/share/node-agent/end || return 1
    inst_hook pre-pivot 00 "$moddir/leave-initramfs.sh"
    # Ignition binds with the whole of Clevis on the first boot.
    inst_multiple -o clevis-encrypt clevis-luks-bind sort tail
    # CAs of the platform, for servers without one of their own; the clock for their certificates.
    inst_multiple -o /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt
}
