use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A disk with files, on which everything else is missing.
#[derive(Default)]
struct Disk {
    files: BTreeMap<String, String>,
    measured: Vec<String>,
    is_red_hat: bool,
}

impl Host for Disk {
    fn find(&mut self, device: &str, path: &str) -> Result<Found, Stop> {
        let path = format!("({device}){path}");
        let is_folder = self.files.keys().any(|file| file.starts_with(&format!("{path}/")));
        if self.files.contains_key(&path) {
            return Ok(Found::File(path));
        }
        Ok(if is_folder { Found::Folder } else { Found::Nothing })
    }

    fn command(&mut self, text: &str) -> Result<(), Stop> {
        self.measured.push(text.to_owned());
        Ok(())
    }

    fn open(&mut self, file: &str) -> Result<(), Stop> {
        self.command(&format!("file {file}"))
    }

    fn content(&mut self, file: &str) -> Result<Vec<u8>, Stop> {
        Ok(self.files[file].clone().into_bytes())
    }

    fn has_module(&mut self, name: &str) -> Result<bool, Stop> {
        Ok(name == "gzio")
    }

    fn entries(&mut self, device: &str, folder: &str) -> Result<Option<Vec<String>>, Stop> {
        let folder = format!("({device}){folder}/");
        let names = self.files.keys().filter_map(|file| file.strip_prefix(&folder));
        let names: Vec<_> = names.map(str::to_owned).collect();
        Ok(Some(names).filter(|names| !names.is_empty()))
    }

    fn is_red_hat(&self) -> bool {
        self.is_red_hat
    }

    fn search(&mut self, _: &str, hint: Option<&str>) -> Result<String, Stop> {
        hint.map(str::to_owned).ok_or(Stop::Unknown("there is no hint"))
    }

    fn linux(&mut self, file: String, command_line: &str) -> Result<(), Stop> {
        self.open(&file)?;
        self.command(&format!("cmdline {command_line}"))
    }

    fn initrd(&mut self, file: String) -> Result<(), Stop> {
        self.open(&file)
    }

    fn has_setup_screen(&self) -> bool {
        true
    }
}

const SCRIPT: &str = "(d)/grub.cfg";

/// What a script measures on a disk with a kernel and these files.
fn run_with(script: &str, files: &[(&str, &str)]) -> Result<Vec<String>, (usize, &'static str)> {
    run_on(Disk::default(), script, files)
}

fn run_on(
    mut disk: Disk,
    script: &str,
    files: &[(&str, &str)],
) -> Result<Vec<String>, (usize, &'static str)> {
    for (path, content) in [("/grub.cfg", script), ("/k", ""), ("/i", "")].iter().chain(files) {
        disk.files.insert(format!("(d){path}"), (*content).to_owned());
    }
    match Interpreter::new(&mut disk, "d", "p", None).boot(SCRIPT) {
        Ok(()) => Ok(disk.measured),
        Err(Stop::Unpredictable(Unpredictable::Script { line, reason, .. })) => Err((line, reason)),
        Err(other) => panic!("{other:?}"),
    }
}

/// The commands of a script up to the kernel that is started after it.
fn commands(script: &str) -> Vec<String> {
    let measured = run_with(&format!("{script}\nlinux /k\nboot\n"), &[]).unwrap();
    let end = measured.iter().position(|text| text == "linux /k").unwrap();
    measured[..end].to_vec()
}

#[test]
fn words_are_joined_after_quotes_and_variables_are_gone() {
    for (script, expected) in [
        ("echo  a\tb # c", "echo a b"),
        ("echo a'b c'\"d  e\"", "echo ab cd  e"),
        ("echo a\\ b \\\n c", "echo a b c"),
        ("echo \"\\$a\\\"\\n\"", "echo $a\"\\n"),
        ("echo '$a' \"\" ''", "echo $a  "),
        ("echo $none x${none}y \"$none\"", "echo xy "),
        ("echo $root$root \"${root}\"", "echo dd d"),
        ("echo a#b", "echo a#b"),
        ("'echo' a", "echo a"),
    ] {
        assert_eq!(commands(script), [expected], "{script}");
    }
    let split = commands("set a='b  c'; echo x${a}y \"$a\"");
    assert_eq!(split, ["set a=b  c", "echo xb cy b  c"]);
    assert_eq!(commands("a=b; unset a; echo [$a]"), ["a=b", "unset a", "echo []"]);
    assert_eq!(commands("echo a\r\necho b"), ["echo a", "echo b"]);
}

