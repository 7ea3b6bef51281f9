//! The connection against a simulated bus, message by message. tests/systemd uses a real bus and logind.

use std::io::{BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use smol::channel::Receiver;

use super::super::wire::tests::{asked, error, numbered, returned, signal};
use super::*;
use crate::clock::VirtualClock;
use crate::model::Wall;

/// The bus' end of a connection.
struct Peer(BufReader<UnixStream>);

impl Peer {
    fn accept(listener: &UnixListener) -> Self {
        let mut peer = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        while line != "BEGIN\r\n" {
            line.clear();
            peer.read_line(&mut line).unwrap();
        }
        peer.get_mut().write_all(b"OK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\n").unwrap();
        Self(peer)
    }

    /// Reads the next call, which must be of that method; returns its serial.
    fn asked_for(&mut self, method: &str) -> u32 {
        let mut whole = vec![0; HEAD_BYTES];
        self.0.read_exact(&mut whole).unwrap();
        let rest = wire::rest(whole.as_slice().try_into().unwrap()).unwrap();
        whole.resize(HEAD_BYTES + rest, 0);
        self.0.read_exact(&mut whole[HEAD_BYTES..]).unwrap();
        let (serial, asked, _) = asked(&whole);
        assert_eq!(asked, method);
        serial
    }

    fn send(&mut self, message: &[u8]) {
        self.0.get_mut().write_all(message).unwrap();
    }

    /// Serves a connection up to the request for a lock.
    fn greet(&mut self, delay: Duration) {
        let hello = self.asked_for("Hello");
        self.send(&returned(hello, Some("/:1.7")));
        // Every client gets the signal about its own name.
        self.send(&signal("NameAcquired", &[]));
        let matched = self.asked_for("AddMatch");
        self.send(&returned(matched, None));
        let get = self.asked_for("Get");
        let micros = u64::try_from(delay.as_micros()).unwrap();
        self.send(&numbered(get, "v", &[micros]));
    }

    /// Sends the lock in two pieces, after the bytes `before`.
    fn lock(&mut self, lock: UnixStream, before: &[u8]) {
        let serial = self.asked_for("Inhibit");
        self.send(before);
        let answer = numbered(serial, "h", &[0]);
        let (first, second) = answer.split_at(20);
        let (mut space, locks) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [lock.as_fd()]);
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&locks)));
        sendmsg(self.0.get_ref(), &[IoSlice::new(first)], &mut ancillary, SendFlags::empty()).unwrap();
        // From here on only the agent holds it.
        drop(lock);
        self.send(second);
    }
}

/// A socket in a temporary directory.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// `play` takes the connections.
fn played(
    name: &str,
    play: impl FnOnce(&UnixListener) + Send + 'static,
) -> (Scratch, Logind, Receiver<Preparation>, VirtualClock, JoinHandle<()>) {
    let place = Scratch(std::env::temp_dir().join(format!("smolet-logind-{name}-{}", std::process::id())));
    std::fs::create_dir(&place.0).unwrap();
    let listener = UnixListener::bind(place.0.join("bus")).unwrap();
    let clock = VirtualClock::new(Wall(0));
    let (preparations, prepared) = smol::channel::bounded(1);
    let logind =
        Logind::new(&place.0.join("bus"), Rc::new(clock.clone()), Duration::from_secs(5), preparations);
    (place, logind, prepared, clock, std::thread::spawn(move || play(&listener)))
}

/// True when no process holds the other end. One that a test beside this starts has a copy of it until it has its program.
fn is_let_go(end: &UnixStream) -> bool {
    end.set_nonblocking(false).unwrap();
    end.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    (&*end).read(&mut [0]).is_ok_and(|read| read == 0)
}

fn is_held(end: &UnixStream) -> bool {
    end.set_nonblocking(true).unwrap();
    (&*end).read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_lock_is_held_until_the_pods_have_terminated_and_taken_again_after_a_cancelled_shutdown() {
    let ((near, far), (near_2, far_2)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let (_place, logind, prepared, _clock, bus) = played("lock", move |listener| {
        let mut peer = Peer::accept(listener);
        peer.greet(Duration::from_secs(5));
        peer.lock(far, &[]);
        peer.send(&signal("PrepareForShutdown", &[1]));
        peer.send(&signal("PrepareForShutdown", &[0]));
        // A signal before an answer counts too.
        peer.lock(far_2, &signal("PrepareForShutdown", &[1]));
        // Until the agent closes it.
        assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
    });
    let agent = async {
        let Preparation::Begun(Some(lock)) = prepared.recv().await.unwrap() else { panic!("not begun") };
        assert!(is_held(&near));
        drop(lock);
        assert!(is_let_go(&near));
        assert!(matches!(prepared.recv().await.unwrap(), Preparation::Cancelled));
        let Preparation::Begun(Some(lock)) = prepared.recv().await.unwrap() else { panic!("not begun") };
        assert!(is_held(&near_2));
        drop(lock);
        assert!(is_let_go(&near_2));
    };
    async_io::block_on(smol::future::or(logind.watch(), agent));
    bus.join().unwrap();
}

#[test]
fn a_bus_that_refuses_closes_or_is_silent_is_an_error() {
    let (silent, heard) = smol::channel::bounded(1);
    let (_place, logind, _prepared, clock, bus) = played("refuses", move |listener| {
        let mut peer = Peer::accept(listener);
        let hello = peer.asked_for("Hello");
        peer.send(&error(hello, "a.AccessDenied", "not you"));
        let mut peer = Peer::accept(listener);
        peer.greet(Duration::from_secs(1));
        drop(peer);
        let mut peer = Peer::accept(listener);
        peer.greet(Duration::from_secs(5));
        let serial = peer.asked_for("Inhibit");
        // A lock without a descriptor.
        peer.send(&numbered(serial, "h", &[0]));
        let mut line = [0; 1];
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut line).unwrap();
        silent.send_blocking(()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    let trouble = || async_io::block_on(logind.session()).map(|_| ()).unwrap_err().to_string();
    assert_eq!(trouble(), "not you");
    let hung_up = trouble();
    assert!(hung_up.contains("reset") || hung_up.contains("Broken pipe"), "{hung_up}");
    assert_eq!(trouble(), "the answer is not a D-Bus message");
    let late = async {
        heard.recv().await.unwrap();
        clock.advance(SYSTEMD_CALL_TIME);
        std::future::pending().await
    };
    let trouble = async_io::block_on(smol::future::or(logind.session(), late)).map(|_| ()).unwrap_err();
    assert_eq!(trouble.to_string(), "no answer within 30 s");
    bus.join().unwrap();
}
