use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::clock::VirtualClock;
use crate::limits::OUTSIDE_JOBS_MAX;
use crate::model::Wall;

fn on_threads() -> (Blocking, VirtualClock) {
    let clock = VirtualClock::new(Wall(0));
    (Blocking::on_threads(Rc::new(clock.clone()), Path::new("/own")), clock)
}

/// Work that hangs until the sender is dropped.
fn hang() -> (mpsc::Sender<()>, impl FnOnce() + Send) {
    let (go, wait) = mpsc::channel::<()>();
    (go, move || {
        let _ = wait.recv();
    })
}

/// Polls `future` until so many threads are at paths, lets the deadline pass, and returns its output.
async fn given_up<T>(
    blocking: &Blocking,
    clock: &VirtualClock,
    threads: usize,
    future: impl Future<Output = T>,
) -> T {
    let passes = async {
        while blocking.held().0 < threads {
            smol::future::yield_now().await;
        }
        clock.advance(OUTSIDE_PATIENCE);
        std::future::pending().await
    };
    smol::future::or(future, passes).await
}

/// Work of a cancelled task ends before the pod's next work begins; other pods' work does not wait.
#[test]
fn the_work_for_one_pod_is_serialized() {
    let (blocking, _) = on_threads();
    let (pod, other) = (PodUid::from("u"), PodUid::from("v"));
    let order = Arc::new(Mutex::new(Vec::new()));
    let (go, wait) = mpsc::channel::<()>();
    smol::block_on(async {
        let first = order.clone();
        let begun = blocking.run_for(&pod, move || {
            lock(&first).push("begun");
            let _ = wait.recv();
            lock(&first).push("over");
        });
        let begun = async { begun.await.unwrap() };
        let cancelled = async {
            while lock(&order).is_empty() {
                smol::future::yield_now().await;
            }
        };
        smol::future::or(begun, cancelled).await;
        let (of_other, next) = (order.clone(), order.clone());
        blocking.run_for(&other, move || lock(&of_other).push("another's")).await.unwrap();
        go.send(()).unwrap();
        blocking.run_for(&pod, move || lock(&next).push("next")).await.unwrap();
    });
    assert_eq!(*lock(&order), ["begun", "another's", "over", "next"]);
    // The first thread may release its permit a moment before it drops its guard; later work shows that it has.
    let begun = Instant::now();
    while !blocking.pods.borrow().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the pods' locks are removed");
        smol::block_on(blocking.run_for(&other, || ())).unwrap();
    }
}

#[test]
fn a_path_that_hangs_takes_one_permit_and_is_accessed_again_when_it_answers() {
    let (blocking, clock) = on_threads();
    let path = Path::new("/mnt/away");
    let hangs = Err(Stuck::Hangs(path.to_owned()));
    let (go, work) = hang();
    smol::block_on(async {
        let late = given_up(&blocking, &clock, 1, blocking.run_outside(path, work)).await;
        assert_eq!(late, hangs);
        assert_eq!(blocking.held(), (1, path.as_os_str().len()), "its thread is counted");
        // No second thread, and no second wait: the clock stands still here.
        assert_eq!(blocking.run_outside(path, || ()).await, hangs);
        assert_eq!(blocking.run_outside(Path::new("/mnt/there"), || 7).await, Ok(7));
        // All permits of smolet's own paths are free.
        for _ in 0..=BLOCKING_JOBS_MAX {
            blocking.run(|| ()).await;
        }
        drop(go);
        while blocking.held().0 > 0 {
            smol::future::yield_now().await;
        }
        assert_eq!(blocking.run_outside(path, || 8).await, Ok(8));
    });
    assert!(blocking.paths.borrow().is_empty());
}