#[test]
fn conditions_are_measured_and_decide() {
    for (condition, holds) in [
        ("[ a = a ]", true),
        ("[ a != a ]", false),
        ("[ \"\" ]", false),
        ("[ -z \"\" ]", true),
        ("[ -n x ]", true),
        ("[ ! -n x ]", false),
        ("[ -z x -o x ]", true),
        ("[ a = a -a b = c ]", false),
        ("test 10 -gt 9", true),
        ("[ 10 '<' 9 ]", true),
        ("[ -f /k ]", true),
        ("[ -e /none ]", false),
        ("[ -d / ]", false),
        ("[ ! = x ]", false),
        ("true", true),
        ("false", false),
    ] {
        let measured = commands(&format!("if {condition}; then echo y; else echo n; fi"));
        assert_eq!(measured[1], if holds { "echo y" } else { "echo n" }, "{condition}");
    }
    let script = "if false; then echo 1; elif true; then echo 2; else echo 3; fi";
    assert_eq!(commands(script), ["false", "true", "echo 2"]);
    assert_eq!(commands("[ -s /none ]; echo $?"), ["[ -s /none ]", "echo 1"]);
}

#[test]
fn functions_and_loops_measure_what_they_execute() {
    let script = "function f {\n echo $# \"$1\" $@\n return\n echo x\n}\nf a 'b c'";
    assert_eq!(commands(script), ["f a b c", "echo 2 a a b c", "return"]);
    let script = "for x in a b c; do if [ $x = b ]; then break; fi; echo $x; done";
    assert_eq!(commands(script), ["[ a = b ]", "echo a", "[ b = b ]", "break"]);
    let script = "a=x\nwhile [ $a != xxx ]; do a=x$a; done";
    assert_eq!(commands(script).iter().filter(|text| text.starts_with('a')).count(), 3);
    let script = "a=x\nuntil [ $a = xx ]; do a=x$a; continue; done";
    assert_eq!(commands(script), ["a=x", "[ x = xx ]", "a=xx", "continue", "[ xx = xx ]"]);
}

const MENU: &str = "menuentry 'A' --class x { linux /k a\n}\n\
    submenu \"S\" --id s {\n menuentry B --id=b {\n linux /k b; initrd /i }\n menuentry C { linux /k c }\n}\n";

#[test]
fn the_default_entry_is_found_by_number_title_id_and_path() {
    for (default, line) in [
        ("", "a"),
        ("0", "a"),
        ("A", "a"),
        ("1>0", "b"),
        ("s>b", "b"),
        ("S>C", "c"),
        ("s>9", "b"),
        ("9", "a"),
        ("none", "a"),
    ] {
        let measured = run_with(&format!("default='{default}'\n{MENU}"), &[]).unwrap();
        assert!(measured.contains(&format!("cmdline /k {line}")), "{default}: {measured:?}");
    }
    let measured = run_with(&format!("default='s>b'\n{MENU}"), &[]).unwrap();
    let expected = [
        "default=s>b",
        "menuentry A --class x { linux /k a\n}",
        "submenu S --id s {\n menuentry B --id=b {\n linux /k b; initrd /i }\n menuentry C { linux /k c }\n}",
        "setparams S",
        "menuentry B --id=b {\n linux /k b; initrd /i }",
        "menuentry C { linux /k c }",
        "setparams B",
        "linux /k b",
        "file (d)/k",
        "cmdline /k b",
        "initrd /i",
        "file (d)/i",
    ];
    assert_eq!(measured, expected);
    assert!(run_with(&format!("default=1\n{MENU}"), &[]).is_err());
}

