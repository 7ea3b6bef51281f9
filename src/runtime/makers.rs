//! What works for a half-made container or sandbox when the agent has ended in the middle: its monitor, calls of the OCI runtime, CNI
//! plugins. I/O.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::command;
use super::context::Context;
use super::settings::Settings;
use crate::filesystem::read_start;
use crate::limits::{
    CONTAINER_CREATE_TIME, KIB, MAKERS_KILLS_MAX, MONITOR_END_PERIOD, PLUGIN_ENVIRONMENT_BYTES_MAX,
    RUNTIME_ENTRIES_READ_MAX,
};
use crate::monitor;

/// Number of a field of `/proc/PID/stat`, from 1.
const STAT_FLAGS: usize = 9;
/// A thread of the kernel (`include/linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;
const STAT_BYTES_MAX: usize = 4 * KIB;

/// Waits until a monitor that is still making a container has done so or given up. `dir` has the monitor's files.
pub(super) async fn wait(context: &Rc<Context>, dir: &Path) {
    let tries = CONTAINER_CREATE_TIME.as_millis() / MONITOR_END_PERIOD.as_millis();
    for _ in 0..tries {
        let dir = dir.to_owned();
        let is_making = context.blocking(move || {
            monitor::is_alive(&dir).unwrap_or_default() && monitor::init_of(&dir).ok().flatten().is_none()
        });
        if !is_making.await {
            break;
        }
        context.clock.sleep(MONITOR_END_PERIOD).await;
    }
}

/// The same, and kills what is left, its monitor too: afterwards nothing adds to the container any more, which is removed.
pub(super) async fn end(context: &Rc<Context>, id: &str, dir: &Path) {
    wait(context, dir).await;
    let (id, names) = (id.to_owned(), names(&context.settings));
    let known = names.clone();
    let may_be = move |name: &str| may_be_maker(name, &known);
    kill(context, ("cmdline", 4 * KIB), may_be, move |line| is_maker(line, &names, &id)).await;
}

/// Kills the CNI plugins that still work for a sandbox, with what they run: one that adds it to its network after it was released would
/// leave its address and its rules.
pub(super) async fn end_plugins(context: &Rc<Context>, id: &str) {
    let id = id.to_owned();
    // A plugin may have any name.
    let file = ("environ", PLUGIN_ENVIRONMENT_BYTES_MAX);
    kill(context, file, |_| true, move |environment| is_plugin(environment, &id)).await;
}

/// Ends the commands of a former agent in containers (`exec`), before there are any of this one: nobody reads their output, or waits for
/// their deadline, and one that computes is in the way of this agent's.
pub(super) async fn end_commands(context: &Rc<Context>) {
    let (names, dir) = (names(&context.settings), context.settings.containers_run());
    let ended = context.blocking(move || {
        let left = command::left(&dir);
        if left.is_empty() {
            return 0;
        }
        let known = names.clone();
        let mut found = Vec::new();
        for_each_process(("cmdline", 4 * KIB), &|name| may_be_maker(name, &known), &mut |pid, line| {
            if let Some(command) = command_of(line, &names, &dir)
                && found.len() < RUNTIME_ENTRIES_READ_MAX
            {
                found.push((pid, command));
            }
        });
        // A command descends from its keeper, and not from its OCI runtime, which may end before.
        for is_keeper in [true, false] {
            for (pid, command) in found.iter().filter(|(_, command)| command.is_keeper == is_keeper) {
                command::end_former(&command.pid_file, *pid);
            }
        }
        command::remove(left);
        found.len()
    });
    let ended = ended.await;
    if ended > 0 {
        log::info!(
            "commands in containers: {ended} of the agent before this one were ended; nobody reads their output any more"
        );
    }
}

