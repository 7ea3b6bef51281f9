//! Devices without `privileged`: hostPath volumes of type CharDevice and BlockDevice.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::agent::{Agent, PATIENCE, container, id_of, waits_for};
use crate::exec;
use crate::runtime::{Runtime, wait_for};

/// Devices of this machine that no container may open by default: FUSE, the control of loop devices, a loop device.
const FUSE: (FileType, u32, u32) = (FileType::CharacterDevice, 10, 229);
const LOOP_CONTROL: (FileType, u32, u32) = (FileType::CharacterDevice, 10, 237);
const LOOP: (FileType, u32, u32) = (FileType::BlockDevice, 7, 0);
/// Before a sync that failed is tried again by itself.
const WITHOUT_RETRY: Duration = Duration::from_secs(8);

/// A directory of devices as udev makes it: links by id to nodes.
struct Dev(PathBuf);

impl Dev {
    fn new(agent: &Agent) -> Self {
        let dir = agent.dir.join("dev");
        fs::create_dir_all(dir.join("by-id")).expect("a directory");
        Self(dir)
    }

    fn plug_in(&self, node: &str, name: &str, (kind, major, minor): (FileType, u32, u32)) {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, self.0.join(node), kind, mode, makedev(major, minor)).expect("mknod needs root");
        fs::create_dir_all(self.0.join("by-id")).expect("a directory");
        symlink(format!("../{node}"), self.by_id(name)).expect("a link");
    }

    fn unplug(&self, node: &str, name: &str) {
        fs::remove_file(self.by_id(name)).expect("the link");
        // udev removes it with its last link.
        let _ = fs::remove_dir(self.0.join("by-id"));
        fs::remove_file(self.0.join(node)).expect("the node");
    }

    fn by_id(&self, name: &str) -> PathBuf {
        self.0.join("by-id").join(name)
    }
}

/// A pod whose container says which device it has and whether it can open it, again and again.
fn pod(path: &Path, kind: &str, read_only: bool) -> String {
    format!(
        r#"
  terminationGracePeriodSeconds: 1
  volumes:
  - {{name: out, hostPath: {{path: $OUT, type: Directory}}}}
  - {{name: device, hostPath: {{path: {}, type: {kind}}}}}
  containers:
  - name: app
    image: smolet.test/busybox:1
    command:
    - sh
    - -c
    - |
      trap 'exit 0' TERM
      mknod /other c 10 235; (: </other) 2>/dev/null && echo open >/out/other || echo closed >/out/other
      while :; do
        read=closed; write=closed
        (: </dev/mine) 2>/dev/null && read=open
        (: >>/dev/mine) 2>/dev/null && write=open
        echo "$(stat -c %t:%T /dev/mine) $read $write" >/out/new && mv /out/new /out/state
        sleep 0.1
      done
    volumeMounts:
    - {{name: out, mountPath: /out}}
    - {{name: device, mountPath: /dev/mine, readOnly: {read_only}}}
"#,
        path.display()
    )
}

fn says(agent: &Agent, state: &str) {
    wait_for(&format!("the container says {state}"), PATIENCE, || {
        (agent.read_out("state").trim() == state).then_some(())
    });
}

pub fn a_device_is_open_to_the_container_that_mounts_it(runtime: &Runtime) {
    let agent = Agent::started(runtime, "devices");
    let dev = Dev::new(&agent);
    dev.plug_in("fuse", "fuse", FUSE);
    dev.plug_in("disk", "disk", LOOP);
    agent.apply_pod("app", &pod(&dev.by_id("fuse"), "CharDevice", false));
    agent.running("app");
    says(&agent, "a:e5 open open");
    assert_eq!(agent.read_out("other").trim(), "closed", "no other device of the node");
    agent.delete("app");
    agent.wait_gone("app");

    agent.apply_pod("reader", &pod(&dev.by_id("fuse"), "CharDevice", true));
    agent.running("reader");
    says(&agent, "a:e5 open closed");
    agent.delete("reader");
    agent.wait_gone("reader");

    agent.apply_pod("disk", &pod(&dev.by_id("disk"), "BlockDevice", true));
    agent.running("disk");
    says(&agent, "7:0 open closed");
    agent.end_pods();
}