#[test]
fn files_are_measured_when_they_are_opened() {
    let block = "# GRUB Environment Block\nsaved=x y\nother=z\n####";
    let files = [
        ("/p/grubenv", block),
        ("/p/x86_64-efi/late.mod", "module"),
        ("/next.cfg", "echo $config_directory\nmenuentry N { linux /k }\n"),
        ("/more.cfg", "echo more\n"),
        ("/q/x86_64-efi/fs.lst", "list"),
    ];
    let script = "load_env saved\necho \"$saved\" $other\ninsmod gzio\ninsmod late\nsource /more.cfg\n\
        source /none\nset prefix=($root)/q\nconfigfile /next.cfg\n";
    let measured = run_with(script, &files).unwrap();
    let expected = [
        "load_env saved",
        "file (d)/p/grubenv",
        "echo x y",
        "insmod gzio",
        "insmod late",
        "file (d)/p/x86_64-efi/late.mod",
        "source /more.cfg",
        "file (d)/more.cfg",
        "echo more",
        "source /none",
        "set prefix=(d)/q",
        "file (d)/q/x86_64-efi/fs.lst",
        "configfile /next.cfg",
        "file (d)/next.cfg",
        "echo (d)",
        "menuentry N { linux /k }",
        "setparams N",
        "linux /k",
        "file (d)/k",
        "cmdline /k",
    ];
    assert_eq!(measured, expected);
}

#[test]
fn scripts_and_submenus_of_their_own_see_exported_variables() {
    let next = [("/next.cfg", "echo $a\nmenuentry N { linux /k }\n")];
    let script = "set a=b\nexport a\nconfigfile /next.cfg\n";
    assert!(run_with(script, &next).unwrap().contains(&"echo b".to_owned()));
    // What GRUB exports itself was not observed.
    assert_eq!(run_with("set a=b\nconfigfile /next.cfg\n", &next).unwrap_err().0, 1);
    let menu = "submenu S { menuentry M { linux /k $a\n } }\n";
    let exported = format!("default='S>M'\na=b; export a\n{menu}");
    assert!(run_with(&exported, &[]).unwrap().contains(&"cmdline /k b".to_owned()));
    assert!(run_with(&format!("default='S>M'\na=b\n{menu}"), &[]).is_err());
    assert!(run_with(&format!("default='S>M'\n{menu}"), &[]).is_ok());
}

#[test]
fn what_is_not_known_stops_with_its_line() {
    for (script, line) in [
        ("", 1),
        ("set a=b\n", 1),
        ("echo a\nif true; then\n", 2),
        ("echo a\nchainloader /x\nboot\n", 2),
        ("echo 'a\n", 2),
        ("echo a | echo b\n", 1),
        ("echo *\n", 1),
        ("echo $lockdown\n", 1),
        ("echo a\n\nset root=e\nlinux k\n", 4),
        ("linux /none\n", 1),
        ("linux /k 'a b'\n", 1),
        ("linux /k\nlinux /k\n", 2),
        ("linux /k\ninitrd /i /i\n", 2),
        ("initrd /i\n", 1),
        ("a=b echo\n", 1),
        ("function f { f; }\nf\n", 1),
        ("while true; do echo a; done\n", 1),
        ("source /grub.cfg\n", 1),
        ("[ a -a b -o c ]\n", 1),
        ("[ -s /k -a a ]\n", 1),
        ("if terminal_output gfxterm; then echo a; fi\n", 1),
        ("search --file --set=root /x\n", 1),
        ("loadfont other\n", 1),
        ("set theme=/x\nmenuentry a { true }\n", 1),
        ("menuentry a b { true }\n", 1),
        ("menuentry a {\ntrue\nunknown }\n", 3),
        ("echo {\n", 1),
        ("}\n", 1),
        ("\u{a0}boot\n", 1),
        ("boot\n", 1),
        ("menuentry a {\n# a comment\nlinux /k\n}\n", 4),
        ("default='6.12 hardened'\nmenuentry '6.12 hardened' {\nlinux /k\n}\n", 1),
        ("default=01\nmenuentry a { linux /k\n}\n", 1),
        ("password root secret\n", 1),
        ("terminal_input at_keyboard\n", 1),
        ("echo $fw_path\n", 1),
    ] {
        assert_eq!(run_with(script, &[]).unwrap_err().0, line, "{script}");
    }
}

#[test]
fn a_sourced_script_knows_its_path_and_the_one_around_it_its_own() {
    let more = [("/more/a.cfg", "echo $config_directory\n")];
    let measured = run_with("source /more/a.cfg\nlinux /k\nboot\n", &more).unwrap();
    assert_eq!(measured[2], "echo (d)/more");
    let outside = "source /more/a.cfg\necho $config_directory\n";
    assert_eq!(run_with(outside, &more).unwrap_err().0, 2);
}

