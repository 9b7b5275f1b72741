//! A container of a Deployment as a process of this machine: what a kubelet would run for its pod.
//!
//! *What it is*: the volumes of the pod, filled from the API server, at their paths; the user of the pod, no
//! capabilities, and a read-only root. *What it is not*: there is no image (libraries are those of this
//! machine) and no separate network. Only root can create the mounts.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container as Spec, KeyToPath, Secret, Volume, VolumeProjection,
};
use kube::Api;

use super::guarded::Guarded;
use super::operator::Bench;
use crate::process::Transcript;

/// Creates the mounts, changes the root, and switches to the user. Arguments: the directory that becomes the
/// root, the user, the program; lines of `<from> <to> <ro|rw>` until `--`; then variables and arguments of
/// the program.
const ENTER: &str = r#"
root=$1 user=$2 program=$3; shift 3
mount -t tmpfs -o mode=755 tmpfs "$root"
bind() { mount --bind "$1" "$root$2"; mount -o "remount,bind,$3" "$root$2"; }
mkdir -p "$root/usr" "$root/dev" "$root/proc" "$root/etc/ssl"
mount --bind /proc "$root/proc"
bind /usr /usr ro
bind /etc/ssl /etc/ssl ro
for part in bin sbin lib lib64; do ln -s "usr/$part" "$root/$part"; done
for device in null urandom; do
    touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
touch "$root/program"
bind "$program" /program ro
while [ "$1" != -- ]; do mkdir -p "$root$2"; bind "$1" "$2" "$3"; shift 3; done
shift
mount -o remount,ro "$root"
exec chroot "$root" /usr/bin/setpriv --reuid="$user" --regid="$user" --clear-groups \
    --no-new-privs --inh-caps=-all --bounding-set=-all /usr/bin/env -i "$@"
"#;

/// A container with its volumes, for a new pod. Its data is removed on drop.
#[derive(Debug)]
pub struct Container {
    spec: Spec,
    user: u32,
    directory: tempfile::TempDir,
}

impl Container {
    /// The container with this name in a Deployment. In files, `change` replaces its first string with its
    /// second: all tests share the ports of this machine.
    ///
    /// # Errors
    /// The Deployment or a mounted object does not exist, or the root is writable.
    pub async fn of(
        bench: &Bench,
        (deployment, name): (&str, &str),
        change: (&str, &str),
    ) -> anyhow::Result<Self> {
        let deployment = bench.objects::<Deployment>()?.get(deployment).await?;
        let pod = deployment.spec.and_then(|spec| spec.template.spec);
        let pod = pod.context("the Deployment has no pod")?;
        let spec = pod.containers.into_iter().find(|container| container.name == name);
        let spec = spec.with_context(|| format!("no container {name}"))?;
        let security = spec.security_context.as_ref();
        let is_fixed = security.and_then(|security| security.read_only_root_filesystem);
        ensure!(is_fixed == Some(true), "the root of {name} can be written to");
        let user = pod.security_context.and_then(|security| security.run_as_user);
        let user = u32::try_from(user.context("the pod has no user")?)?;
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(directory.path().join("root"))?;
        let (secrets, config_maps) = (bench.objects()?, bench.objects()?);
        let files = Files { secrets, config_maps, change, user };
        let mounts = spec.volume_mounts.iter().flatten();
        let mounted: BTreeSet<_> = mounts.map(|mount| &mount.name).collect();
        let volumes = pod.volumes.iter().flatten();
        for volume in volumes.filter(|volume| mounted.contains(&volume.name)) {
            files.fill(volume, &directory.path().join(&volume.name)).await?;
        }
        Ok(Self { spec, user, directory })
    }

    /// Starts it; `program` stands for the program in its image.
    pub fn start(&self, program: &Path, logs: &Transcript) -> anyhow::Result<Guarded> {
        let arguments = self.arguments(program)?;
        Guarded::start(&self.spec.name, Path::new("/usr/bin/unshare"), arguments, &[], logs)
    }