pub fn a_device_that_comes_and_changes_is_usable_soon(runtime: &Runtime) {
    let agent = Agent::started(runtime, "plugged");
    let dev = Dev::new(&agent);
    let path = dev.by_id("adapter");
    fs::remove_dir(dev.0.join("by-id")).expect("there is no device with an id yet");
    agent.apply_pod("app", &pod(&path, "CharDevice", false));
    let missing = format!("hostPath type check failed: {} does not exist", path.display());
    wait_for("the pod says what it waits for", PATIENCE, || {
        let page = agent.ask(&["describe", "app"]);
        String::from_utf8_lossy(&page.stdout).contains(&missing).then_some(())
    });
    let (at, plugged) = (Instant::now(), UNIX_EPOCH.elapsed().expect("after 1970"));
    dev.plug_in("one", "adapter", FUSE);
    let first = agent.running("app");
    says(&agent, "a:e5 open open");
    println!("  plugged in, used {:.2} s later", at.elapsed().as_secs_f64());
    // Its sandbox is what comes next: all of the start may take long on a busy machine.
    let made = runtime.ready_sandbox(&agent.full("app")).created_at.0;
    let late = made - i64::try_from(plugged.as_nanos()).expect("before 2262");
    let without_retry = i64::try_from(WITHOUT_RETRY.as_nanos()).expect("short");
    assert!((0..without_retry).contains(&late), "its sync was tried again at once, not after {late} ns");

    // Gone and there again with the numbers that it had: nothing is to be done.
    dev.unplug("one", "adapter");
    dev.plug_in("two", "adapter", FUSE);
    std::thread::sleep(Duration::from_secs(1));
    says(&agent, "a:e5 open open");
    assert_eq!(id_of(&agent.running("app"), "app"), id_of(&first, "app"), "it was not restarted");

    let at = Instant::now();
    dev.unplug("two", "adapter");
    dev.plug_in("three", "adapter", LOOP_CONTROL);
    says(&agent, "a:ed open open");
    println!("  back with other numbers, used {:.2} s later", at.elapsed().as_secs_f64());
    let page = String::from_utf8_lossy(&agent.ask(&["describe", "app"]).stdout).into_owned();
    assert!(page.contains("a device volume has another device now, will be restarted"), "{page}");
    agent.end_pods();
}

/// With the pod's annotation the container runs on where it can be given another device: with cgroup v1.
pub fn a_device_that_changes_is_given_to_the_running_container(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "given");
    let dev = Dev::new(&agent);
    dev.plug_in("one", "adapter", FUSE);
    let text = agent.pod_text("app", &pod(&dev.by_id("adapter"), "CharDevice", false));
    let annotated = "metadata:\n  annotations: {smolet.io/device-change: update}\n";
    agent.apply("app", &text.replace("metadata:\n", annotated));
    let first = agent.running("app");
    says(&agent, "a:e5 open open");
    let at = Instant::now();
    dev.unplug("one", "adapter");
    dev.plug_in("two", "adapter", LOOP_CONTROL);
    says(&agent, "a:ed open open");
    let took = at.elapsed();
    let runs_on = Path::new("/sys/fs/cgroup/devices").exists();
    println!(
        "  other numbers with the annotation, used {:.2} s later; runs on: {runs_on}",
        took.as_secs_f64()
    );
    let id = |status: &_| id_of(status, "app");
    assert_eq!(
        id(&agent.running("app")) == id(&first),
        runs_on,
        "restarted only where there is no cgroup v1"
    );
    if !runs_on {
        return agent.end_pods();
    }
    assert!(took < Duration::from_secs(2), "{took:?}");
    let page = String::from_utf8_lossy(&agent.ask(&["describe", "app"]).stdout).into_owned();
    assert!(page.contains("runs on with other devices: c 10:237"), "{page}");
    let script = "mknod /old c 10 229 && { (: </old) 2>/dev/null && echo open || echo closed; }; grep -c /dev/mine /proc/mounts";
    let (_, said, why) = exec::run(&agent, &["exec", "app", "--", "sh", "-c", script]);
    assert_eq!(said, "closed\n0\n", "what it had is closed, and nothing is mounted there: {why}");

    // Back as the first one while no agent looks.
    agent.stop();
    dev.unplug("two", "adapter");
    dev.plug_in("three", "adapter", FUSE);
    agent.start();
    says(&agent, "a:e5 open open");
    assert_eq!(id(&agent.running("app")), id(&first), "it has run on");
    agent.end_pods();
}

/// A program that ends without its adapter does not wait for the crash back-off once that is there again.
pub fn a_device_that_comes_back_ends_the_crash_back_off(runtime: &Runtime) {
    let agent = Agent::started(runtime, "replugged");
    let dev = Dev::new(&agent);
    dev.plug_in("one", "adapter", FUSE);
    let spec = pod(&dev.by_id("adapter"), "CharDevice", false)
        .replace("      while :; do\n", "      while [ ! -e /out/fails ]; do\n");
    agent.apply_pod("app", &spec);
    agent.running("app");
    fs::write(agent.out().join("fails"), "").expect("written");
    // Of 10 s, then of 20 s.
    for restarts in [1, 2] {
        agent.wait_pod("app", "in its crash back-off", |status| {
            waits_for(status, "app") == Some("CrashLoopBackOff")
                && container(status, "app").is_some_and(|app| app.restart_count == restarts)
        });
    }
    fs::remove_file(agent.out().join("fails")).expect("removed");
    let at = Instant::now();
    dev.unplug("one", "adapter");
    dev.plug_in("two", "adapter", LOOP_CONTROL);
    says(&agent, "a:ed open open");
    let late = at.elapsed();
    println!("  back while its program waited to be started again, used {:.2} s later", late.as_secs_f64());
    assert!(late < Duration::from_secs(15), "it has not waited: {late:?}");
    agent.end_pods();
}
