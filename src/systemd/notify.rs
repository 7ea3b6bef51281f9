//! Notifies the service supervisor of the agent's state (`sd_notify(3)`): systemd with `Type=notify` and `WatchdogSec=`, or
//! another supervisor that sets `NOTIFY_SOCKET`.
//!
//! ```text
//!     the local socket answers ─► READY=1      each half of WATCHDOG_USEC ─► WATCHDOG=1      stopping ─► STOPPING=1
//! ```
//!
//! One datagram each, sent without waiting. The watchdog notifications come from the loop itself, between two of its events: an
//! agent whose loop hangs sends none, and is restarted. Its pods keep running.
//!
//! READY is sent before the runtime answers: units ordered after the agent (the machine's start among them) must not wait for a
//! broken runtime, which a restart of the agent would not repair. Meanwhile the status text says what the agent waits for.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::clock::SharedClock;
use crate::limits::{
    CHECKPOINT_END_PATIENCE, LOG_FLUSH_END_PATIENCE, SERVICE_STATUS_BYTES_MAX, WATCHDOG_PING_MIN,
};
use crate::model::Mono;

/// The supervisor's socket and watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervisor {
    /// `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub socket: OsString,
    /// `WATCHDOG_USEC`: the agent is restarted without a notification for this long; `None` = no watchdog.
    pub watchdog: Option<Duration>,
}

impl Supervisor {
    /// From this process' environment; `None` without a supervisor.
    pub fn of_process() -> Option<Self> {
        let text = |name| std::env::var(name).ok();
        Self::read(
            std::env::var_os("NOTIFY_SOCKET"),
            text("WATCHDOG_USEC").as_deref(),
            text("WATCHDOG_PID").as_deref(),
            std::process::id(),
        )
    }

    /// As `sd_watchdog_enabled(3)`: a watchdog of another process (`WATCHDOG_PID`) is ignored.
    fn read(socket: Option<OsString>, usec: Option<&str>, for_pid: Option<&str>, pid: u32) -> Option<Self> {
        let socket = socket.filter(|socket| !socket.is_empty())?;
        let is_ours = for_pid.is_none_or(|text| text.parse() == Ok(pid));
        let usec = usec.filter(|_| is_ours).and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        Some(Self { socket, watchdog: usec.map(Duration::from_micros) })
    }
}

/// Sends notifications; without a supervisor it does nothing.
#[derive(Debug, Default)]
pub struct Notify {
    line: Option<Line>,
    /// When the next watchdog notification is due.
    next: Cell<Option<Mono>>,
}

#[derive(Debug)]
struct Line {
    from: UnixDatagram,
    to: SocketAddr,
    /// Time between two watchdog notifications.
    interval: Option<Duration>,
}

impl Notify {
    /// The first watchdog notification is due at once. When the supervisor is not reachable, that is logged, and nothing is
    /// sent.
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

    /// The local socket is being served.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Sets the text for `systemctl status`; empty = none.
    pub fn status(&self, sentence: &str) {
        // Each line would be a field.
        let line: String = sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut message = format!("STATUS={line}");
        crate::text::cut(&mut message, SERVICE_STATUS_BYTES_MAX);
        self.tell(&message);
    }