/// Each of these would take gigabytes, minutes or all of the stack.
#[test]
fn what_grows_is_stopped() {
    let many = "\"$@\" ".repeat(1000);
    let words = format!("function f {{\nf {many}\n}}\nf ''\n");
    assert_eq!(run_with(&words, &[]).unwrap_err().1, "a command is too long");
    let blanks = format!("x='{}'\necho {}\n", " ".repeat(60 << 10), "$x".repeat(10_000));
    assert_eq!(run_with(&blanks, &[]).unwrap_err().1, "a command is too long");
    let path = "0>".repeat(1000);
    let menus =
        format!("function f {{\nsubmenu a {{ f\n}}\n}}\nset default='{path}'\nexport default\nf\n");
    assert_eq!(run_with(&menus, &[]).unwrap_err().1, "it is nested too deeply");
    let entry = format!("linux /k\noptions {}\n", "$xx".repeat(300_000));
    let blanks = format!("xx='{}'\nblscfg\n", "a".repeat(60 << 10));
    let error = red_hat(&blanks, &[("/loader/entries/a-1.conf", &entry)]).unwrap_err();
    assert_eq!(error.1, "a command is too long");
}

#[test]
fn a_search_takes_the_hint_for_this_firmware() {
    let script =
        "search --no-floppy --fs-uuid --set=root --hint-bios=a --hint-efi=d --hint-baremetal=b u";
    assert_eq!(commands(script).len(), 1);
    assert_eq!(run_with("search --label x --set=root\n", &[]).unwrap_err().1, "there is no hint");
}

/// What Red Hat's GRUB measures with these files.
fn red_hat(script: &str, files: &[(&str, &str)]) -> Result<Vec<String>, (usize, &'static str)> {
    run_on(Disk { is_red_hat: true, ..Disk::default() }, script, files)
}

/// The option that names the entry which boots.
fn started(script: &str, files: &[(&str, &str)]) -> Result<String, (usize, &'static str)> {
    let measured = red_hat(script, files)?;
    let line = measured.iter().find_map(|text| text.strip_prefix("cmdline (d)/k "));
    Ok(line.unwrap().to_owned())
}

#[test]
fn boot_entries_are_made_as_red_hats_grub_makes_them() {
    let entry = "# x\ntitle  Some System\nversion 1\nlinux /k\ninitrd /i $none\n\
        options $kernelopts ro $none $end\ngrub_arg --unrestricted\ngrub_users $grub_users\n\nlinux /z\n";
    let files =
        [("/loader/entries/m-1-1.conf", entry), ("/loader/entries/skipped-2.conf", "title x\n")];
    let script = "set kernelopts='root=x a'\nend=last\nfunction load_video {\n true\n}\nblscfg\n";
    let measured = red_hat(script, &files).unwrap();
    let expected = [
        "set kernelopts=root=x a",
        "end=last",
        "blscfg",
        "file (d)/loader/entries/m-1-1.conf",
        "file (d)/loader/entries/skipped-2.conf",
        "load_video",
        "true",
        "set gfxpayload=keep",
        "insmod gzio",
        "linux (d)/k root=x a ro last",
        "file (d)/k",
        "cmdline (d)/k root=x a ro last",
        "initrd (d)/i",
        "file (d)/i",
    ];
    assert_eq!(measured, expected);
    // Debian's GRUB has no such command.
    assert_eq!(run_with(script, &files).unwrap_err().1, "the command is not known here");
}

#[test]
fn options_that_an_entry_lacks_are_the_default_ones_and_there_is_another_folder() {
    let entry = "linux /k\n";
    let script = "default_kernelopts='one two'\nsave_default=true\nfunction savedefault {\n true\n}\nblscfg\n";
    let files = [("/boot/loader/entries/a-1-1.conf", entry)];
    assert_eq!(started(script, &files).unwrap(), "one two");
    let measured = red_hat(script, &files).unwrap();
    assert_eq!(measured[4..6], ["savedefault", "true"]);
    let both = [files[0], ("/loader/entries/b-1-1.conf", "linux /k\noptions first\n")];
    assert_eq!(started(script, &both).unwrap(), "first");
    let named = format!("blsdir=/elsewhere\n{script}");
    assert_eq!(started(&named, &[("/elsewhere/a-1.conf", entry), both[1]]).unwrap(), "one two");
}

