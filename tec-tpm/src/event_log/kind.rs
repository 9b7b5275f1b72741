//! Event types and their names.

use std::borrow::Cow;
use std::fmt;

/// Type of an event (PC Client Platform Firmware Profile 1.06, 10.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKind(u32);

macro_rules! event_kinds {
    ($($constant:ident = $value:literal, $name:literal;)*) => {
        impl EventKind {
            $(#[doc = concat!("`", $name, "`.")] pub const $constant: Self = Self($value);)*

            /// Name of the type, if it is one of the profile's.
            pub const fn known_name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

event_kinds! {
    PREBOOT_CERT = 0x0, "EV_PREBOOT_CERT";
    POST_CODE = 0x1, "EV_POST_CODE";
    UNUSED = 0x2, "EV_UNUSED";
    NO_ACTION = 0x3, "EV_NO_ACTION";
    SEPARATOR = 0x4, "EV_SEPARATOR";
    ACTION = 0x5, "EV_ACTION";
    EVENT_TAG = 0x6, "EV_EVENT_TAG";
    S_CRTM_CONTENTS = 0x7, "EV_S_CRTM_CONTENTS";
    S_CRTM_VERSION = 0x8, "EV_S_CRTM_VERSION";
    CPU_MICROCODE = 0x9, "EV_CPU_MICROCODE";
    PLATFORM_CONFIG_FLAGS = 0xa, "EV_PLATFORM_CONFIG_FLAGS";
    TABLE_OF_DEVICES = 0xb, "EV_TABLE_OF_DEVICES";
    COMPACT_HASH = 0xc, "EV_COMPACT_HASH";
    IPL = 0xd, "EV_IPL";
    IPL_PARTITION_DATA = 0xe, "EV_IPL_PARTITION_DATA";
    NONHOST_CODE = 0xf, "EV_NONHOST_CODE";
    NONHOST_CONFIG = 0x10, "EV_NONHOST_CONFIG";
    NONHOST_INFO = 0x11, "EV_NONHOST_INFO";
    OMIT_BOOT_DEVICE_EVENTS = 0x12, "EV_OMIT_BOOT_DEVICE_EVENTS";
    POST_CODE2 = 0x13, "EV_POST_CODE2";
    EFI_EVENT_BASE = 0x8000_0000, "EV_EFI_EVENT_BASE";
    EFI_VARIABLE_DRIVER_CONFIG = 0x8000_0001, "EV_EFI_VARIABLE_DRIVER_CONFIG";
    EFI_VARIABLE_BOOT = 0x8000_0002, "EV_EFI_VARIABLE_BOOT";
    EFI_BOOT_SERVICES_APPLICATION = 0x8000_0003, "EV_EFI_BOOT_SERVICES_APPLICATION";
    EFI_BOOT_SERVICES_DRIVER = 0x8000_0004, "EV_EFI_BOOT_SERVICES_DRIVER";
    EFI_RUNTIME_SERVICES_DRIVER = 0x8000_0005, "EV_EFI_RUNTIME_SERVICES_DRIVER";
    EFI_GPT_EVENT = 0x8000_0006, "EV_EFI_GPT_EVENT";
    EFI_ACTION = 0x8000_0007, "EV_EFI_ACTION";
    EFI_PLATFORM_FIRMWARE_BLOB = 0x8000_0008, "EV_EFI_PLATFORM_FIRMWARE_BLOB";
    EFI_HANDOFF_TABLES = 0x8000_0009, "EV_EFI_HANDOFF_TABLES";
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000_000a, "EV_EFI_PLATFORM_FIRMWARE_BLOB2";
    EFI_HANDOFF_TABLES2 = 0x8000_000b, "EV_EFI_HANDOFF_TABLES2";
    EFI_VARIABLE_BOOT2 = 0x8000_000c, "EV_EFI_VARIABLE_BOOT2";
    EFI_GPT_EVENT2 = 0x8000_000d, "EV_EFI_GPT_EVENT2";
    EFI_HCRTM_EVENT = 0x8000_0010, "EV_EFI_HCRTM_EVENT";
    EFI_VARIABLE_AUTHORITY = 0x8000_00e0, "EV_EFI_VARIABLE_AUTHORITY";
    EFI_SPDM_FIRMWARE_BLOB = 0x8000_00e1, "EV_EFI_SPDM_FIRMWARE_BLOB";
    EFI_SPDM_FIRMWARE_CONFIG = 0x8000_00e2, "EV_EFI_SPDM_FIRMWARE_CONFIG";
    EFI_SPDM_DEVICE_POLICY = 0x8000_00e3, "EV_EFI_SPDM_DEVICE_POLICY";
    EFI_SPDM_DEVICE_AUTHORITY = 0x8000_00e4, "EV_EFI_SPDM_DEVICE_AUTHORITY";
}

impl EventKind {
    /// The type with this number, known or not.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Name of the type; `EV_0x…` for those that the profile does not know.
    pub fn name(self) -> Cow<'static, str> {
        match self.known_name() {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("EV_{:#010x}", self.0)),
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
