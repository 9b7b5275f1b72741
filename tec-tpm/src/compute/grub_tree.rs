//! Where in an image the file systems lie that GRUB reads: the EFI system partition, and those that its
//! script searches for.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use tec_core::reference::BootImage;

use super::find;
use super::grub_script::{Found, Stop};
use super::predict_error::PredictError;

/// The partition of GRUB's configuration in the layout of installers: behind the EFI system partition.
const CONFIGURATION_DEVICE: &str = "hd0,gpt2";

/// Beginnings of GRUB's names of devices: disks, logical volumes, and arrays (GRUB manual, "Device syntax").
const DEVICES: [&str; 3] = ["hd", "lvmid/", "mduuid/"];
const DISK_OF_INSTALLER: &str = "hostdisk/";

/// The file systems that GRUB knows by their devices.
#[derive(Debug)]
pub(super) struct GrubTree<'i> {
    image: &'i dyn BootImage,
    /// Folder of the EFI system partition in the image, with a slash at its end, or empty.
    partition: String,
    /// GRUB's name of the EFI system partition.
    device: String,
    /// Devices by what was searched for, and where each file system lies once a file was found on it.
    searched: BTreeMap<String, String>,
    places: BTreeMap<String, Place>,
}

const NOT_IN_IMAGE: Stop = Stop::Unknown("the image does not have that part of the file system");

/// Where in an image a file system lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At its root.
    Root,
    /// In its folder `boot`: a partition of its own.
    Boot,
    /// The image is the folder `boot` of the file system.
    BelowBoot,
    /// The image is a subvolume of btrfs, whose name begins with `@`.
    Subvolume,
}

impl Place {
    const ALL: [Self; 4] = [Self::Root, Self::Boot, Self::BelowBoot, Self::Subvolume];

    /// Path in the image of a path in the file system.
    fn path(self, path: &str) -> Option<String> {
        match self {
            Self::Root => Some(path.to_owned()),
            Self::Boot => Some(format!("boot/{path}")),
            Self::BelowBoot => path.strip_prefix("boot/").map(str::to_owned),
            Self::Subvolume => {
                let (_, below) = path.strip_prefix('@')?.split_once('/')?;
                Some(below.to_owned())
            }
        }
    }
}

