//! `CheckpointContainer`, with a real CRIU: the archive, what it is refused for, and that the container runs on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use serde_json::Value;
use smolet::cri::RuntimeError;
use smolet::proto::runtime::v1 as cri;

use super::machine::{
    Machine, container_of, exec, output, remove_sandbox, run_container, run_sandbox, script, until,
};

/// Set in a process that is killed while it makes checkpoints: the machine's directory, its number, and the container.
const VICTIM: &str = "SMOLET_TEST_CHECKPOINT_VICTIM";

/// Instants at which it is killed.
const ROUNDS: u64 = 8;

async fn checkpoint(runtime: &smolet::runtime::Embedded, id: &str, to: &Path) -> Result<(), RuntimeError> {
    let request = cri::CheckpointContainerRequest {
        container_id: id.to_owned(),
        location: to.display().to_string(),
        timeout: 60,
    };
    runtime.checkpoint_container_cri(request).await.map(drop)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_container_is_in_an_archive_and_runs_on() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("checkpoint")).await;
        let id = run_container(
            &runtime,
            &sandbox,
            script("app", "echo begun; echo kept >/tmp/kept; exec sleep 1000"),
        )
        .await;
        let (archive, dir) = (machine.root.join("checkpoint.tar"), machine.root.join("unpacked"));
        checkpoint(&runtime, &id, &archive).await.unwrap();
        assert_eq!(std::fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::create_dir(&dir).unwrap();
        output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&dir));
        let config = json(&dir.join("config.dump"));
        assert_eq!((&config["id"], &config["name"]), (&Value::from(&*id), &Value::from("app")));
        assert_eq!(config["rootfsImageName"], "docker.io/library/busybox:1");
        assert_eq!(json(&dir.join("status.dump"))["state"], cri::ContainerState::ContainerRunning as i32);
        let arguments = json(&dir.join("spec.dump"))["process"]["args"].to_string();
        assert!(arguments.contains("exec sleep 1000"), "{arguments}");
        assert!(dir.join("checkpoint/pstree.img").metadata().unwrap().len() > 0);
        assert!(dir.join("stats-dump").exists() && dir.join("dump.log").exists());
        let log = std::fs::read_to_string(dir.join("container.log")).unwrap();
        assert!(log.ends_with(" F begun\n"), "{log}");
        let names = output(Command::new("tar").arg("-tf").arg(dir.join("rootfs-diff.tar")));
        assert!(names.lines().any(|name| name == "./kept"), "{names}");
        // Nothing of it stays beside the archive, and the container has not noticed.
        let left = |name: &str| machine.root.join("state").join(name).exists();
        assert!(!left("checkpoint") && !left("checkpoint.tar"));
        let status = cri::ContainerStatusRequest { container_id: id.clone(), verbose: false };
        let status = runtime.container_status_cri(status).await.unwrap().status.unwrap();
        assert_eq!((status.state(), status.exit_code), (cri::ContainerState::ContainerRunning, 0));
        assert_eq!(exec(&runtime, &id, "cat /tmp/kept").await.unwrap().stdout, b"kept\n");

        // An archive that is there is replaced, and a link is not followed.
        let (link, other) = (machine.root.join("link.tar"), machine.root.join("other"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        for location in [&archive, &link] {
            checkpoint(&runtime, &id, location).await.unwrap();
            assert!(location.symlink_metadata().unwrap().is_file());
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"kept");
        // On another file system too.
        let far_dir = Path::new("/dev/shm").join(format!("smolet-checkpoint-{}", std::process::id()));
        std::fs::create_dir(&far_dir).unwrap();
        std::fs::write(far_dir.join(".smolet-checkpoint.tar"), "part of one").unwrap();
        let far = far_dir.join("a.tar");
        std::os::unix::fs::symlink(&other, &far).unwrap();
        checkpoint(&runtime, &id, &far).await.unwrap();
        let made = far.symlink_metadata().unwrap();
        assert!(made.is_file() && made.len() > 1000 && made.permissions().mode() & 0o777 == 0o600);
        assert_eq!(std::fs::read_dir(&far_dir).unwrap().count(), 1, "nothing beside it");
        std::fs::remove_dir_all(&far_dir).unwrap();
        let times = cri::CheckpointContainerRequest {
            container_id: id.clone(),
            location: archive.display().to_string(),
            timeout: -1,
        };
        let negative = runtime.checkpoint_container_cri(times).await.unwrap_err();
        assert!(negative.to_string().contains("timeout -1 is negative"), "{negative}");
        let missing = checkpoint(&runtime, &id, Path::new("/no/such/directory/a.tar")).await.unwrap_err();
        assert!(missing.to_string().contains("/no/such/directory"), "{missing}");
        let relative = checkpoint(&runtime, &id, Path::new("a.tar")).await.unwrap_err();
        assert!(relative.to_string().contains("is no absolute path of a file"), "{relative}");
        let stop = cri::StopContainerRequest { container_id: id.clone(), timeout: 0 };
        runtime.stop_container_cri(stop).await.unwrap();
        let ended = checkpoint(&runtime, &id, &archive).await.unwrap_err();
        assert!(ended.to_string().contains("only a container that runs has one"), "{ended}");
        let unknown = checkpoint(&runtime, "none", &archive).await;
        assert!(matches!(unknown, Err(RuntimeError::NotFound(_))), "{unknown:?}");
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// Nothing of a checkpoint is beside the runtime's records, and its container runs: it answers, and its log grows.
async fn assert_untouched(machine: &Machine, runtime: &smolet::runtime::Embedded, id: &str) {
    let left = |name: &str| machine.root.join("state").join(name).exists();
    // What outlived a killed agent may still have begun.
    until("nothing of it", async || !left("checkpoint") && !left("checkpoint.tar")).await;
    let status = container_of(runtime, id).await;
    assert_eq!((status.state(), status.exit_code), (cri::ContainerState::ContainerRunning, 0));
    assert_eq!(exec(runtime, id, "echo here").await.unwrap().stdout, b"here\n");
    let lines = || std::fs::read_to_string(&status.log_path).unwrap().lines().count();
    let before = lines();
    until("a further line", async || lines() > before).await;
}

#[test]
fn a_checkpoint_that_criu_gives_up_leaves_the_container_as_it_was() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("checkpoint")).await;
        // CRIU has frozen the container when it meets a removed file of more than a megabyte that is open.
        let app = "exec 3>/big; head -c 3000000 /dev/zero >&3; rm /big; touch /begun
                   while :; do echo tick; test -e /close && exec 3>&-; sleep 0.1; done";
        let id = run_container(&runtime, &sandbox, script("app", app)).await;
        let archive = machine.root.join("checkpoint.tar");
        until("the file", async || exec(&runtime, &id, "test -e /begun").await.unwrap().exit_code == 0).await;
        let refused = checkpoint(&runtime, &id, &archive).await.unwrap_err().to_string();
        assert!(refused.starts_with(&format!("checkpoint of container {id}: ")), "{refused}");
        assert!(refused.contains(": CRIU: ") && refused.contains("ghost file"), "{refused}");
        assert!(!archive.exists());
        assert_untouched(&machine, &runtime, &id).await;
        exec(&runtime, &id, "touch /close; sleep 0.5").await.unwrap();
        checkpoint(&runtime, &id, &archive).await.unwrap();
        assert_untouched(&machine, &runtime, &id).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// Not a test of its own: what the process does that [`an_agent_killed_meanwhile_leaves_the_container_as_it_was`] kills.
#[test]
fn victim() {
    let Ok(place) = std::env::var(VICTIM) else { return };
    let [number, id, root] = place.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let machine = Machine::beside(PathBuf::from(root), number.parse().unwrap());
    machine.run(async {
        let runtime = machine.open().await;
        loop {
            checkpoint(&runtime, id, &machine.root.join("checkpoint.tar")).await.unwrap();
        }
    });
}

/// CRIU of that machine, as long as it runs.
fn criu_of(machine: &Machine) -> Vec<Pid> {
    let root = machine.root.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let is_criu = |pid: &Pid| {
        let of =
            |file: &str| std::fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
        let (name, line) = (of("comm"), String::from_utf8_lossy(&of("cmdline")).into_owned());
        name.starts_with(b"criu")
            || (line.contains("checkpoint") && line.contains(&root) && name == b"runc\n")
    };
    pids.filter(is_criu).collect()
}

#[test]
fn what_a_killed_agents_programs_make_later_is_removed_too() {
    let machine = Machine::new();
    let rest = machine.root.join("state/checkpoint");
    std::fs::create_dir_all(&rest).unwrap();
    machine.run(async {
        let _runtime = machine.open().await;
        assert!(!rest.exists());
        // runc and tar have just begun.
        let archive = rest.with_extension("tar");
        std::fs::create_dir_all(rest.join("checkpoint")).unwrap();
        std::fs::write(&archive, "part of one").unwrap();
        until("nothing of it", async || !rest.exists() && !archive.exists()).await;
    });
    machine.assert_clean();
}

#[test]
fn an_agent_killed_meanwhile_leaves_the_container_as_it_was() {
    let machine = Machine::new();
    let (sandbox, id) = machine.run(async {
        let runtime = machine.open().await;
        let sandbox = run_sandbox(&runtime, machine.pod("checkpoint")).await;
        // Of some size, so that CRIU takes a while.
        let app = script(
            "app",
            "x=$(head -c 30000000 /dev/zero | tr '\\0' x); while :; do echo tick; sleep 0.1; done",
        );
        let id = run_container(&runtime, &sandbox, app).await;
        (sandbox, id)
    });
    for round in 0..ROUNDS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoint::victim", "--nocapture"])
            .env(VICTIM, format!("{} {id} {}", machine.number, machine.root.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + (round * 211) % 900));
        assert!(victim.try_wait().unwrap().is_none(), "it makes checkpoints until it is killed");
        victim.kill().unwrap();
        victim.wait().unwrap();
        machine.run(async {
            let runtime = machine.open().await;
            let left = criu_of(&machine);
            until("CRIU's end", async || left.iter().all(|pid| test_kill_process(*pid).is_err())).await;
            assert_untouched(&machine, &runtime, &id).await;
        });
    }
    machine.run(async {
        let runtime = machine.open().await;
        checkpoint(&runtime, &id, &machine.root.join("checkpoint.tar")).await.unwrap();
        assert_untouched(&machine, &runtime, &id).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean_soon();
}
