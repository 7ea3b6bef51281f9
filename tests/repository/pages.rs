//! Man pages and completions, made from the command line's own definition, so that they say what the program does. A test makes
//! them and not the program, which stays small so; with `SMOLET_PAGES=DIR` they are written there, for the packages
//! (`make packages`).

#![cfg(target_arch = "x86_64")]
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap_complete::Shell;
use clap_mangen::Man;
use smolet::config::paths;

/// Section 8: for who runs the machine.
const SECTION: &str = "8";

/// What is said beside the commands, on the page of them all.
fn more() -> String {
    let files = [
        ("/etc/smolet/config.yaml", "settings of the service (KubeletConfiguration)"),
        ("/etc/default/smolet", "more arguments of the service"),
        (paths::MANIFESTS, "manifests of pods, and the ConfigMaps and Secrets that they name"),
        (
            paths::ROOT_DIR,
            "the agent's state and the pods' volumes; image archives are imported from images/ there",
        ),
        (paths::SOCKET, "where the agent answers the other commands; root's alone"),
        (paths::POD_LOGS, "what containers write, by pod"),
        (paths::CONTAINER_LOGS, "links to it, by container"),
    ];
    let environment = [
        ("SMOLET_LOG", "what the agent logs: error, warn, info, debug, trace or off"),
        ("CONTAINER_RUNTIME_ENDPOINT", "the runtime's CRI socket, unless an argument names it"),
        ("NO_COLOR", "no colours on a terminal"),
        (
            "NOTIFY_SOCKET, WATCHDOG_USEC",
            "where the agent says that it is ready and that it lives (sd_notify(3))",
        ),
    ];
    let mut text = String::new();
    for (title, rows) in [("FILES", &files[..]), ("ENVIRONMENT", &environment[..])] {
        let _ = writeln!(text, ".SH {title}");
        for (name, what) in rows {
            let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", name.replace('-', "\\-"), what.replace('-', "\\-"));
        }
    }
    text.push_str(".SH \"SEE ALSO\"\n.BR crictl (1),\n.BR systemctl (1)\n");
    text
}

/// Name of the file → what is in it.
fn pages() -> BTreeMap<String, String> {
    let mut whole = smolet::cli::command();
    whole.build();
    let page = |name: &str, command: &clap::Command, more: &str| {
        let mut text = Vec::<u8>::new();
        let man = Man::new(command.clone())
            .title(name.to_ascii_uppercase())
            .section(SECTION)
            .source(concat!("smolet ", env!("CARGO_PKG_VERSION")))
            .manual("System Administration");
        man.render(&mut text).expect("it is written into memory");
        (format!("{name}.{SECTION}"), String::from_utf8(text).unwrap() + more)
    };
    let mut pages = BTreeMap::from([page("smolet", &whole, &more())]);
    for command in whole.get_subcommands() {
        pages.extend([page(&format!("smolet-{}", command.get_name()), command, "")]);
    }
    for (shell, file) in [(Shell::Bash, "smolet.bash"), (Shell::Zsh, "_smolet"), (Shell::Fish, "smolet.fish")]
    {
        let mut text = Vec::<u8>::new();
        clap_complete::generate(shell, &mut smolet::cli::command(), "smolet", &mut text);
        pages.insert(file.to_owned(), String::from_utf8(text).unwrap());
    }
    pages
}

/// A folder of this test's own below the build's.
fn written(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    write_to(&directory);
    directory
}

fn write_to(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, text) in pages() {
        std::fs::write(directory.join(name), text).unwrap();
    }
}

#[test]
fn they_are_written_where_the_packages_look_for_them() {
    if let Some(directory) = std::env::var_os("SMOLET_PAGES") {
        write_to(Path::new(&directory));
    }
}

#[test]
fn every_command_has_a_page_with_every_argument() {
    let mut whole = smolet::cli::command();
    whole.build();
    let pages = pages();
    let page = |name: &str| pages[&format!("{name}.{SECTION}")].replace("\\-", "-");
    let all = page("smolet");
    for command in whole.get_subcommands() {
        let name = format!("smolet-{}", command.get_name());
        assert!(all.contains(&name), "the page of all commands names {name}");
        let page = page(&name);
        assert!(page.contains(&format!("smolet {}", command.get_name())), "{name}: its synopsis\n{page}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let shown = match argument.get_long() {
                Some(long) => format!("--{long}"),
                None => argument.get_value_names().expect("what has no long name has a place")[0].to_string(),
            };
            assert!(page.contains(&shown), "{name}: {shown}\n{page}");
        }
    }
    for path in [paths::MANIFESTS, paths::ROOT_DIR, paths::SOCKET] {
        assert!(all.contains(path), "{path}");
    }
}

#[test]
fn bash_completes_commands_and_arguments() {
    let file = written("pages-bash").join("smolet.bash");
    let completed = |words: &str, last: usize| {
        let script = format!(
            "set -eu; source {}; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _smolet smolet \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &script]).output().expect("bash runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed("smolet des", 1), "describe");
    assert_eq!(completed("smolet run --cgroup-d", 2), "--cgroup-driver");
    assert_eq!(completed("smolet run --cgroup-driver c", 3), "cgroupfs");
}
