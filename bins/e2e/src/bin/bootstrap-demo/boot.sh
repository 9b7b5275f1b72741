# The boot of a host: process 1 of its namespaces. BASE is its folder, NAME its name, GATEWAY the
# address that answers nobody's DNS. What it mounts is gone with it.
set -e
own() { mkdir -p "$BASE/$2"; mount --bind "$BASE/$2" "$1"; }
# What the machine has there stays visible.
above() {
	mkdir -p "$BASE$1/upper" "$BASE$1/work"
	mount -t overlay tec -o "lowerdir=$1,upperdir=$BASE$1/upper,workdir=$BASE$1/work" "$1"
}

above /etc
# The programs may be below it.
above /opt
own /var/lib lib
own /var/log log
own /run run
if [ ! -e /var/lib/installed ]; then
	rm -rf /etc/cni/net.d /etc/kubernetes /etc/resolv.conf
	echo "nameserver $GATEWAY" > /etc/resolv.conf
	: > /var/lib/installed
fi
mkdir -p /etc/kubernetes/manifests /etc/cni/net.d /var/lib/kubelet

# Devices: those that containers get, and one that stands where a TPM would be.
mkdir -p "$BASE/dev"
mount -t tmpfs -o mode=755 dev "$BASE/dev"
while read -r name major minor; do
	mknod -m 666 "$BASE/dev/$name" c "$major" "$minor"
done <<-DEVICES
	null 1 3
	zero 1 5
	full 1 7
	random 1 8
	urandom 1 9
	kmsg 1 11
	tty 5 0
	tpmrm0 1 3
DEVICES
mkdir "$BASE/dev/pts" "$BASE/dev/shm" "$BASE/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$BASE/dev/pts"
mount -t tmpfs -o mode=1777 shm "$BASE/dev/shm"
ln -s pts/ptmx "$BASE/dev/ptmx"
ln -s /proc/self/fd "$BASE/dev/fd"
mount --move "$BASE/dev" /dev

# A cgroup of its own in each hierarchy: kubelets remove pods' cgroups that they do not know.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ ! -L "$hierarchy" ] && mountpoint -q "$hierarchy" && [ -e "$hierarchy/cgroup.procs" ] || continue
	mkdir -p "$hierarchy/tec-$NAME"
	for file in cpuset.cpus cpuset.mems; do
		[ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" > "$hierarchy/tec-$NAME/$file"
	done
done

# As in /etc/sysctl.d of an image: what kubeadm and `protectKernelDefaults` look for.
sysctl -qw net.ipv4.ip_forward=1 vm.overcommit_memory=1 vm.panic_on_oom=0 kernel.panic=10 \
	kernel.panic_on_oops=1 kernel.keys.root_maxkeys=1000000 kernel.keys.root_maxbytes=25000000

# There is no systemd in a namespace like this one.
mount --bind "$BASE/systemctl" "$(command -v systemctl)"
containerd --config "$BASE/containerd.toml" > "$BASE/containerd.log" 2>&1 < /dev/null &
: > "$BASE/ready"

# kubelet.service, with the drop-in that kubeadm documents.
kubelet_service() {
	KUBELET_KUBEADM_ARGS=
	[ ! -e /var/lib/kubelet/kubeadm-flags.env ] || . /var/lib/kubelet/kubeadm-flags.env
	# Its words are arguments.
	# shellcheck disable=SC2086
	exec kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
		--kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \
		--config-dir="$BASE/kubelet.d" $KUBELET_KUBEADM_ARGS
}
while :; do
	if [ -e /run/kubelet.wanted ] && [ -e /var/lib/kubelet/config.yaml ]; then
		kubelet_service >> "$BASE/kubelet.log" 2>&1 < /dev/null &
		echo $! > /run/kubelet.pid
		wait $! || :
		rm -f /run/kubelet.pid
	fi
	sleep 0.3
done
