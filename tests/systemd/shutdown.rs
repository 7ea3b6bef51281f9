//! The machine ends: a real logind waits for the pods.

use std::fs;

use rustix::process::Signal;

use crate::{Agent, World, has_version_1, text, wait_for};

/// The bus, logind and what it starts in the end; nothing of the machine's.
const UNITS: [(&str, &str); 4] = [
    ("dbus.socket", "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n"),
    (
        "dbus.service",
        "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\n[Service]\n\
         ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation\n",
    ),
    (
        "systemd-logind.service",
        "[Unit]\nDefaultDependencies=no\nRequires=dbus.service\nAfter=dbus.service\n[Service]\nType=dbus\n\
         BusName=org.freedesktop.login1\nExecStart=/lib/systemd/systemd-logind\n",
    ),
    ("reboot.target", "[Unit]\nDefaultDependencies=no\n"),
];

fn systemctl(world: &World, words: &[&str]) {
    text(&world.program("systemctl").args(words).output().unwrap());
}

#[test]
fn the_machine_ends_when_its_pods_have_ended() {
    let world = World::up("systemd-shutdown", if has_version_1() { "v1" } else { "v2" });
    world.start_runtime();
    for (name, unit) in UNITS {
        fs::write(world.dir.join("units").join(name), unit).unwrap();
    }
    // logind waits for five seconds at most, as it is shipped: a busy machine takes longer to end a container.
    let settings = world.path("/run/systemd/logind.conf.d");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("test.conf"), "[Login]\nInhibitDelayMaxSec=60\n").unwrap();
    systemctl(&world, &["daemon-reload"]);
    systemctl(&world, &["start", "systemd-logind.service"]);

    let agent = Agent::start_with(&world, &["--shutdown-grace-period", "50s"]);
    wait_for("the lock", || {
        let locks = text(&world.program("systemd-inhibit").arg("--list").output().unwrap());
        locks.lines().any(|line| line.contains("smolet") && line.ends_with("delay")).then_some(())
    });
    let out = world.dir.join("ends");
    fs::create_dir(&out).unwrap();
    let ends = || fs::read_to_string(out.join("ends")).unwrap_or_default();
    agent.put_text(
        "web",
        &format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{hostNetwork: true, \
             containers: [{{name: c, image: 'smolet.test/busybox:1', command: [sh, -c, \
             'trap \"sleep 1; echo ended >>/out/ends; exit 0\" TERM; while :; do sleep 0.1; done'], \
             volumeMounts: [{{name: out, mountPath: /out}}]}}], \
             volumes: [{{name: out, hostPath: {{path: {}}}}}]}}}}",
            out.display()
        ),
    );
    agent.running("web");

    let login = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"];
    text(&world.program("busctl").arg("call").args(login).args(["Reboot", "b", "false"]).output().unwrap());
    wait_for("logind goes on", || {
        (world.show("reboot.target", &["ActiveState"]) == ["active"]).then_some(())
    });
    assert_eq!(ends(), "ended\n", "the pod had ended before");
    // Here nothing comes of it, which logind tells too: the pod is kept again, and the next end waited for.
    wait_for(&format!("the pod's return; {}", agent.log()), || {
        agent.log().contains("node shutdown cancelled").then_some(())
    });
    agent.running("web");
    let log = agent.log();
    assert!(
        log.contains("node shutdown: releasing the delay lock of logind")
            && !log.contains("InhibitDelayMaxSec"),
        "{log}"
    );

    // Nor does the machine end now.
    agent.signal(Signal::TERM);
    agent.wait();
    assert_eq!(ends(), "ended\n");
}
