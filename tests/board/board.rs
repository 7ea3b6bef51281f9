//! A board: its boots, commands there, its pods, and the figures that are found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::runtime;

/// A boot, on a machine whose processors others use too.
const BOOT_SECONDS: u64 = 600;
/// Any one command there.
const COMMAND_SECONDS: u64 = 180;
/// Until pods are as their manifests say: five starts at once take half a minute.
pub const PODS_SECONDS: u64 = 600;

/// More pods that start or end at once make the deadlines of an emulated containerd expire, and then take minutes.
pub const AT_ONCE: usize = 3;

/// The demo's pods that stay.
pub const DEMO: [&str; 3] = ["prepared", "sidecar", "web"];

/// Ended when dropped, whatever has happened.
pub struct Board {
    dir: PathBuf,
    figures: RefCell<Vec<(String, String)>>,
    /// Manifests that are there, by name, with how many of their containers are to be ready; `None`: it is not to be waited for.
    wanted: RefCell<BTreeMap<String, Wanted>>,
    /// Of manifests that are set aside.
    aside: RefCell<BTreeMap<String, Wanted>>,
    seconds_to_ssh: Cell<f64>,
}

/// What is expected of a manifest's pod: READY and STATUS, as in the comment `# Expected:` of the demo's.
pub type Wanted = Option<String>;