/// Kills the processes whose file in `/proc/PID` is one of theirs, but not this one, until there is none: a process may start another
/// one behind the look, and one that is killed takes a moment to exit, on a busy machine a long one.
async fn kill(
    context: &Rc<Context>,
    (file, bytes): (&'static str, usize),
    may_be: impl Fn(&str) -> bool + Send + Sync + 'static,
    is_one: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) {
    let tests = Arc::new((may_be, is_one));
    let mut looks_without_one = 0;
    for _ in 0..MAKERS_KILLS_MAX {
        let tests = tests.clone();
        if context.blocking(move || kill_all((file, bytes), &tests.0, &tests.1)).await {
            looks_without_one = 0;
        } else {
            looks_without_one += 1;
            // While a process executes another program its file is empty.
            if looks_without_one == 2 {
                return;
            }
        }
        context.clock.sleep(MONITOR_END_PERIOD).await;
    }
}

/// True if there was one. Blocking.
fn kill_all(
    (file, bytes): (&str, usize),
    may_be: &dyn Fn(&str) -> bool,
    is_one: &dyn Fn(&[u8]) -> bool,
) -> bool {
    let mut killed = false;
    for_each_process((file, bytes), may_be, &mut |pid, text| {
        if is_one(text) {
            killed |= kill_process(pid, Signal::KILL).is_ok();
        }
    });
    killed
}

/// Tells of each process but this one the beginning of its file. Blocking.
fn for_each_process(
    (file, bytes): (&str, usize),
    may_be: &dyn Fn(&str) -> bool,
    told: &mut dyn FnMut(Pid, &[u8]),
) {
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|pid| *pid != getpid()) else { continue };
        // It may have ended: then there is nothing to read.
        let Ok(stat) = read_start(&entry.path().join("stat"), STAT_BYTES_MAX) else { continue };
        if !is_read(&stat, may_be) {
            continue;
        }
        let Ok(text) = read_start(&entry.path().join(file), bytes) else { continue };
        told(pid, &text);
    }
}

/// Whether the command line or the environment of a process is read, by its `/proc/PID/stat`: not of one of the kernel's, of one that
/// has exited, and of one that waits for a disk or a server only where its name says that it may be one of these: who reads its memory may
/// wait with it. PURE.
fn is_read(stat: &[u8], may_be: &dyn Fn(&str) -> bool) -> bool {
    if monitor::stat_field(stat, STAT_FLAGS).is_some_and(|flags| flags & PF_KTHREAD != 0) {
        return false;
    }
    match monitor::stat_state(stat) {
        Some(b'Z' | b'X') => false,
        Some(b'D') => {
            let text = String::from_utf8_lossy(stat);
            let name = text.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
            name.is_none_or(|(name, _)| may_be(name))
        }
        Some(_) | None => true,
    }
}

/// Whether a process with that name may work for a container: the kernel keeps 15 bytes, runc's own ones have other words behind it, and
/// what is executed from a descriptor has its number. PURE.
fn may_be_maker(name: &str, names: &[OsString]) -> bool {
    let begins = |of: &OsString| {
        let of = of.to_string_lossy();
        name.starts_with(of.get(..of.len().min(15)).unwrap_or_default())
    };
    names.iter().any(begins) || name.bytes().all(|byte| byte.is_ascii_digit())
}

/// File names of the programs that may work for a container. `exe` is that of `/proc/self/exe`. PURE.
fn names(settings: &Settings) -> Vec<OsString> {
    let known = ["runc", "crun", "youki", "smolet", "exe"].map(OsString::from);
    let of = |path: &PathBuf| path.file_name().map(ToOwned::to_owned);
    known.into_iter().chain(settings.handlers.values().filter_map(of)).chain(of(&settings.program)).collect()
}

/// Whether an environment is that of a CNI plugin which adds that sandbox. PURE.
fn is_plugin(environment: &[u8], id: &str) -> bool {
    let has = |name: &str, value: &str| {
        environment.split(|byte| *byte == 0).any(|one| one == format!("{name}={value}").as_bytes())
    };
    has("CNI_CONTAINERID", id) && has("CNI_COMMAND", "ADD")
}

/// Whether a command line is that of a program that works for the container: its id is among the arguments. PURE.
fn is_maker(line: &[u8], names: &[OsString], id: &str) -> bool {
    let words = words_of(line);
    is_program(&words, names) && words.iter().skip(1).any(|word| word.contains(id))
}

/// What runs a command in a container.
#[derive(Debug, PartialEq)]
struct OfCommand {
    /// The file with the command's process ID.
    pid_file: PathBuf,
    /// It is the command's keeper, and not its OCI runtime.
    is_keeper: bool,
}

/// What runs a command in a container whose bundle is below `dir`, by its command line ([`command::ContainerCommand::arguments`]). PURE.
fn command_of(line: &[u8], names: &[OsString], dir: &Path) -> Option<OfCommand> {
    let words = words_of(line);
    let after =
        |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1).map(|word| PathBuf::from(&**word));
    let files = [after("--process")?, after("--pid-file")?];
    let is_exec = is_program(&words, names) && words.iter().any(|word| word == "exec");
    let is_below = is_exec && files.iter().all(|file| file.starts_with(dir));
    let [_, pid_file] = files;
    is_below.then(|| OfCommand { pid_file, is_keeper: monitor::is_keeper(&words) })
}

