//! Tells the supervisor of the service how the agent is, as `sd_notify(3)` does: systemd with `Type=notify` and `WatchdogSec=`,
//! or whoever else sets `NOTIFY_SOCKET`.
//!
//! ```text
//!     the local socket answers ─► READY=1      each half of WATCHDOG_USEC ─► WATCHDOG=1      told to end ─► STOPPING=1
//! ```
//!
//! A datagram each, never waited for. The signs of life come from the loop itself, between two of its events: an agent whose
//! loop stands still gives none, and is started anew. Its pods do not notice.
//!
//! Ready is said before the runtime answers: what waits for the agent (the machine's start among it) is not to wait for a
//! runtime that is broken, and starting the agent again would not mend it. What it waits for is its status meanwhile.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::clock::SharedClock;
use crate::limits::{CHECKPOINT_END_PATIENCE, SERVICE_STATUS_BYTES_MAX, WATCHDOG_PING_MIN};
use crate::model::Mono;

/// Who is told, and how often it wants a sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervisor {
    /// `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub socket: OsString,
    /// `WATCHDOG_USEC`: without a sign of life for so long the agent is taken for dead; `None` = that is not watched.
    pub watchdog: Option<Duration>,
}

impl Supervisor {
    /// The one of this process, as its environment says; `None` = nobody asks.
    pub fn of_process() -> Option<Self> {
        let text = |name| std::env::var(name).ok();
        Self::read(
            std::env::var_os("NOTIFY_SOCKET"),
            text("WATCHDOG_USEC").as_deref(),
            text("WATCHDOG_PID").as_deref(),
            std::process::id(),
        )
    }

    /// As `sd_watchdog_enabled(3)`: a watchdog of another process (`WATCHDOG_PID`) is not ours.
    fn read(socket: Option<OsString>, usec: Option<&str>, for_pid: Option<&str>, pid: u32) -> Option<Self> {
        let socket = socket.filter(|socket| !socket.is_empty())?;
        let is_ours = for_pid.is_none_or(|text| text.parse() == Ok(pid));
        let usec = usec.filter(|_| is_ours).and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        Some(Self { socket, watchdog: usec.map(Duration::from_micros) })
    }
}

/// The way to the supervisor; without one nothing is told to nobody.
#[derive(Debug, Default)]
pub struct Notify {
    line: Option<Line>,
    /// When the next sign of life is due.
    next: Cell<Option<Mono>>,
}

#[derive(Debug)]
struct Line {
    from: UnixDatagram,
    to: SocketAddr,
    /// Time between two signs of life.
    interval: Option<Duration>,
}

impl Notify {
    /// Signs of life begin at once. A supervisor that cannot be reached is logged, and is told nothing.
    pub fn new(supervisor: Option<&Supervisor>, now: Mono) -> Self {
        let Some(supervisor) = supervisor else { return Self::default() };
        match Line::open(supervisor) {
            Ok(line) => Self { next: Cell::new(line.interval.map(|_| now)), line: Some(line) },
            Err(error) => {
                let socket = supervisor.socket.display();
                log::warn!("NOTIFY_SOCKET={socket}: {error}; systemd gets no notifications");
                Self::default()
            }
        }
    }

    /// The agent answers its local socket.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// A sentence for `systemctl status`; empty = none any more.
    pub fn status(&self, sentence: &str) {
        // A line is a field of its own.
        let line: String = sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut message = format!("STATUS={line}");
        crate::text::cut(&mut message, SERVICE_STATUS_BYTES_MAX);
        self.tell(&message);
    }

    /// The agent was told to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The agent was told to end, and ends the pods first, within that time: it is not to be killed before.
    pub fn stopping_within(&self, time: Duration) {
        let time = time + CHECKPOINT_END_PATIENCE;
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// When the next sign of life is due.
    pub fn due(&self) -> Option<Mono> {
        self.next.get()
    }

    /// Gives the sign of life that is due.
    pub fn turn(&self, now: Mono) {
        let interval = self.line.as_ref().and_then(|line| line.interval);
        if let (Some(interval), Some(due)) = (interval, self.next.get())
            && due <= now
        {
            self.tell("WATCHDOG=1");
            self.next.set(Some(now + interval));
        }
    }

    /// Gives signs of life as long as it is polled, for the time before there is a loop.
    pub async fn keep<T>(&self, clock: &SharedClock) -> T {
        while let Some(due) = self.due() {
            clock.sleep_until(due).await;
            self.turn(clock.now().mono);
        }
        std::future::pending().await
    }

    fn tell(&self, message: &str) {
        if let Some(line) = &self.line
            && let Err(error) = line.from.send_to_addr(message.as_bytes(), &line.to)
        {
            // Nobody there any more, or it is slow: what it does not take is not kept, and the next sign of life comes long
            // before it would act.
            log::debug!("sd_notify {message} failed: {error}");
        }
    }
}

impl Line {
    fn open(supervisor: &Supervisor) -> io::Result<Self> {
        let to = match supervisor.socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(&supervisor.socket)?,
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor @ and a name")),
        };
        // Not connected: a supervisor that begins anew has another socket of the same name.
        let from = UnixDatagram::unbound()?;
        from.set_nonblocking(true)?;
        let interval = supervisor.watchdog.map(|watchdog| (watchdog / 2).max(WATCHDOG_PING_MIN));
        Ok(Self { from, to, interval })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::rc::Rc;

    use super::*;
    use crate::clock::{Clock as _, VirtualClock};
    use crate::model::Wall;