/// The node's own paths delay no pod, a pod's no other pod, and work in pods' directories continues until that hangs too.
#[test]
fn when_every_permit_hangs_the_next_path_fails_at_once() {
    let (blocking, clock) = on_threads();
    let pod = |n: usize| PodUid::from(format!("pod{n}"));
    let full = |done: Result<(), Stuck>| matches!(done, Err(Stuck::Full { other, .. }) if other == Path::new("/no/0"));
    let (mut holds, mut hanging) = (Vec::new(), 0);
    let mut hang = || {
        let (go, work) = hang();
        holds.push(go);
        hanging += 1;
        (hanging, work)
    };
    smol::block_on(async {
        for n in 0..OUTSIDE_OF_NODE_MAX {
            let (hanging, work) = hang();
            let path = PathBuf::from(format!("/no/{n}"));
            let late = given_up(&blocking, &clock, hanging, blocking.run_outside(&path, work)).await;
            assert_eq!(late, Err(Stuck::Hangs(path)));
        }
        let of_node = async || blocking.run_outside(Path::new("/no/further"), || ()).await;
        let of_pod = async |pod: &PodUid| blocking.run_outside_of(pod, Path::new("/a/pods"), || ()).await;
        assert!(full(of_node().await), "the one that hangs longest");

        // A pod has its own permit and a share of the common ones.
        let mut held = 0;
        while of_pod(&pod(0)).await.is_ok() {
            let (hanging, work) = hang();
            let path = PathBuf::from(format!("/many/{held}"));
            let (one, n) = (pod(0), hanging);
            let late = given_up(&blocking, &clock, n, blocking.run_outside_of(&one, &path, work)).await;
            assert_eq!(late, Err(Stuck::Hangs(path)));
            held += 1;
        }
        assert_eq!(held, 3);
        let (mut pods, most) = (1, OUTSIDE_OF_PODS.most());
        while held < most {
            assert_eq!(of_pod(&pod(pods)).await, Ok(()), "{pods}");
            let (hanging, work) = hang();
            let path = PathBuf::from(format!("/pod/{pods}"));
            let (one, n) = (pod(pods), hanging);
            let late = given_up(&blocking, &clock, n, blocking.run_outside_of(&one, &path, work)).await;
            assert_eq!(late, Err(Stuck::Hangs(path)));
            (pods, held) = (pods + 1, held + 1);
        }
        assert!(pods > OUTSIDE_OF_PODS.own && full(of_pod(&pod(pods)).await));

        for n in 0..=IN_PODS_JOBS_MIN {
            let is_left = n < IN_PODS_JOBS_MIN;
            let (path, at) =
                (PathBuf::from(format!("/own/pods/{n}/volumes/v")), Path::new("/own/pods/u/volumes/v"));
            for (kind, has_turn) in [(Server::Mount, false), (Server::Unmount, is_left)] {
                let done =
                    blocking.run_with_server(&pod(pods), (kind, "nas"), at, OUTSIDE_PATIENCE, || ()).await;
                assert_eq!(done.is_ok(), has_turn, "{kind:?}");
            }
            assert_eq!(blocking.run_outside(at, || ()).await.is_ok(), is_left);
            if is_left {
                let (hanging, work) = hang();
                let late = given_up(&blocking, &clock, hanging, blocking.run_outside(&path, work)).await;
                assert_eq!(late, Err(Stuck::Hangs(path)));
            }
        }
        assert_eq!(blocking.held().0, OUTSIDE_JOBS_MAX);
        assert!(full(of_node().await));
    });
    drop(holds);
    smol::block_on(async {
        while blocking.held().0 > 0 {
            smol::future::yield_now().await;
        }
        assert_eq!(blocking.run_outside(Path::new("/no/further"), || ()).await, Ok(()));
    });
}

/// One thread for each server and operation, for any pod and mount point; the deadline of a path is another.
#[test]
fn a_server_that_hangs_takes_one_permit() {
    let (blocking, clock) = on_threads();
    let (pod, other) = (PodUid::from("u"), PodUid::from("v"));
    let (one, two) = (Path::new("nas:/one"), Path::new("nas:/two"));
    let (long, nas) = (OUTSIDE_PATIENCE * 12, (Server::Mount, "nas"));
    let (go, work) = hang();
    smol::block_on(async {
        let mut first = std::pin::pin!(blocking.run_with_server(&pod, nas, one, long, work));
        let begun = async {
            while blocking.held().0 < 1 {
                smol::future::yield_now().await;
            }
            None
        };
        let first_ends = async { Some(first.as_mut().await) };
        assert_eq!(smol::future::or(first_ends, begun).await, None);
        clock.advance(OUTSIDE_PATIENCE);
        // No second thread, and no wait: it is known to hang.
        let second = blocking.run_with_server(&other, nas, two, long, || ()).await;
        assert_eq!(second, Err(Stuck::Hangs(two.to_owned())));
        assert_eq!(blocking.held(), (1, one.as_os_str().len()));
        assert_eq!(blocking.run_with_server(&other, (Server::Mount, "nas2"), two, long, || 7).await, Ok(7));
        // A forced unmount may end what hangs: it does not wait.
        let unmounted = blocking.run_with_server(&other, (Server::Unmount, "nas"), two, long, || 7).await;
        assert_eq!(unmounted, Ok(7));
        drop(go);
        assert_eq!(first.await, Ok(()), "it has its own deadline");
        assert_eq!(blocking.run_with_server(&other, nas, two, long, || 8).await, Ok(8));
    });
}

#[test]
fn work_with_a_server_has_a_deadline_for_its_caller() {
    let (blocking, clock) = on_threads();
    let (pod, path) = (PodUid::from("u"), Path::new("nas:/x"));
    let (_go, work) = hang();
    smol::block_on(async {
        let late = given_up(
            &blocking,
            &clock,
            1,
            blocking.run_with_server(&pod, (Server::Mount, "nas"), path, OUTSIDE_PATIENCE, work),
        );
        assert_eq!(late.await, Err(Stuck::Hangs(path.to_owned())));
    });
}