impl<'i> GrubTree<'i> {
    pub(super) fn new(image: &'i dyn BootImage, partition: &str, device: &str) -> Self {
        Self {
            image,
            partition: partition.to_owned(),
            device: device.to_owned(),
            searched: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    /// The device that a search finds; `first` is that of the first file system that is searched for.
    pub(super) fn search(
        &mut self,
        wanted: &str,
        hint: Option<&str>,
        first: Option<&str>,
    ) -> Option<String> {
        if let Some(known) = self.searched.get(wanted) {
            return Some(known.clone());
        }
        let is_first = self.searched.is_empty();
        let device = match (first.filter(|_| is_first), hint) {
            (Some(device), _) => device.to_owned(),
            (None, Some(hint)) if !hint.starts_with(DISK_OF_INSTALLER) => {
                // A comma at the end stands for any of its partitions.
                let is_known = DEVICES.iter().any(|kind| hint.starts_with(kind));
                (is_known && !hint.ends_with(',')).then(|| hint.to_owned())?
            }
            // A disk of the machine that installed GRUB, such as `hostdisk//dev/vda,gpt2`.
            (None, Some(hint)) if is_first => format!("hd0,{}", hint.rsplit_once(',')?.1),
            (None, None) if is_first => CONFIGURATION_DEVICE.to_owned(),
            _ => return None,
        };
        self.searched.insert(wanted.to_owned(), device.clone());
        Some(device)
    }

    /// What lies at a path of a device.
    pub(super) fn find(&mut self, device: &str, path: &str) -> Result<Found, Stop> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let path = parts.join("/");
        if device == self.device {
            return self.on_partition(&path);
        }
        if !self.searched.values().any(|searched| searched == device) {
            return Err(Stop::Unknown("it names a device that it did not search for"));
        }
        if let Some(place) = self.places.get(device) {
            let path = place.path(&path).ok_or(NOT_IN_IMAGE)?;
            return match self.lies_at(&path)? {
                Found::Nothing if !self.has_folder_of(&path)? => Err(NOT_IN_IMAGE),
                found => Ok(found),
            };
        }
        let taken: Vec<Place> = self.places.values().copied().collect();
        let free = Place::ALL.into_iter().filter(|place| !taken.contains(place));
        let free: Vec<Place> = free.collect();
        for place in free.iter().copied() {
            let found = match place.path(&path) {
                Some(path) => self.lies_at(&path)?,
                None => Found::Nothing,
            };
            if matches!(found, Found::File(_)) {
                self.places.insert(device.to_owned(), place);
                return Ok(found);
            }
        }
        if let Some(place) = self.place_of_folder(&free, &path)? {
            self.places.insert(device.to_owned(), place);
            return Ok(Found::Nothing);
        }
        Err(Stop::Unknown("the file system that it searched for is not in the image"))
    }

    /// Names of the boot entries in a folder of a device on which a file was found; none if there is no such
    /// folder.
    pub(super) fn entries(&self, device: &str, folder: &str) -> Result<Option<Vec<String>>, Stop> {
        let folder: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
        let folder = folder.join("/");
        let path = if device == self.device {
            Some(format!("{}{folder}", self.partition))
        } else {
            self.places.get(device).ok_or(NOT_IN_IMAGE)?.path(&folder)
        };
        let Some(path) = path else {
            return Ok(None);
        };
        let files = find::list(self.image, &path).map_err(failed)?;
        let names = files.iter().filter_map(|file| file.strip_prefix(&path)?.strip_prefix('/'));
        let is_entry = |name: &&str| {
            let stem = name.strip_suffix(".conf").unwrap_or_default();
            !stem.is_empty() && !stem.starts_with('.') && !stem.contains('/')
        };
        let names = names.filter(is_entry).map(str::to_owned).collect();
        Ok(Some(names).filter(|_| !files.is_empty()))
    }

    /// The file system of the EFI system partition ignores case.
    fn on_partition(&self, path: &str) -> Result<Found, Stop> {
        let path = format!("{}{path}", self.partition);
        if let Some(file) = find::spelled(self.image, &path).map_err(failed)? {
            return Ok(Found::File(file));
        }
        let below = format!("{}/", path.to_ascii_lowercase());
        let folder = path.split('/').next().unwrap_or_default();
        let mut files = find::list(self.image, folder).map_err(failed)?;
        if files.is_empty() {
            files = find::list(self.image, "").map_err(failed)?;
        }
        let is_folder = files.iter().any(|file| file.to_ascii_lowercase().starts_with(&below));
        Ok(if is_folder { Found::Folder } else { Found::Nothing })
    }

    /// Whether the image has the folder of the root that a path is below. An image of a part of the machine's
    /// files does not show what else there is. Of a whole machine, that folder may be too large to list.
    fn has_folder_of(&self, path: &str) -> Result<bool, Stop> {
        match path.split_once('/') {
            Some((folder, _)) => self.has_folder(folder),
            None => Ok(true),
        }
    }

    /// The only place that has the nearest folder around a path that does not exist.
    fn place_of_folder(&self, places: &[Place], path: &str) -> Result<Option<Place>, Stop> {
        let mut around = path;
        while let Some((folder, _)) = around.rsplit_once('/') {
            let mut found = Vec::new();
            for place in places {
                if let Some(folder) = place.path(folder)
                    && !self.is_of_partition(&folder)
                    && self.has_folder(&folder)?
                {
                    found.push(*place);
                }
            }
            match found.as_slice() {
                [] => around = folder,
                [only] => return Ok(Some(*only)),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn has_folder(&self, folder: &str) -> Result<bool, Stop> {
        match self.image.open(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(!find::list(self.image, folder).map_err(failed)?.is_empty())
            }
            _ => Ok(true),
        }
    }

    /// The folder where the EFI system partition is mounted is empty for GRUB.
    fn is_of_partition(&self, path: &str) -> bool {
        !self.partition.is_empty() && format!("{path}/").starts_with(&self.partition)
    }

    fn lies_at(&self, path: &str) -> Result<Found, Stop> {
        if self.is_of_partition(path) {
            return Ok(Found::Nothing);
        }
        let Err(source) = self.image.open(path) else {
            return Ok(Found::File(path.to_owned()));
        };
        if source.kind() == ErrorKind::NotADirectory {
            return Ok(Found::Nothing);
        }
        if !find::list(self.image, path).map_err(failed)?.is_empty() {
            return Ok(Found::Folder);
        }
        match source.kind() {
            ErrorKind::NotFound => Ok(Found::Nothing),
            ErrorKind::InvalidInput => Err(Stop::Unknown("a path is neither a file nor a folder")),
            _ => Err(Stop::Failed(PredictError::Open { file: path.to_owned(), source })),
        }
    }
}

fn failed(source: find::FindError) -> Stop {
    Stop::Failed(PredictError::Find(source))
}
