//! The part of a boot chain that a measurement depends on, derived from its ID.

use std::fmt;

use serde::Serialize;

/// A part of the boot chain that is updated as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Group {
    /// What the firmware itself measures: the boot attempt, separators.
    Firmware,
    /// The Secure Boot variables: state, PK, KEK, db, dbx.
    SecureBoot,
    /// shim and GRUB as one unit.
    Bootloader,
    /// shim, if it is updated separately from GRUB.
    Shim,
    /// GRUB, if it is updated separately from shim.
    Grub,
    /// The kernel and what is loaded with it.
    Kernel,
    /// The unified kernel image with its add-ons.
    Uki,
    /// The lists of machine owner keys, if they do not follow from shim.
    Mok,
    /// The revocation level stored by the firmware, which only increases.
    SbatLevel,
}

/// Number of groups.
pub(super) const GROUPS: usize = 9;

impl Group {
    pub(super) const ALL: [Self; GROUPS] = [
        Self::Firmware,
        Self::SecureBoot,
        Self::Bootloader,
        Self::Shim,
        Self::Grub,
        Self::Kernel,
        Self::Uki,
        Self::Mok,
        Self::SbatLevel,
    ];

    /// Human-readable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::SecureBoot => "Secure Boot variables",
            Self::Bootloader => "bootloader",
            Self::Shim => "shim",
            Self::Grub => "GRUB",
            Self::Kernel => "kernel",
            Self::Uki => "UKI",
            Self::Mok => "machine owner keys",
            Self::SbatLevel => "SbatLevel",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Whether an image determines all measurements of the group, whatever loads it. Not so for a kernel: the
    /// loader determines how many times it is measured.
    pub(super) const fn shapes_itself(self) -> bool {
        !matches!(self, Self::Kernel | Self::Shim | Self::Grub | Self::Bootloader)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct GroupSet(u16);

impl GroupSet {
    pub(super) const fn of(group: Group) -> Self {
        Self(1 << group.index())
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn contains(self, group: Group) -> bool {
        self.0 & (1 << group.index()) != 0
    }

    pub(super) const fn shared(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Group> {
        Group::ALL.into_iter().filter(move |g| self.contains(*g))
    }

    /// The group, if there is exactly one.
    pub(super) fn single(self) -> Option<Group> {
        let lowest = usize::try_from(self.0.trailing_zeros()).ok()?;
        Group::ALL.get(lowest).copied().filter(|_| self.0.is_power_of_two())
    }

    fn replaced(self, from: Group, to: Group) -> Self {
        if self.contains(from) { self.without(Self::of(from)).and(Self::of(to)) } else { self }
    }
}

impl FromIterator<Group> for GroupSet {
    fn from_iter<I: IntoIterator<Item = Group>>(groups: I) -> Self {
        let sets = groups.into_iter().map(Self::of);
        sets.fold(Self::default(), Self::and)
    }
}

/// Whether shim and GRUB are updated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loaders {
    /// As one unit, as `bootupd` and distribution packages of signed loaders update them.
    #[default]
    OneUnit,
    /// Separately; a power loss between the two leaves a mix.
    Separate,
}

/// What determines the measured lists of machine owner keys (PCR 14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MokLists {
    /// To shim: the list begins with shim's vendor certificate, so it changes when shim does.
    #[default]
    FollowShim,
    /// To the machine: any list may occur with any shim.
    Independent,
}

/// How measurements are assigned to groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grouping {
    /// Unit of shim and GRUB.
    pub loaders: Loaders,
    /// Owner of the lists of machine owner keys.
    pub mok_lists: MokLists,
}

impl Grouping {
    /// Creates a grouping.
    pub const fn new(loaders: Loaders, mok_lists: MokLists) -> Self {
        Self { loaders, mok_lists }
    }

    /// The group that stands for shim.
    pub(super) const fn shim(self) -> Group {
        match self.loaders {
            Loaders::OneUnit => Group::Bootloader,
            Loaders::Separate => Group::Shim,
        }
    }