    fn arguments(&self, program: &Path) -> anyhow::Result<Vec<OsString>> {
        let words = ["--mount", "--propagation", "private", "sh", "-euc", ENTER, "sh"];
        let mut all: Vec<OsString> = words.map(OsString::from).into();
        let root = self.directory.path().join("root");
        all.extend([root.into(), self.user.to_string().into(), program.into()]);
        // A mount comes before those below it.
        let mut mounts: Vec<_> = self.spec.volume_mounts.iter().flatten().collect();
        mounts.sort_by_key(|mount| &mount.mount_path);
        for mount in mounts {
            let from = self.directory.path().join(&mount.name);
            ensure!(from.exists(), "the kind {} is not supported here", mount.name);
            let mode = if mount.read_only == Some(true) { "ro" } else { "rw" };
            all.extend([from.into(), mount.mount_path.clone().into(), mode.into()]);
        }
        all.push("--".into());
        for variable in self.spec.env.iter().flatten() {
            let value = variable.value.as_deref().unwrap_or_default();
            all.push(format!("{}={value}", variable.name).into());
        }
        all.push("/program".into());
        // The first word of the command is the program.
        all.extend(self.spec.command.iter().flatten().skip(1).map(OsString::from));
        all.extend(self.spec.args.iter().flatten().map(OsString::from));
        Ok(all)
    }
}

/// Where the files of volumes come from.
struct Files<'a> {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    change: (&'a str, &'a str),
    user: u32,
}

impl Files<'_> {
    /// Volumes of other kinds are left out; mounting one is an error.
    async fn fill(&self, volume: &Volume, directory: &Path) -> anyhow::Result<()> {
        if let Some(secret) = &volume.secret {
            let name = secret.secret_name.as_deref().unwrap_or_default();
            self.secret(name, secret.items.as_ref(), directory).await?;
        } else if let Some(config_map) = &volume.config_map {
            self.config_map(&config_map.name, config_map.items.as_ref(), directory).await?;
        } else if let Some(projected) = &volume.projected {
            for source in projected.sources.iter().flatten() {
                self.project(source, directory).await?;
            }
        } else if volume.empty_dir.is_some() {
            fs::create_dir(directory)?;
            chown(directory, None, Some(self.user))?;
            fs::set_permissions(directory, Permissions::from_mode(0o2777))?;
        }
        Ok(())
    }

    async fn project(&self, source: &VolumeProjection, directory: &Path) -> anyhow::Result<()> {
        if let Some(secret) = &source.secret {
            self.secret(&secret.name, secret.items.as_ref(), directory).await?;
        }
        if let Some(config_map) = &source.config_map {
            self.config_map(&config_map.name, config_map.items.as_ref(), directory).await?;
        }
        Ok(())
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&Vec<KeyToPath>>,
        directory: &Path,
    ) -> anyhow::Result<()> {
        let secret =
            self.secrets.get(name).await.with_context(|| format!("cannot mount {name}"))?;
        for (key, value) in secret.data.iter().flatten() {
            self.write(items, key, &value.0, (directory, 0o440))?;
        }
        Ok(())
    }

    async fn config_map(
        &self,
        name: &str,
        items: Option<&Vec<KeyToPath>>,
        directory: &Path,
    ) -> anyhow::Result<()> {
        let map =
            self.config_maps.get(name).await.with_context(|| format!("cannot mount {name}"))?;
        for (key, value) in map.data.iter().flatten() {
            let text = value.replace(self.change.0, self.change.1);
            self.write(items, key, text.as_bytes(), (directory, 0o644))?;
        }
        Ok(())
    }

    /// As a kubelet does for a pod with `fsGroup`: files belong to root, and to the user's group.
    fn write(
        &self,
        items: Option<&Vec<KeyToPath>>,
        key: &str,
        value: &[u8],
        (directory, mode): (&Path, u32),
    ) -> anyhow::Result<()> {
        let all = [KeyToPath { key: key.to_owned(), path: key.to_owned(), mode: None }];
        let chosen = items.map_or(&all[..], Vec::as_slice);
        for item in chosen.iter().filter(|item| item.key == key) {
            let path: PathBuf = directory.join(&item.path);
            fs::create_dir_all(path.parent().unwrap_or(directory))?;
            fs::write(&path, value)?;
            chown(&path, None, Some(self.user))?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}
