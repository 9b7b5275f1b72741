//! GRUB scripts: what they measure is bounded and follows from the script alone, and a refusal names a line.

use tec_tpm::compute::Unpredictable;
use tec_tpm::compute::testing::parsers;

use crate::{Seed, outcome};

const FILE: &str = "/grub.cfg";
/// Maximum number of measurements, as in the interpreter: its cost over that of a statement, each of which
/// measures at most five files and two commands.
const MAX_MEASUREMENTS: usize = 7 * (4 << 20) / 256;

/// What is measured is bounded; a boot has a kernel, whose command is
/// measured before its file; and a refusal names a line of the script.
pub(crate) fn grub_script(data: &[u8]) {
    match parsers::grub_script(FILE, data) {
        Ok(measured) => check_measured(&measured),
        Err(Unpredictable::Script { line, .. }) => {
            let lines = data.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
        }
        Err(other) => panic!("{other:?} is not about the script"),
    }
}

fn check_measured(measured: &[String]) {
    assert!(measured.len() <= MAX_MEASUREMENTS);
    let kernels = measured.windows(3).filter(|events| {
        let [command, file, options] = events else { return false };
        let given = command.strip_prefix("linux ");
        given == Some(options) && file.starts_with("file /")
    });
    assert_eq!(kernels.count(), 1, "a boot has one kernel: {measured:?}");
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(parsers::grub_script(FILE, data))
}

const PLAIN: &str =
    "set timeout=0\nlinux /vmlinuz root=/dev/vda1 quiet\ninitrd /initrd.img\nboot\n";

const GENERATED: &str = r#"if [ "${next_entry}" ] ; then
  set default="${next_entry}"
else
  set default="0"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
fi
export menuentry_id_option
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  fi
}
if loadfont unicode ; then
  set gfxmode=auto
  load_video
fi
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; fi
	search --no-floppy --fs-uuid --set=root --hint-efi=hd0,gpt2 1234
	echo	'Loading Linux ...'
	linux	/vmlinuz root=UUID=1234 ro quiet
	initrd	/initrd.img
}
submenu 'Advanced options' $menuentry_id_option 'advanced' {
	menuentry 'Recovery' { linux /vmlinuz single
	}
}
if [ -f  ${prefix}/custom.cfg -a "$?" = 1 ]; then true; fi
"#;

pub(crate) fn seeds() -> Vec<Seed> {
    let (_, menu) = GENERATED.split_at(GENERATED.len() / 2);
    let chosen = format!("default=advanced\n{menu}");
    let loops = "for a in b c; do while [ $a = b ]; do a=d; done; done\nlinux /k $a\nboot\n";
    let seeds = vec![
        Seed::new("plain", PLAIN),
        Seed::new("dos_lines", PLAIN.replace('\n', "\r\n")),
        Seed::new("blanks", "\n# comment\n \techo  a\tb \nlinux /k\nboot\nexit"),
        Seed::new("generated", GENERATED),
        Seed::new("loops", loops),
        Seed::new("cut_off", chosen).refused(read),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let lying = |name, script: &[u8]| Seed::new(name, script).refused(read);
    vec![
        lying("no_text", b"set a=b\n\xff\nboot\n"),
        lying("nothing", b""),
        lying("no_boot", b"set a=b\necho a\n"),
        lying("no_kernel", b"boot\n"),
        lying("unknown_command", b"set a=b\nchainloader /x\nboot\n"),
        lying("unknown_variable", b"linux /k $lockdown\nboot\n"),
        lying("relative", b"linux k\nboot\n"),
        lying("null_byte", b"set a=b\0\nboot\n"),
        lying("blank_that_is_none", "\u{a0}boot\n".as_bytes()),
        lying("endless", b"while true; do true; done\n"),
        lying("endless_script", b"source /grub.cfg\n"),
        lying("endless_function", b"function f { f; }\nf\n"),
        lying("growing", b"a=x\nwhile true; do a=$a$a; done\n"),
        lying("deep", "if ".repeat(100).as_bytes()),
    ]
}
