#!/bin/sh
# Sourced by dracut before the root is switched.
. /usr/share/node-agent/end
end_initramfs "$NEWROOT"