#[test]
fn regions_are_by_server_and_by_pod() {
    let root = std::env::temp_dir().join(format!("smolet-lies-{}", std::process::id()));
    let pod = root.join("pods/u");
    let (volume, own) =
        (pod.join("volumes").join(NFS).join("v"), pod.join("volumes/kubernetes.io~empty-dir/d"));
    let _ = rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::DETACH);
    std::fs::create_dir_all(&volume).unwrap();
    let lies = |path: &Path| Region::in_pod(path, &root).unwrap_or_else(|| Region::of(path, &root));
    assert_eq!(lies(&own), Region::InPod(pod.clone()));
    assert_eq!(lies(&volume), Region::At(volume.clone()), "nothing is mounted there");
    let flags = rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("[fd00::7]:/x", &volume, "tmpfs", flags, None::<&std::ffi::CStr>)
        .expect("mounting needs root");
    let link = root.join("link");
    std::os::unix::fs::symlink(&volume, &link).unwrap();
    // The subpath that is mounted in a container as its termination message file.
    let part = pod.join("volume-subpaths/v/app/0");
    std::fs::create_dir_all(&part).unwrap();
    assert_eq!(lies(&part), Region::At(part.clone()), "nothing is mounted there");
    rustix::mount::mount_bind(&volume, &part).unwrap();
    let found = [lies(&volume), lies(&volume.join("deep")), lies(&link)];
    let of_part = lies(&part);
    rustix::mount::unmount(&part, rustix::mount::UnmountFlags::DETACH).unwrap();
    rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(found, [(); 3].map(|()| Region::With("[fd00::7]".into())));
    assert_eq!(of_part, Region::With("[fd00::7]".into()));
}

#[test]
fn a_pods_work_does_not_wait_without_end_for_its_work_that_hangs() {
    let (blocking, clock) = on_threads();
    let (pod, path) = (PodUid::from("u"), Path::new("/mnt/away"));
    let (go, work) = hang();
    smol::block_on(async {
        let late = given_up(&blocking, &clock, 1, blocking.run_outside_for(&pod, path, work)).await;
        assert_eq!(late, Err(Stuck::Hangs(path.to_owned())));
        let removal = given_up(&blocking, &clock, 1, blocking.run_for(&pod, || ())).await;
        assert_eq!(removal, Err(Stuck::PodBusy));
        assert_eq!(blocking.run_for(&PodUid::from("v"), || ()).await, Ok(()));
        drop(go);
        assert_eq!(blocking.run_for(&pod, || ()).await, Ok(()));
    });
}

/// It was not marked as hanging: its task was cancelled.
#[test]
fn a_path_is_known_to_hang_after_its_task_was_cancelled() {
    let (blocking, clock) = on_threads();
    let path = Path::new("/mnt/away");
    let (_go, work) = hang();
    smol::block_on(async {
        let cancelled = async {
            while blocking.held().0 == 0 {
                smol::future::yield_now().await;
            }
            Ok(())
        };
        smol::future::or(blocking.run_outside(path, work), cancelled).await.unwrap();
        clock.advance(OUTSIDE_PATIENCE / 2);
        let late = given_up(&blocking, &clock, 1, blocking.run_outside(path, || ())).await;
        assert_eq!(late, Err(Stuck::Hangs(path.to_owned())));
        assert_eq!(blocking.run_outside(path, || ()).await, late, "at once");
    });
}

#[test]
fn an_error_says_what_hangs_and_how_to_fix_it() {
    for (stuck, wanted) in [
        (
            Stuck::Hangs("/mnt/nfs".into()),
            "/mnt/nfs does not answer within 10 s: restore the network mount or disk it is on, or unmount it",
        ),
        (
            Stuck::Full { path: "/srv".into(), other: "/mnt/nfs".into() },
            "/srv was not accessed: too many other paths do not answer, /mnt/nfs among them: restore the network mount \
             or disk it is on, or unmount it",
        ),
        (Stuck::PodBusy, "an earlier operation for the pod has not finished after 10 s"),
    ] {
        assert_eq!(stuck.to_string(), wanted);
    }
}

#[test]
fn work_runs_on_a_thread_that_ends_with_it() {
    let here = std::thread::current().id();
    let there = smol::block_on(unblock(|| std::thread::current().id()));
    assert_ne!(here, there);
}

#[test]
fn a_panic_of_the_work_is_passed_to_the_caller() {
    let caught = std::panic::catch_unwind(|| smol::block_on(unblock(|| -> u8 { panic!("on purpose") })));
    assert!(caught.is_err());
}
