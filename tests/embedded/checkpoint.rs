//! `CheckpointContainer`, with a real CRIU: the archive, what it is refused for, and that the container runs on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use smolet::cri::RuntimeError;
use smolet::proto::runtime::v1 as cri;

use super::machine::{Machine, exec, output, remove_sandbox, run_container, run_sandbox, script};

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
        let far = Path::new("/dev/shm").join(format!("smolet-checkpoint-{}.tar", std::process::id()));
        std::os::unix::fs::symlink(&other, &far).unwrap();
        checkpoint(&runtime, &id, &far).await.unwrap();
        let made = far.symlink_metadata().unwrap();
        assert!(made.is_file() && made.len() > 1000 && made.permissions().mode() & 0o777 == 0o600);
        std::fs::remove_file(&far).unwrap();
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
