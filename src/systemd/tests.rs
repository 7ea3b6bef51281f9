//! The calls against a simulated systemd, message by message. tests/systemd uses a real one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wire::tests::{asked, ended, error, returned};
use super::*;
use crate::clock::VirtualClock;
use crate::model::Wall;

/// A socket in a temporary directory.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("smolet-systemd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("private")
    }

    /// Accepts one connection; `play` serves it after the greeting.
    fn played(&self, play: impl FnOnce(&mut BufReader<UnixStream>) + Send + 'static) -> JoinHandle<()> {
        self.listened(|listener| play(&mut accept(listener)))
    }

    /// `play` accepts the connections.
    fn listened(&self, play: impl FnOnce(&UnixListener) + Send + 'static) -> JoinHandle<()> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || play(&listener))
    }
}

/// Accepts a connection and answers its greeting.
fn accept(listener: &UnixListener) -> BufReader<UnixStream> {
    let mut peer = BufReader::new(listener.accept().unwrap().0);
    let mut line = Vec::new();
    peer.read_until(b'\n', &mut line).unwrap();
    let user = rustix::process::geteuid().as_raw().to_string();
    let hex: Vec<String> = user.bytes().map(|byte| format!("{byte:x}")).collect();
    let hex = hex.concat();
    assert_eq!(line, format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes());
    line.clear();
    peer.read_until(b'\n', &mut line).unwrap();
    assert_eq!(line, b"BEGIN\r\n");
    assert!(peer.buffer().is_empty(), "the first call follows the answer");
    peer.get_mut().write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
    peer
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads a call: its serial, method and body.
fn next(peer: &mut BufReader<UnixStream>) -> (u32, String, Vec<u8>) {
    let mut head = [0; HEAD_BYTES];
    peer.read_exact(&mut head).unwrap();
    let mut whole = head.to_vec();
    whole.resize(HEAD_BYTES + wire::rest(head).unwrap(), 0);
    peer.read_exact(&mut whole[HEAD_BYTES..]).unwrap();
    asked(&whole)
}

fn say(peer: &mut BufReader<UnixStream>, messages: &[Vec<u8>]) {
    peer.get_mut().write_all(&messages.concat()).unwrap();
}

fn clock() -> VirtualClock {
    VirtualClock::new(Wall(1_770_000_000_000_000_000))
}

fn slice() -> Slice {
    Slice {
        name: "kubepods-podu.slice".into(),
        parent: "kubepods.slice".into(),
        io_accounting: "IOAccounting",
        properties: vec![("CPUWeight", 20), ("MemoryMax", 4096)],
    }
}

/// Runs one call and returns its error.
fn run(place: &Scratch, call: impl AsyncFnOnce(&Systemd) -> Result<(), SystemdError>) -> Result<(), String> {
    let systemd = Systemd::new(&place.socket(), Rc::new(clock()));
    async_io::block_on(async { call(&systemd).await.map_err(|error| error.to_string()) })
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        smol::future::yield_now().await;
    }
}