fn words_of(line: &[u8]) -> Vec<Cow<'_, str>> {
    line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect()
}

/// A runtime may be a script, which is the second word.
fn is_program(words: &[Cow<'_, str>], names: &[OsString]) -> bool {
    let is_named =
        |word: &str| Path::new(word).file_name().is_some_and(|of| names.iter().any(|name| name == of));
    words.iter().take(2).any(|word| is_named(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_known_by_what_they_do_for_whom() {
        for (environment, is_one) in [
            ("PATH=/bin\0CNI_COMMAND=ADD\0CNI_CONTAINERID=abc\0", true),
            ("CNI_CONTAINERID=abc\0CNI_COMMAND=ADD", true),
            ("CNI_COMMAND=DEL\0CNI_CONTAINERID=abc\0", false),
            ("CNI_COMMAND=ADD\0CNI_CONTAINERID=abcd\0", false),
            ("", false),
        ] {
            assert_eq!(is_plugin(environment.as_bytes(), "abc"), is_one, "{environment:?}");
        }
    }

    #[test]
    fn a_stranger_that_waits_for_a_disk_is_not_read() {
        let names = ["runc", "a-runtime-with-a-long-name", "exe"].map(OsString::from);
        for (stat, expected) in [
            ("7 (a) b) S 1 7 7 0 -1 4194560 0", true),
            ("7 (postgres) D 1 7 7 0 -1 4194560 0", false),
            ("7 (runc:[2:INIT]) D 1 7 7 0 -1 4194560 0", true),
            ("7 (a-runtime-with-) D 1 7 7 0 -1 4194560 0", true),
            ("7 (6) D 1 7 7 0 -1 4194560 0", true),
            ("7 (runc) Z 1 7 7 0 -1 4194560 0", false),
            ("7 (runc) D 2 0 0 0 -1 2129984 0", false),
            ("", true),
        ] {
            assert_eq!(is_read(stat.as_bytes(), &|name| may_be_maker(name, &names)), expected, "{stat}");
        }
    }

    #[test]
    fn makers_are_the_programs_that_are_configured() {
        let mut settings = Settings::of_machine(
            Path::new("/r"),
            Path::new("/run"),
            Path::new("/opt/smolet-0.2"),
            Path::new("/c"),
        );
        settings.handlers.insert("youki".into(), "/opt/bin/youki".into());
        let names = names(&settings);
        let exec = "runc\0--root\0/run/oci\0exec\0--process\0/run/c/abc/exec-1.json\0--pid-file\0/run/c/abc/exec-1.pid\0abc\0";
        let found = |is_keeper| Some(OfCommand { pid_file: "/run/c/abc/exec-1.pid".into(), is_keeper });
        let of = |line: &str, dir: &str| command_of(line.as_bytes(), &names, Path::new(dir));
        assert_eq!(of(exec, "/run/c"), found(false));
        let kept = format!("smolet\0monitor\0--exec\0-5\0/run/c/abc/exec-1.pid\0/usr/bin/{exec}");
        assert_eq!(of(&kept, "/run/c"), found(true));
        assert!(of(&format!("/bin/sh\0{exec}"), "/run/c").is_some(), "a script that is a runtime");
        for (line, dir) in [
            (exec.to_owned(), "/run/other"),
            (exec.replace("runc", "cat"), "/run/c"),
            (exec.replace("\0exec\0", "\0create\0"), "/run/c"),
            (exec.replace("--pid-file", "--pid"), "/run/c"),
            (String::new(), "/run/c"),
        ] {
            assert_eq!(of(&line, dir), None, "{line:?}");
        }
        for (line, is_one) in [
            ("/usr/bin/runc\0--root\0/run\0create\0abc\0", true),
            ("/opt/bin/youki\0create\0abc\0", true),
            ("/bin/sh\0/opt/bin/youki\0create\0abc\0", true),
            ("/opt/smolet-0.2\0monitor\0/run/containers/abc\0", true),
            ("smolet\0monitor\0--held\0/run/containers/abc\0", true),
            ("/proc/self/exe\0init\0/x/abc", true),
            ("/usr/bin/runc\0create\0other\0", false),
            ("vi\0abc\0", false),
            ("abc\0", false),
            ("", false),
        ] {
            assert_eq!(is_maker(line.as_bytes(), &names, "abc"), is_one, "{line:?}");
        }
    }
}