    /// The agent is stopping.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// The agent is stopping and terminates the pods first, within this time: the supervisor must not kill it before.
    pub fn stopping_within(&self, time: Duration) {
        let time = time + CHECKPOINT_END_PATIENCE + LOG_FLUSH_END_PATIENCE;
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// When the next watchdog notification is due.
    pub fn due(&self) -> Option<Mono> {
        self.next.get()
    }

    /// Sends the watchdog notification that is due.
    pub fn turn(&self, now: Mono) {
        let interval = self.line.as_ref().and_then(|line| line.interval);
        if let (Some(interval), Some(due)) = (interval, self.next.get())
            && due <= now
        {
            self.tell("WATCHDOG=1");
            self.next.set(Some(now + interval));
        }
    }

    /// Sends watchdog notifications while it is polled, before the loop runs.
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
            // The supervisor is gone or slow: the notification is dropped, and the next one comes long before the watchdog's
            // timeout.
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
        // Not connected: a restarted supervisor has a new socket of the same name.
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
    fn the_supervisor_and_its_watchdog_are_read_from_the_environment() {
        let read = |socket: Option<&str>, usec, pid| Supervisor::read(socket.map(Into::into), usec, pid, 7);
        let supervisor = |watchdog: Option<u64>| {
            Some(Supervisor { socket: "/n".into(), watchdog: watchdog.map(Duration::from_micros) })
        };
        for (socket, usec, pid, expected) in [
            (None, None, None, None),
            (Some(""), None, None, None),
            (None, Some("1000000"), None, None),
            (Some("/n"), None, None, supervisor(None)),
            (Some("/n"), Some("1000000"), None, supervisor(Some(1_000_000))),
            (Some("/n"), Some("1000000"), Some("7"), supervisor(Some(1_000_000))),
            (Some("/n"), Some("1000000"), Some("8"), supervisor(None)),
            (Some("/n"), Some("1000000"), Some("x"), supervisor(None)),
            (Some("/n"), Some("0"), None, supervisor(None)),
            (Some("/n"), Some("-1"), None, supervisor(None)),
            (Some("/n"), Some("1s"), None, supervisor(None)),
        ] {
            assert_eq!(read(socket, usec, pid), expected, "{socket:?} {usec:?} {pid:?}");
        }
    }

    /// A supervisor with an abstract socket, and the received notifications.
    struct Listener(UnixDatagram, OsString);

    impl Listener {
        fn new(name: &str) -> Self {
            let name = format!("smolet-test-{}-{name}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).expect("a short name");
            let socket = UnixDatagram::bind_addr(&address).expect("a name of its own");
            socket.set_nonblocking(true).expect("a socket");
            Self(socket, format!("@{name}").into())
        }

        fn received(&self) -> Vec<String> {
            let mut received = Vec::new();
            let mut bytes = [0; 4096];
            while let Ok(length) = self.0.recv(&mut bytes) {
                received.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
            received
        }

        fn notify(&self, watchdog_ms: Option<u64>, now: Mono) -> Notify {
            let watchdog = watchdog_ms.map(Duration::from_millis);
            Notify::new(Some(&Supervisor { socket: self.1.clone(), watchdog }), now)
        }
    }

    #[test]
    fn each_notification_is_a_datagram() {
        let listener = Listener::new("each");
        let notify = listener.notify(None, Mono(0));
        notify.ready();
        notify.status("no runtime:\nREADY=0 is none of ours");
        notify.status("");
        notify.stopping();
        notify.turn(Mono(i64::MAX));
        assert_eq!(
            listener.received(),
            ["READY=1", "STATUS=no runtime: READY=0 is none of ours", "STATUS=", "STOPPING=1"]
        );
        assert_eq!(notify.due(), None, "no watchdog");
    }

    #[test]
    fn the_stop_timeout_is_extended_for_the_pods() {
        let listener = Listener::new("time");
        listener.notify(None, Mono(0)).stopping_within(Duration::from_secs(30));
        assert_eq!(listener.received(), ["STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000"]);
    }

    #[test]
    fn a_long_status_is_cut_between_characters() {
        let listener = Listener::new("long");
        listener.notify(None, Mono(0)).status(&"ä".repeat(SERVICE_STATUS_BYTES_MAX));
        let received = listener.received();
        // "STATUS=" has seven bytes, so half a character would fit.
        assert_eq!(received[0].len(), SERVICE_STATUS_BYTES_MAX - 1);
        assert!(received[0].ends_with('ä'), "{received:?}");
    }

    #[test]
    fn watchdog_notifications_are_sent_at_half_the_timeout() {
        let listener = Listener::new("half");
        let ms = |ms: i64| Mono(ms * 1_000_000);
        let notify = listener.notify(Some(2000), ms(0));
        for (at, signs, due) in
            [(0, 1, 1000), (10, 0, 1000), (999, 0, 1000), (1000, 1, 2000), (5500, 1, 6500)]
        {
            notify.turn(ms(at));
            assert_eq!(listener.received(), vec!["WATCHDOG=1"; signs], "at {at} ms");
            assert_eq!(notify.due(), Some(ms(due)), "at {at} ms");
        }
    }

    #[test]
    fn a_watchdog_of_a_microsecond_does_not_cause_a_busy_loop() {
        let listener = Listener::new("busy");
        let notify = Notify::new(
            Some(&Supervisor { socket: listener.1.clone(), watchdog: Some(Duration::from_micros(1)) }),
            Mono(0),
        );
        notify.turn(Mono(0));
        assert_eq!(notify.due(), Some(Mono(0) + WATCHDOG_PING_MIN));
    }

    #[test]
    fn watchdog_notifications_are_sent_while_another_future_is_awaited() {
        let listener = Listener::new("keep");
        let time = VirtualClock::new(Wall(0));
        let clock: SharedClock = Rc::new(time.clone());
        let notify = listener.notify(Some(2000), time.now().mono);
        let mut keep = Box::pin(notify.keep::<()>(&clock));
        let mut signs = Vec::new();
        for _ in 0..4 {
            assert!(smol::future::block_on(smol::future::poll_once(&mut keep)).is_none());
            signs.push(listener.received().len());
            time.advance(Duration::from_millis(500));
        }
        assert_eq!(signs, [1, 0, 1, 0]);
    }

    #[test]
    fn a_supervisor_that_hangs_or_is_gone_does_not_block() {
        let listener = Listener::new("hangs");
        let notify = listener.notify(None, Mono(0));
        // More than a socket's queue holds.
        for _ in 0..100_000 {
            notify.ready();
        }
        drop(listener);
        notify.ready();
        for socket in ["relative", "vsock:2:1", "/nobody/listens/here"] {
            let notify = Notify::new(Some(&Supervisor { socket: socket.into(), watchdog: None }), Mono(0));
            notify.stopping();
        }
    }
}