    /// What a measurement with this ID depends on.
    pub(super) fn of_id(self, id: &str) -> GroupSet {
        let mut set = dependence(id);
        if self.mok_lists == MokLists::FollowShim {
            set = set.replaced(Group::Mok, Group::Shim);
        }
        if self.loaders == Loaders::OneUnit {
            set = set
                .replaced(Group::Shim, Group::Bootloader)
                .replaced(Group::Grub, Group::Bootloader);
        }
        set
    }
}

/// A unified kernel image has no separate kernel: measurements of the inner kernel come with the
/// image.
pub(super) fn within_uki(set: GroupSet) -> GroupSet {
    set.replaced(Group::Kernel, Group::Uki)
}

/// If the firmware starts the unified kernel image, the authority of what it starts first is that
/// of the image.
pub(super) fn only_uki(set: GroupSet) -> GroupSet {
    let loaders = [Group::Bootloader, Group::Shim, Group::Grub].into_iter();
    loaders.fold(within_uki(set), |set, loader| set.replaced(loader, Group::Uki))
}

const FIRMWARE: GroupSet = GroupSet::of(Group::Firmware);
const SECURE_BOOT: GroupSet = GroupSet::of(Group::SecureBoot);
const SHIM: GroupSet = GroupSet::of(Group::Shim);
const GRUB: GroupSet = GroupSet::of(Group::Grub);
const KERNEL: GroupSet = GroupSet::of(Group::Kernel);
const UKI: GroupSet = GroupSet::of(Group::Uki);
const MOK: GroupSet = GroupSet::of(Group::Mok);
const LOADERS: GroupSet = SHIM.and(GRUB);

/// The groups of an ID such as `Pcr4Shim` or `Pcr7GrubDbCert`: the register, then the component. An unknown
/// ID depends on everything that boots, so that no mix with it is ever guessed.
fn dependence(id: &str) -> GroupSet {
    let rest = id.strip_prefix("Pcr").unwrap_or(id);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (register, component) = rest.split_at(digits);
    let any = |words: &[&str]| words.iter().any(|word| component.contains(word));
    if any(&["Separator", "EfiCall"]) {
        return FIRMWARE;
    }
    match register {
        "0" | "1" | "2" | "3" | "5" | "6" => FIRMWARE,
        "4" if any(&["Uki", "Addon", "Inner"]) => UKI,
        "4" if any(&["Shim"]) => SHIM,
        "4" if any(&["Grub"]) => GRUB,
        "4" if any(&["Vmlinuz", "Kernel", "Linux"]) => KERNEL,
        "7" => secure_boot(component),
        "11" | "12" | "13" => UKI,
        "14" => MOK,
        _ => LOADERS.and(KERNEL).and(UKI),
    }
}

/// PCR 7. An authority depends on the image that it vouches for, on the keys that it was chosen
/// from, and on the earlier images, since each authority is measured only once.
fn secure_boot(component: &str) -> GroupSet {
    match component {
        "SecureBoot" | "Pk" | "Kek" | "Db" | "Dbx" | "Dbt" | "Dbr" => SECURE_BOOT,
        _ if component.starts_with("SbatLevel") => GroupSet::of(Group::SbatLevel),
        _ if component.starts_with("Shim") => SECURE_BOOT.and(SHIM),
        _ if component.starts_with("Grub") => SECURE_BOOT.and(LOADERS).and(MOK),
        _ if component.starts_with("Uki") => SECURE_BOOT.and(SHIM).and(MOK).and(UKI),
        _ => SECURE_BOOT.and(LOADERS).and(MOK).and(KERNEL).and(UKI),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(grouping: Grouping, id: &str) -> Vec<Group> {
        grouping.of_id(id).iter().collect()
    }

    #[test]
    fn shim_and_grub_are_one_unit_unless_told_otherwise() {
        let unit = Grouping::default();
        assert_eq!(groups(unit, "Pcr4Shim"), [Group::Bootloader]);
        assert_eq!(groups(unit, "Pcr4Grub"), [Group::Bootloader]);
        let separate = Grouping::new(Loaders::Separate, MokLists::Independent);
        assert_eq!(groups(separate, "Pcr4Shim"), [Group::Shim]);
        assert_eq!(groups(separate, "Pcr4Grub"), [Group::Grub]);
    }

    #[test]
    fn owner_key_lists_follow_shim_unless_told_otherwise() {
        assert_eq!(groups(Grouping::default(), "Pcr14MokListX"), [Group::Bootloader]);
        let own = Grouping::new(Loaders::OneUnit, MokLists::Independent);
        assert_eq!(groups(own, "Pcr14MokListX"), [Group::Mok]);
    }

    #[test]
    fn an_authority_depends_on_what_it_vouches_for_and_on_the_keys() {
        assert_eq!(
            groups(Grouping::default(), "Pcr7ShimCert"),
            [Group::SecureBoot, Group::Bootloader]
        );
    }

    #[test]
    fn an_unknown_id_depends_on_everything_that_boots() {
        assert_eq!(
            groups(Grouping::default(), "Pcr9Something"),
            [Group::Bootloader, Group::Kernel, Group::Uki]
        );
        assert_eq!(groups(Grouping::default(), "odd").len(), 3);
    }
}