#[test]
fn the_newest_boot_entry_is_the_first() {
    for (newer, older) in [
        ("6c-6.10.1-200.fc39.x86_64", "6c-6.9.12-200.fc39.x86_64"),
        ("6c-6.9.12-200.fc39", "6c-0-rescue"),
        ("6c-5.14.0-70.el9", "6c-5.14.0-7.el9"),
        ("6c-5.14.0-70.13.el9", "6c-5.14.0-70.el9"),
        ("6c-1.0-1", "6c-1.0~rc2-1"),
        ("6c-1.0+x-1", "6c-1.0-1"),
        ("6c-1.01-1", "6c-1.0-1"),
        ("b-1-1", "a-2-2"),
        ("6c-1-1", "ab-2-2"),
        ("a-1-1", "a-1"),
    ] {
        for names in [[newer, older], [older, newer]] {
            let entries = names.map(|name| {
                (format!("/loader/entries/{name}.conf"), format!("linux /k\noptions {name}\n"))
            });
            let files = entries.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
            assert_eq!(started("blscfg\n", &files).unwrap(), newer, "{older}");
        }
    }
    let same = [
        ("/loader/entries/a-1-1.conf", "linux /k\n"),
        ("/loader/entries/a-01-1.conf", "linux /k\n"),
    ];
    assert_eq!(red_hat("blscfg\n", &same).unwrap_err().1, "two boot entries have the same version");
}

#[test]
fn the_default_boot_entry_is_found_by_id_title_and_number() {
    let entry = |name: &str| format!("title T {name}\nlinux /k\noptions {name}\n");
    let [old, new] = [entry("6c2f-1-1"), entry("6c2f-2-1")];
    let files =
        [("/loader/entries/6c2f-1-1.conf", &*old), ("/loader/entries/6c2f-2-1.conf", &*new)];
    let menu = "blscfg\nmenuentry 'Other' --id 1 {\n linux ($root)/k other\n}\n";
    for (default, expected) in [
        ("", "6c2f-2-1"),
        ("6c2f-1-1", "6c2f-1-1"),
        ("T 6c2f-1-1", "6c2f-1-1"),
        ("6c2f-9-1", "6c2f-2-1"),
        ("2", "other"),
        ("0", "6c2f-2-1"),
        // An id, though it is a number.
        ("1", "other"),
        ("Other", "other"),
    ] {
        let script = format!("set default=\"{default}\"\n{menu}");
        assert_eq!(started(&script, &files).unwrap(), expected, "{default}");
    }
    for default in ["6c2f-1-1 x", "01", "0x1", "-1"] {
        assert!(
            started(&format!("set default=\"{default}\"\n{menu}"), &files).is_err(),
            "{default}"
        );
    }
}

#[test]
fn boot_entries_whose_effect_is_not_known_stop() {
    for entry in [
        "linux\t/k\n",
        "title\ta b\nlinux /k\n",
        "linux /k\noptions x\n",
        "linux /k\noptions ro$v x\n",
        "linux /k\noptions $\n",
        "linux /k\noptions a\\$bc\n",
        "linux /k\ndevicetree /d\n",
        "efi /k\n",
        "linux /k\noptions a|b\n",
        "title only\n",
    ] {
        let files = [("/loader/entries/a-1-1.conf", entry)];
        assert!(red_hat("blscfg\n", &files).is_err(), "{entry:?}");
    }
    let files = [("/loader/entries/a-1-1.conf", "linux /k\n")];
    assert!(red_hat("blscfg\n", &files).is_ok());
    assert!(red_hat("early_initrd=x\nblscfg\n", &files).is_err());
    assert!(red_hat("blscfg non-default\n", &files).is_err());
}

proptest! {
    #[test]
    fn no_script_makes_the_interpreter_panic(script in proptest::collection::vec(
        prop_oneof![
            Just("if "), Just("then\n"), Just("fi\n"), Just("{ "), Just("}\n"), Just("a=$a$a\n"),
            Just("true\n"), Just("function f "), Just("f\n"), Just("menuentry x "), Just("'"),
            Just("while "), Just("do\n"), Just("done\n"), Just("\""), Just("$"), Just("linux /k\n"),
        ],
        0..40,
    )) {
        let _ = run_with(&script.concat(), &[]);
    }
}
