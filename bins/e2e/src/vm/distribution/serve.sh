#!/bin/sh
# Runs what the host sends over the second serial port, a command per line.
stty -F /dev/ttyS1 raw -echo
exec < /dev/ttyS1 > /dev/ttyS1 2>&1
echo ready
while read -r command; do
    sh -c "$command" < /dev/null
    echo "ended $?"
done