    #[test]
    fn the_environment_says_who_is_told_and_how_often() {
        let read = |socket: Option<&str>, usec, pid| Supervisor::read(socket.map(Into::into), usec, pid, 7);
        let told = |watchdog: Option<u64>| {
            Some(Supervisor { socket: "/n".into(), watchdog: watchdog.map(Duration::from_micros) })
        };
        for (socket, usec, pid, expected) in [
            (None, None, None, None),
            (Some(""), None, None, None),
            (None, Some("1000000"), None, None),
            (Some("/n"), None, None, told(None)),
            (Some("/n"), Some("1000000"), None, told(Some(1_000_000))),
            (Some("/n"), Some("1000000"), Some("7"), told(Some(1_000_000))),
            (Some("/n"), Some("1000000"), Some("8"), told(None)),
            (Some("/n"), Some("1000000"), Some("x"), told(None)),
            (Some("/n"), Some("0"), None, told(None)),
            (Some("/n"), Some("-1"), None, told(None)),
            (Some("/n"), Some("1s"), None, told(None)),
        ] {
            assert_eq!(read(socket, usec, pid), expected, "{socket:?} {usec:?} {pid:?}");
        }
    }

    /// A supervisor with an abstract socket, and what it was told so far.
    struct Hears(UnixDatagram, OsString);

    impl Hears {
        fn new(name: &str) -> Self {
            let name = format!("smolet-test-{}-{name}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).expect("a short name");
            let socket = UnixDatagram::bind_addr(&address).expect("a name of its own");
            socket.set_nonblocking(true).expect("a socket");
            Self(socket, format!("@{name}").into())
        }

        fn told(&self) -> Vec<String> {
            let mut told = Vec::new();
            let mut bytes = [0; 4096];
            while let Ok(length) = self.0.recv(&mut bytes) {
                told.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
            told
        }

        fn notify(&self, watchdog_ms: Option<u64>, now: Mono) -> Notify {
            let watchdog = watchdog_ms.map(Duration::from_millis);
            Notify::new(Some(&Supervisor { socket: self.1.clone(), watchdog }), now)
        }
    }

    #[test]
    fn each_thing_is_a_datagram() {
        let hears = Hears::new("each");
        let notify = hears.notify(None, Mono(0));
        notify.ready();
        notify.status("no runtime:\nREADY=0 is none of ours");
        notify.status("");
        notify.stopping();
        notify.turn(Mono(i64::MAX));
        assert_eq!(
            hears.told(),
            ["READY=1", "STATUS=no runtime: READY=0 is none of ours", "STATUS=", "STOPPING=1"]
        );
        assert_eq!(notify.due(), None, "nobody watches");
    }

    #[test]
    fn pods_that_end_first_are_given_their_time() {
        let hears = Hears::new("time");
        hears.notify(None, Mono(0)).stopping_within(Duration::from_secs(30));
        assert_eq!(hears.told(), ["STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000"]);
    }

    #[test]
    fn a_long_status_is_cut_between_characters() {
        let hears = Hears::new("long");
        hears.notify(None, Mono(0)).status(&"ä".repeat(SERVICE_STATUS_BYTES_MAX));
        let told = hears.told();
        // "STATUS=" has seven bytes, so that half a character would fit.
        assert_eq!(told[0].len(), SERVICE_STATUS_BYTES_MAX - 1);
        assert!(told[0].ends_with('ä'), "{told:?}");
    }

    #[test]
    fn signs_of_life_come_at_half_the_time_and_no_oftener() {
        let hears = Hears::new("half");
        let ms = |ms: i64| Mono(ms * 1_000_000);
        let notify = hears.notify(Some(2000), ms(0));
        for (at, signs, due) in
            [(0, 1, 1000), (10, 0, 1000), (999, 0, 1000), (1000, 1, 2000), (5500, 1, 6500)]
        {
            notify.turn(ms(at));
            assert_eq!(hears.told(), vec!["WATCHDOG=1"; signs], "at {at} ms");
            assert_eq!(notify.due(), Some(ms(due)), "at {at} ms");
        }
    }

    #[test]
    fn a_watchdog_of_a_microsecond_keeps_nobody_busy() {
        let hears = Hears::new("busy");
        let notify = Notify::new(
            Some(&Supervisor { socket: hears.1.clone(), watchdog: Some(Duration::from_micros(1)) }),
            Mono(0),
        );
        notify.turn(Mono(0));
        assert_eq!(notify.due(), Some(Mono(0) + WATCHDOG_PING_MIN));
    }

    #[test]
    fn signs_of_life_are_given_while_something_else_is_waited_for() {
        let hears = Hears::new("keep");
        let time = VirtualClock::new(Wall(0));
        let clock: SharedClock = Rc::new(time.clone());
        let notify = hears.notify(Some(2000), time.now().mono);
        let mut keep = Box::pin(notify.keep::<()>(&clock));
        let mut signs = Vec::new();
        for _ in 0..4 {
            assert!(smol::future::block_on(smol::future::poll_once(&mut keep)).is_none());
            signs.push(hears.told().len());
            time.advance(Duration::from_millis(500));
        }
        assert_eq!(signs, [1, 0, 1, 0]);
    }

    #[test]
    fn a_supervisor_that_hangs_or_is_gone_holds_nobody_up() {
        let hears = Hears::new("hangs");
        let notify = hears.notify(None, Mono(0));
        // More than the queue of a socket holds.
        for _ in 0..100_000 {
            notify.ready();
        }
        drop(hears);
        notify.ready();
        for socket in ["relative", "vsock:2:1", "/nobody/listens/here"] {
            let notify = Notify::new(Some(&Supervisor { socket: socket.into(), watchdog: None }), Mono(0));
            notify.stopping();
        }
    }
}