fn has(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_slice_exists_when_its_job_has_ended() {
    // The job's end may precede the answer that names the job; other jobs end too.
    for overtakes in [false, true] {
        let place = Scratch::new();
        let peer = place.played(move |peer| {
            let (serial, method, body) = next(peer);
            assert_eq!(method, "StartTransientUnit");
            for text in ["kubepods-podu.slice", "replace", "Wants", "DefaultDependencies", "MemoryMax"] {
                assert!(has(&body, text), "{text}");
            }
            let mut messages =
                [returned(serial, Some("/job/2")), ended("/job/2", "kubepods-podu.slice", "done")];
            if overtakes {
                messages.reverse();
            }
            say(
                peer,
                &[ended("/job/1", "kubepods-podu.slice", "canceled"), ended("/job/2", "x.slice", "failed")],
            );
            say(peer, &messages);
        });
        assert_eq!(run(&place, async |systemd| systemd.session().await?.start(&slice()).await), Ok(()));
        peer.join().unwrap();
    }
}

#[test]
fn an_existing_slice_gets_its_properties() {
    let place = Scratch::new();
    let peer = place.played(|peer| {
        let (serial, ..) = next(peer);
        say(peer, &[error(serial, "org.freedesktop.systemd1.UnitExists", "Unit was already loaded")]);
        let (second, method, body) = next(peer);
        assert_eq!((second, &*method), (serial + 1, "SetUnitProperties"));
        assert!(
            has(&body, "CPUWeight") && !has(&body, "Wants"),
            "properties that cannot be changed are left out"
        );
        say(peer, &[returned(second, None)]);
        // No properties for a parent slice.
        let (serial, ..) = next(peer);
        say(peer, &[error(serial, "org.freedesktop.systemd1.UnitExists", "Unit was already loaded")]);
    });
    let bare = Slice { properties: Vec::new(), ..slice() };
    let done = run(&place, async |systemd| {
        let mut session = systemd.session().await?;
        session.start(&slice()).await?;
        session.start(&bare).await
    });
    assert_eq!(done, Ok(()));
    peer.join().unwrap();
}

#[test]
fn an_unknown_slice_counts_as_stopped() {
    let place = Scratch::new();
    let peer = place.listened(|listener| {
        let mut peer = accept(listener);
        let (serial, method, _) = next(&mut peer);
        assert_eq!(method, "StopUnit");
        say(&mut peer, &[error(serial, "org.freedesktop.systemd1.NoSuchUnit", "Unit x.slice not loaded.")]);
        let mut peer = accept(listener);
        let (serial, ..) = next(&mut peer);
        say(&mut peer, &[returned(serial, Some("/job/9")), ended("/job/9", "y.slice", "done")]);
    });
    let done = run(&place, async |systemd| {
        systemd.stop("x.slice").await?;
        systemd.stop("y.slice").await
    });
    assert_eq!(done, Ok(()));
    peer.join().unwrap();
}

#[test]
fn a_refusal_has_systemds_message() {
    let place = Scratch::new();
    let peer = place.listened(|listener| {
        let mut peer = accept(listener);
        let (serial, ..) = next(&mut peer);
        say(&mut peer, &[error(serial, "org.freedesktop.DBus.Error.InvalidArgs", "Unit name is not valid.")]);
        let mut peer = accept(listener);
        let (serial, ..) = next(&mut peer);
        say(&mut peer, &[returned(serial, Some("/job/3")), ended("/job/3", "x.slice", "timeout")]);
    });
    let done = run(&place, async |systemd| {
        let error = systemd.session().await?.start(&slice()).await.unwrap_err();
        assert!(error.is_of_unit());
        assert_eq!(error.to_string(), "systemd refuses kubepods-podu.slice: Unit name is not valid.");
        systemd.stop("x.slice").await
    });
    let words = "systemd's job for x.slice ended with \"timeout\"; see: systemctl status x.slice";
    assert_eq!(done, Err(words.to_owned()));
    peer.join().unwrap();
}

#[test]
fn without_systemd_the_error_says_how_to_fix_it() {
    let place = Scratch::new();
    let error = run(&place, async |systemd| systemd.stop("x.slice").await).unwrap_err();
    assert!(error.contains("private: No such file") && error.contains("cgroupDriver: cgroupfs"), "{error}");
}

#[test]
fn a_closed_connection_or_another_protocol_fails_the_call() {
    let no_dbus = "systemd's answer is not a D-Bus message";
    let mut long = vec![0_u8; HEAD_BYTES];
    long[..4].copy_from_slice(&[if cfg!(target_endian = "little") { b'l' } else { b'B' }, 2, 0, 1]);
    long[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    for (answer, words) in [(vec![], "systemd does not answer"), (vec![0; 64], no_dbus), (long, no_dbus)] {
        let place = Scratch::new();
        let peer = place.played(move |peer| {
            next(peer);
            say(peer, &[answer]);
        });
        let error = run(&place, async |systemd| systemd.stop("x.slice").await).unwrap_err();
        assert!(error.starts_with(words), "{error}");
        peer.join().unwrap();
    }
    // An invalid greeting.
    for (greeting, words) in
        [(&b"HTTP/1.1 400 Bad Request\r\n"[..], no_dbus), (&[b'x'; 4096], no_dbus), (b"", "systemd does not")]
    {
        let place = Scratch::new();
        let listener = UnixListener::bind(place.socket()).unwrap();
        let peer = std::thread::spawn(move || {
            let mut peer = BufReader::new(listener.accept().unwrap().0);
            peer.read_until(b'\n', &mut Vec::new()).unwrap();
            peer.get_mut().write_all(greeting).unwrap();
        });
        let error = run(&place, async |systemd| systemd.stop("x.slice").await).unwrap_err();
        assert!(error.starts_with(words), "{error}");
        peer.join().unwrap();
    }
}

/// It accepts connections and does not answer, as a stopped process.
#[test]
fn a_systemd_that_hangs_delays_waiting_callers_once() {
    let place = Scratch::new();
    let _listener = UnixListener::bind(place.socket()).unwrap();
    let clock = clock();
    let systemd = Systemd::new(&place.socket(), Rc::new(clock.clone()));
    let ask = async || systemd.stop("x.slice").await;
    async_io::block_on(async {
        // The clock advances when the first caller sleeps until its deadline; the second one waits for its session.
        let sleeps = || clock.next_sleeper().is_some();
        let time = async {
            until(sleeps).await;
            clock.advance(SYSTEMD_CALL_TIME / 2);
            assert!(sleeps());
            clock.advance(SYSTEMD_CALL_TIME / 2);
            std::future::pending().await
        };
        let both = smol::future::zip(ask(), ask());
        let (first, second) = smol::future::or(both, time).await;
        for result in [first, second] {
            let error = result.unwrap_err();
            assert!(matches!(error, SystemdError::Silent) && !error.is_of_unit());
            assert!(error.to_string().contains("within 30 s"), "{error}");
        }
        // A later caller tries again.
        clock.advance(Duration::from_secs(1));
        let time = async {
            until(sleeps).await;
            Ok(())
        };
        smol::future::or(ask(), time).await.unwrap();
    });
}

/// A process of the unit does not exit: systemd has answered, and the stop's job does not end.
#[test]
fn a_stop_that_does_not_end_delays_no_other_caller() {
    let place = Scratch::new();
    let peer = place.listened(|listener| {
        let mut stopping = accept(listener);
        let (serial, ..) = next(&mut stopping);
        say(&mut stopping, &[returned(serial, Some("/job/1"))]);
        // The other session begins before the first one's job has ended.
        let mut other = accept(listener);
        let (serial, method, _) = next(&mut other);
        assert_eq!(method, "StartTransientUnit");
        let done = [returned(serial, Some("/job/2")), ended("/job/2", "kubepods-podu.slice", "done")];
        say(&mut other, &done);
        // Until the first one closes its connection.
        stopping.read_to_end(&mut Vec::new()).unwrap();
    });
    let clock = clock();
    let systemd = Systemd::new(&place.socket(), Rc::new(clock.clone()));
    async_io::block_on(async {
        let stop = systemd.stop("x.slice");
        let other = async {
            systemd.session().await?.start(&slice()).await?;
            // A caller that waits meanwhile gets no error about systemd.
            let (session, ()) =
                smol::future::zip(systemd.session(), async { clock.advance(SYSTEMD_CALL_TIME) }).await;
            session.map(drop)
        };
        let held = async {
            async_io::Timer::after(Duration::from_mins(1)).await;
            panic!("the other caller has no session")
        };
        let (stopped, other) = smol::future::or(smol::future::zip(stop, other), held).await;
        other.unwrap();
        let error = stopped.unwrap_err();
        assert!(matches!(error, SystemdError::Late(_)) && error.is_of_unit());
        let words = "systemd's job for x.slice has not ended after 30 s; see: systemctl status x.slice";
        assert_eq!(error.to_string(), words);
        systemd.session().await.unwrap();
    });
    peer.join().unwrap();
}

/// The call was cancelled: systemd creates the slice all the same.
#[test]
fn a_slice_of_an_abandoned_call_is_stopped() {
    let place = Scratch::new();
    let asked = Arc::new(AtomicBool::new(false));
    let was_asked = asked.clone();
    let peer = place.listened(move |listener| {
        let mut starting = accept(listener);
        next(&mut starting);
        was_asked.store(true, Ordering::Release);
        let mut stopping = accept(listener);
        let (serial, method, body) = next(&mut stopping);
        assert!(method == "StopUnit" && has(&body, "kubepods-podu.slice"));
        let done = [returned(serial, Some("/job/2")), ended("/job/2", "kubepods-podu.slice", "done")];
        say(&mut stopping, &done);
    });
    let systemd = Systemd::new(&place.socket(), Rc::new(clock()));
    let unit = slice().name;
    async_io::block_on(async {
        let start = async { systemd.session().await?.start(&slice()).await };
        let cancel = async {
            until(|| asked.load(Ordering::Acquire)).await;
            Ok(())
        };
        smol::future::or(start, cancel).await.unwrap();
        assert!(systemd.may_come(&unit) && !systemd.may_come("kubepods.slice"));
        systemd.stop(&unit).await.unwrap();
        assert!(!systemd.may_come(&unit));
    });
    peer.join().unwrap();
    // An unreachable systemd is not asked about a slice without an abandoned call.
    let nowhere = Systemd::new(&place.0.join("none"), Rc::new(clock()));
    async_io::block_on(async { nowhere.session().await.unwrap().start(&slice()).await }).unwrap_err();
    assert!(!nowhere.may_come(&unit));
}