/// One container's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    pub pod: String,
    pub uid: String,
    pub name: String,
    pub id: String,
    pub restarts: u64,
    pub ready: bool,
    /// RFC 3339, to the second; empty when it does not run.
    pub started_at: String,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Board {
    pub fn new() -> Self {
        let dir = root().join("target/tmp/board");
        let board = Self {
            dir,
            figures: RefCell::default(),
            wanted: RefCell::default(),
            aside: RefCell::default(),
            seconds_to_ssh: Cell::new(0.0),
        };
        // Of a run that was killed.
        board.script("down", &[]);
        board
    }

    fn command(&self, command: &str) -> Command {
        let mut script = Command::new(root().join("tests/env/board.sh"));
        script.arg(command).arg(&self.dir).stdin(Stdio::null());
        script
    }

    fn script(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.command(command).args(arguments).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "board.sh {command} {arguments:?}");
        text(&output).trim().to_owned()
    }

    /// Boots, with further arguments of the emulator.
    pub fn up(&self, arguments: &[&str]) {
        self.script("up", arguments);
    }

    /// Until ssh answers.
    pub fn wait(&self) {
        let seconds = self.script("wait", &[&BOOT_SECONDS.to_string()]);
        self.seconds_to_ssh.set(seconds.parse().unwrap());
    }

    /// How long the last boot took.
    pub fn seconds_to_ssh(&self) -> f64 {
        self.seconds_to_ssh.get()
    }

    /// The emulator dies, and with it what the disk had not flushed.
    pub fn cut(&self) {
        self.script("cut", &[]);
    }

    /// An orderly end of the machine by itself, so that it can be booted with other hardware.
    pub fn power_off(&self) {
        let _ = self.try_run("systemctl poweroff");
        let pid = fs::read_to_string(self.dir.join("pid")).unwrap_or_default();
        self.wait_for("the machine is off", 240, || {
            (!Path::new("/proc").join(pid.trim()).exists() || pid.is_empty()).then_some(())
        });
        self.cut();
    }

    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("console.log")).unwrap_or_default()).into_owned()
    }

    /// A word to the emulator's monitor, which answers with its prompt.
    pub fn monitor(&self, word: &str) {
        let mut stream = UnixStream::connect(self.dir.join("monitor")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut prompts = 0;
        let mut bytes = [0; 1024];
        writeln!(stream, "{word}").unwrap();
        while prompts < 2 {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the monitor hangs up");
            prompts += String::from_utf8_lossy(&bytes[..count]).matches("(qemu)").count();
        }
    }

    /// A shell command there; what it wrote, or what went wrong.
    pub fn try_run(&self, command: &str) -> Result<String, String> {
        self.try_run_with(command, Stdio::null())
    }

    fn try_run_with(&self, command: &str, input: Stdio) -> Result<String, String> {
        let mut within = Command::new("timeout");
        within.arg(COMMAND_SECONDS.to_string()).arg(root().join("tests/env/board.sh"));
        let output = within.arg("in").arg(&self.dir).arg(command).stdin(input).output().unwrap();
        if output.status.success() {
            return Ok(text(&output));
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{command}: {}: {}{errors}", output.status, text(&output)))
    }

    pub fn run(&self, command: &str) -> String {
        self.try_run(command).unwrap_or_else(|error| panic!("{error}")).trim().to_owned()
    }

    /// A file of this machine, there under another name until it is whole.
    pub fn upload(&self, from: &Path, to: &str) {
        let file = fs::File::open(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        let command = format!("cat >{to}.part && mv {to}.part {to}");
        self.try_run_with(&command, file.into()).unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn write(&self, to: &str, text: &str) {
        let from = self.dir.join("upload");
        fs::write(&from, text).unwrap();
        self.upload(&from, to);
    }

    pub fn wait_for<T>(&self, what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(seconds), "waited {seconds} s for {what}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// A manifest there. It is one of those that [`Self::wait_for_pods`] waits for unless `wanted` is `None`.
    pub fn put(&self, name: &str, text: &str, wanted: Wanted) {
        self.write(&format!("/etc/smolet/{name}.new"), text);
        // A power cut does not take it: it is its author's to have on the disk.
        self.run(&format!(
            "chmod 600 /etc/smolet/{name}.new && sync /etc/smolet/{name}.new && \
             mv /etc/smolet/{name}.new /etc/smolet/manifests/{name}.yaml && sync /etc/smolet/manifests"
        ));
        self.wanted.borrow_mut().insert(name.to_owned(), wanted);
    }

    /// A pod with this `spec`, whose one container is to be ready.
    pub fn put_pod(&self, name: &str, spec: &str) {
        let text = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n");
        self.put(name, &text, Some("1/1 Running".into()));
    }

    /// These manifests go, and their pods.
    pub fn remove(&self, names: &[&str]) {
        for some in names.chunks(AT_ONCE) {
            for name in some {
                self.run(&format!("rm /etc/smolet/manifests/{name}.yaml"));
                self.wanted.borrow_mut().remove(*name);
            }
            self.wait_for_end(some);
        }
    }

    fn wait_for_end(&self, names: &[impl AsRef<str>]) {
        self.wait_for("the end of pods", PODS_SECONDS, || {
            let pods = self.list();
            let is_there =
                |name: &str| pods.iter().any(|pod| pod["metadata"]["name"] == format!("{name}-board"));
            names.iter().all(|name| !is_there(name.as_ref())).then_some(())
        });
    }

    /// No pod is there until [`Self::put_back`].
    pub fn set_aside(&self) {
        self.run("mkdir /etc/smolet/aside && cp -p /etc/smolet/manifests/* /etc/smolet/aside/");
        self.aside.replace(self.wanted.borrow().clone());
        self.remove_all();
        assert_eq!(self.list(), [Value::Null; 0], "no pods");
    }

    /// Those of before, as they are wanted.
    pub fn put_back(&self) {
        let aside: Vec<_> = self.aside.borrow().clone().into_iter().collect();
        for some in aside.chunks(AT_ONCE) {
            for (name, wanted) in some {
                self.run(&format!(
                    "cp -p /etc/smolet/aside/{name}.yaml /etc/smolet/ && mv /etc/smolet/{name}.yaml /etc/smolet/manifests/"
                ));
                self.wanted.borrow_mut().insert(name.clone(), wanted.clone());
            }
            self.wait_for_pods();
        }
        self.run("rm -r /etc/smolet/aside");
        self.aside.take();
    }

    /// The settings as they are now are those that a failed step is followed by.
    pub fn keep_settings(&self) {
        self.run("cp -a /etc/smolet/config.yaml /root/; ! [ -e /etc/containerd/config.toml ] || cp -a /etc/containerd/config.toml /root/");
    }

    /// What a failed step has left is undone, pods with other names than these among it, so that it fails none of the next; false when the board no longer answers.
    pub fn settle(&self, names: &[String]) -> bool {
        let undo = "mount -o remount,rw /; rm -f /fill /fill-too; systemctl enable smolet; \
                    cp -a /root/config.yaml /etc/smolet/; ! [ -e /root/config.toml ] || cp -a /root/config.toml /etc/containerd/; \
                    if [ -d /etc/smolet/aside ]; then rm -f /etc/smolet/manifests/*; \
                    mv /etc/smolet/aside/* /etc/smolet/manifests/; rmdir /etc/smolet/aside; fi";
        let answers = self.try_run(undo).is_ok();
        if answers {
            runtime::restart(self);
        }
        if !self.aside.borrow().is_empty() {
            self.wanted.replace(self.aside.take());
        }
        for name in self.names().iter().filter(|name| !names.contains(name)) {
            let gone = format!(
                "rm /etc/smolet/manifests/{name}.yaml; n=0; while smolet pods | grep -qw '{name}-board' && [ $n -lt 120 ]; do sleep 1; n=$((n + 1)); done"
            );
            let _ = self.try_run(&gone);
            self.forget(name);
        }
        answers
    }

    pub fn remove_all(&self) {
        let names: Vec<String> = self.wanted.borrow().keys().cloned().collect();
        self.remove(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// It is not waited for any more.
    pub fn forget(&self, name: &str) {
        self.wanted.borrow_mut().remove(name);
    }

    pub fn names(&self) -> Vec<String> {
        self.wanted.borrow().keys().cloned().collect()
    }

    /// READY and STATUS of each pod. Empty while the agent does not answer.
    pub fn pods(&self) -> BTreeMap<String, String> {
        let table = self.try_run("smolet pods").unwrap_or_default();
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.len() > 3)
            .map(|row| (row[1].to_owned(), format!("{} {}", row[2], row[3])))
            .collect()
    }

    /// What is not as its manifest says; `None` when all is.
    pub fn unlike_wanted(&self) -> Option<String> {
        let pods = self.pods();
        let wanted = self.wanted.borrow();
        let mut unlike = Vec::new();
        for (name, wanted) in wanted.iter().filter_map(|(name, wanted)| Some((name, wanted.as_ref()?))) {
            let found = pods.get(&format!("{name}-board")).map_or("absent", String::as_str);
            // One that crashes runs for a moment between its waits, and one that was ended by a boot has an error until it runs again.
            let crashes = wanted.ends_with("CrashLoopBackOff")
                && ["Running", "Error"].iter().any(|word| found.ends_with(word));
            if found != wanted && !crashes {
                unlike.push(format!("{name}: {found}, not {wanted}"));
            }
        }
        (!unlike.is_empty()).then(|| unlike.join("; "))
    }

    pub fn wait_for_pods(&self) {
        let begun = Instant::now();
        while let Some(unlike) = self.unlike_wanted() {
            assert!(begun.elapsed().as_secs() < PODS_SECONDS, "after {PODS_SECONDS} s: {unlike}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    pub fn list(&self) -> Vec<Value> {
        let list = self.wait_for("the agent's answer", 120, || self.try_run("smolet pods -o json").ok());
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// All containers of all pods, init containers too.
    pub fn containers(&self) -> Vec<Container> {
        let mut all = Vec::new();
        for pod in self.list() {
            for list in ["initContainerStatuses", "containerStatuses"] {
                for status in pod["status"][list].as_array().into_iter().flatten() {
                    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    all.push(Container {
                        pod: word(&pod["metadata"]["name"]).trim_end_matches("-board").to_owned(),
                        uid: word(&pod["metadata"]["uid"]),
                        name: word(&status["name"]),
                        id: word(&status["containerID"]).rsplit('/').next().unwrap().to_owned(),
                        restarts: status["restartCount"].as_u64().unwrap(),
                        ready: status["ready"] == true,
                        started_at: word(&status["state"]["running"]["startedAt"]),
                    });
                }
            }
        }
        all
    }

    /// Those that run, but for what crashes on purpose.
    pub fn running(&self) -> Vec<Container> {
        let mut all = self.containers();
        all.retain(|container| !container.started_at.is_empty() && container.pod != "crash");
        all
    }

    pub fn container(&self, pod: &str) -> Container {
        let found = self.containers().into_iter().find(|container| container.pod == pod && container.ready);
        found.unwrap_or_else(|| panic!("{pod} is not ready"))
    }

    pub fn agent(&self) -> String {
        self.run("systemctl show --value -p MainPID smolet")
    }

    /// What the agent has said in this boot.
    pub fn log(&self) -> String {
        self.run("journalctl -u smolet -o cat --no-pager")
    }

    /// How long after the kernel's start the last container of the demo's pods started that runs.
    pub fn seconds_until_demo_ran(&self) -> i64 {
        let running = self.running().into_iter().filter(|container| DEMO.contains(&&*container.pod));
        let last = running.map(|container| container.started_at).max().expect("a container runs");
        let started: i64 = self.run(&format!("date -d {last} +%s")).parse().unwrap();
        let boot: i64 = self.run("awk '/^btime/ { print $2 }' /proc/stat").parse().unwrap();
        started - boot
    }

    pub fn figure(&self, what: &str, value: impl Into<String>) {
        let value = value.into();
        println!("  {what}: {value}");
        let mut figures = self.figures.borrow_mut();
        figures.retain(|(known, _)| known != what);
        figures.push((what.to_owned(), value));
    }

    pub fn print_figures(&self) {
        println!("\n| measured on the board | |\n|---|--:|");
        for (what, value) in self.figures.borrow().iter() {
            println!("| {what} | {value} |");
        }
        println!();
    }

    /// The ends of the logs there.
    pub fn last_words(&self) {
        let said = self.try_run("smolet pods; smolet events | tail -n 12; journalctl -u smolet -u containerd -o short --no-pager | tail -n 40");
        let console = self.console();
        let console: Vec<&str> = console.lines().rev().take(15).collect();
        println!("---- the board's last words\n{}", said.as_deref().unwrap_or_else(|error| error));
        println!("---- its console, newest first\n{}\n----", console.join("\n"));
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let down = self.command("down").status();
        assert!(std::thread::panicking() || down.unwrap().success());
    }
}
