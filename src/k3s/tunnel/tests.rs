use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use smol::io::{AsyncRead, AsyncWrite};

use async_io::Async;
use smol::channel::Receiver;

use super::*;
use crate::clock::{Clock as _, VirtualClock};
use crate::executor::Executor;
use crate::k3s::message::{self, END, Message};
use crate::kube::Authenticated;
use crate::limits::{
    TUNNEL_CONNECTIONS_MAX, TUNNEL_NUDGE_TIME, TUNNEL_PAUSE_BYTES, TUNNEL_PAUSED_TIME,
    TUNNEL_QUEUED_BYTES_MAX, TUNNEL_QUEUED_BYTES_SHARE, TUNNEL_STUCK_TIME,
};
use crate::metrics::Gauge;

/// A session whose frames are read here, and the node's API behind it.
struct World {
    session: Rc<Session>,
    frames: Receiver<Vec<u8>>,
    draining: Receiver<()>,
    executor: Rc<Executor>,
    open: Sender<Infallible>,
    closed: Receiver<Infallible>,
    clock: VirtualClock,
    api: TcpListener,
}

impl World {
    fn new() -> Self {
        let api = TcpListener::bind("127.0.0.1:0").unwrap();
        let (queries, _) = smol::channel::bounded(1);
        let (frames_in, frames) = smol::channel::unbounded();
        let (drained, draining) = smol::channel::bounded(1);
        let (open, closed) = smol::channel::bounded(1);
        let clock = VirtualClock::new(crate::model::Wall(0));
        let session = Rc::new(Session {
            frames: frames_in,
            sent: Cell::new(0),
            connections: RefCell::default(),
            places: Arc::new(Semaphore::new(TUNNEL_CONNECTIONS_MAX)),
            queued: Cell::new(0),
            of_all: Rc::default(),
            drained,
            heard: Cell::new(clock.now().mono),
            held: Gauge::default(),
            reach: Reach {
                node_api: api.local_addr().unwrap(),
                sockets: TunnelSockets::default(),
                asker: QuerySender::new(queries),
                pods: Rc::default(),
            },
            clock: Rc::new(clock.clone()),
        });
        Self { session, frames, draining, executor: Rc::new(Executor::new()), open, closed, clock, api }
    }

    /// Sends a message of the server.
    async fn say(&self, id: i64, message: Message<'_>) {
        let rest = match &message {
            Message::Connect(protocol, address) => format!("{protocol}/{address}").into_bytes(),
            Message::Data(bytes) | Message::Ended(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        let whole = [message::head(0, id, &message), rest].concat();
        self.session
            .take(&whole, &Rc::downgrade(&self.executor), &self.closed, &self.draining)
            .await
            .unwrap();
    }

    async fn dial(&self, id: i64) {
        let to = self.api.local_addr().unwrap().to_string();
        self.say(id, Message::Connect("tcp", &to)).await;
    }

    /// The next message that the server receives: connection, kind and bytes.
    async fn hear(&self) -> (i64, &'static str, Vec<u8>) {
        let late = async {
            async_io::Timer::after(Duration::from_secs(30)).await;
            panic!("nothing is said")
        };
        let mut frame = smol::future::or(async { self.frames.recv().await.unwrap() }, late).await;
        let head = 2 + frame::length_bytes([frame[0], frame[1] & 0x7f]);
        let mask: Vec<u8> = frame[head..head + 4].to_vec();
        let payload = &mut frame[head + 4..];
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        let (id, message) = message::read(payload).unwrap();
        match message {
            Message::Data(bytes) => (id, "data", bytes.to_vec()),
            Message::Ended(why) => (id, "ended", why.to_vec()),
            Message::Pause => (id, "pause", Vec::new()),
            Message::Resume => (id, "resume", Vec::new()),
            Message::Connect(..) | Message::Other => panic!("a node says no such thing: {message:?}"),
        }
    }

    fn run(&self, work: impl Future<Output = ()>) {
        smol::block_on(self.executor.run(work));
    }

    fn tunnel(&self) -> Tunnel {
        let clock: SharedClock = Rc::new(self.clock.clone());
        let common = Common {
            supervisor: Supervisor::new(clock.clone(), Authenticated::default()),
            access: Access::new(std::path::Path::new("/nowhere")),
            reach: self.session.reach.clone(),
            executor: Rc::downgrade(&self.executor),
            clock,
            seed: 1,
            held: NodeApiUse::default(),
            places: Arc::new(Semaphore::new(TUNNEL_CONNECTIONS_MAX)),
            queued: Rc::default(),
        };
        let ((changed, _), (lost, _)) = (smol::channel::bounded(1), smol::channel::bounded(1));
        Tunnel {
            server: ServerUrl::parse("https://127.0.0.1:1").unwrap(),
            common,
            standing: Rc::new(Cell::new(TunnelState::Tried)),
            changed,
            lost,
        }
    }

    async fn accept(&self) -> Async<TcpStream> {
        let listener = Async::new(self.api.try_clone().unwrap()).unwrap();
        listener.accept().await.unwrap().0
    }
}

#[test]
fn a_tunnel_that_is_lost_before_anybody_looks_is_reported() {
    let world = World::new();
    let (lost, reports) = smol::channel::bounded(1);
    let tunnel = Tunnel { lost, ..world.tunnel() };
    for states in [&[TunnelState::Open, TunnelState::Lost][..], &[TunnelState::Open, TunnelState::Lost]] {
        for state in states {
            tunnel.stands(*state);
        }
        assert_eq!(reports.try_recv(), Ok(()), "{states:?}");
    }
    tunnel.stands(TunnelState::Lost);
    assert!(reports.try_recv().is_err(), "it was lost before");
}

const PIECE: usize = 16 * 1024;

#[test]
fn who_reads_slowly_is_waited_for_and_everything_arrives_in_order() {
    let world = World::new();
    world.run(async {
        world.dial(7).await;
        let socket = world.accept().await;
        // Until the kernel's buffers are full, and then some more.
        let mut pieces = 0_u32;
        while world.frames.is_empty() {
            let piece = vec![u8::try_from(pieces % 251).unwrap(); PIECE];
            world.say(7, Message::Data(&piece)).await;
            pieces += 1;
            smol::future::yield_now().await;
            async_io::Timer::after(Duration::from_micros(200)).await;
        }
        assert_eq!(world.hear().await, (7, "pause", Vec::new()));
        assert!(world.session.queued.get() <= TUNNEL_PAUSE_BYTES + PIECE, "{}", world.session.queued.get());
        world.say(7, Message::Ended(END.as_bytes())).await;
        let mut bytes = Vec::new();
        (&socket).read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), usize::try_from(pieces).unwrap() * PIECE);
        let in_order = bytes
            .chunks(PIECE)
            .zip(0_u32..)
            .all(|(piece, n)| piece.iter().all(|byte| u32::from(*byte) == n % 251));
        assert!(in_order);
        assert_eq!(world.session.queued.get(), 0);
    });
    assert!(world.frames.is_empty(), "the server has closed it and receives no further frame of it");
    assert_eq!(world.session.places.try_acquire_arc().map(|_| ()), Some(()));
    drop(world.open);
}

#[test]
fn who_reads_nothing_is_given_up_when_the_others_stand_still_with_it() {
    let world = World::new();
    world.run(async {
        world.dial(1).await;
        let _stuck = world.accept().await;
        world.dial(2).await;
        let other = world.accept().await;
        let fill = async {
            while world.session.connection(1).is_some() {
                world.say(1, Message::Data(&[0; PIECE])).await;
                async_io::Timer::after(Duration::from_micros(200)).await;
            }
        };
        let time = async {
            while world.session.queued.get() <= TUNNEL_QUEUED_BYTES_MAX {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            let begun = world.clock.now().mono;
            // Nothing further is read meanwhile.
            async_io::Timer::after(Duration::from_millis(20)).await;
            assert!(world.session.queued.get() <= TUNNEL_QUEUED_BYTES_MAX + PIECE);
            while world.session.connection(1).is_some() {
                world.clock.advance(Duration::from_secs(1));
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            assert!(world.clock.now().mono.since(begun) >= TUNNEL_STUCK_TIME);
            // Its queue is dropped a while later.
            while world.session.queued.get() > 0 {
                world.clock.advance(Duration::from_secs(1));
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
        };
        smol::future::zip(fill, time).await;
        // It kept sending, and was asked to pause again after each such amount.
        let mut pauses = 0;
        while world.frames.len() > 1 {
            assert_eq!(world.hear().await, (1, "pause", Vec::new()));
            pauses += 1;
        }
        assert!((10..=TUNNEL_QUEUED_BYTES_MAX / TUNNEL_PAUSE_BYTES).contains(&pauses), "{pauses}");
        assert_eq!(world.hear().await, (1, "ended", b"reads nothing".to_vec()));
        world.say(2, Message::Data(b"hello")).await;
        let mut bytes = [0; 5];
        (&other).read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hello");
    });
}

#[test]
fn a_tunnel_has_its_share_when_the_others_have_filled_the_rest() {
    let world = World::new();
    world.session.of_all.set(TUNNEL_QUEUED_BYTES_MAX);
    world.run(async {
        world.dial(1).await;
        let _stuck = world.accept().await;
        let fill = async {
            loop {
                world.say(1, Message::Data(&[0; PIECE])).await;
                async_io::Timer::after(Duration::from_micros(200)).await;
            }
        };
        let time = async {
            while world.session.queued.get() <= TUNNEL_QUEUED_BYTES_SHARE {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            async_io::Timer::after(Duration::from_millis(20)).await;
            assert!(world.session.queued.get() <= TUNNEL_QUEUED_BYTES_SHARE + 2 * PIECE);
            assert!(world.session.is_full());
            // The other tunnels have drained their queues, of which this session is not notified.
            world.session.of_all.set(world.session.queued.get());
            world.clock.advance(TUNNEL_STUCK_TIME);
            while world.session.queued.get() <= 2 * TUNNEL_QUEUED_BYTES_SHARE {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            assert!(world.session.connection(1).is_some(), "it is not given up for the others' sake");
        };
        smol::future::or(fill, time).await;
    });
    let (of_all, queued) = (world.session.of_all.clone(), world.session.queued.get());
    assert_eq!(of_all.get(), queued);
    drop(world);
    assert_eq!(of_all.get(), 0, "what was queued goes with the tunnel");
}

#[test]
fn tunnels_say_their_words_at_the_same_instant() {
    let period = i64::try_from(TUNNEL_PING_PERIOD.as_nanos()).unwrap();
    for (now, next) in [(0, period), (1, period), (period - 1, period), (period, 2 * period)] {
        assert_eq!(Mono(now) + until_ping(Mono(now)), Mono(next), "{now}");
    }
}

#[test]
fn while_the_server_pauses_nothing_is_sent_and_a_gone_connection_is_said_to_be() {
    let world = World::new();
    world.run(async {
        world.dial(3).await;
        let socket = world.accept().await;
        (&socket).write_all(b"one").await.unwrap();
        assert_eq!(world.hear().await, (3, "data", b"one".to_vec()));
        world.say(3, Message::Pause).await;
        // What is being read at that moment is still delivered.
        (&socket).write_all(b"two").await.unwrap();
        assert_eq!(world.hear().await, (3, "data", b"two".to_vec()));
        (&socket).write_all(b"three").await.unwrap();
        async_io::Timer::after(Duration::from_millis(50)).await;
        assert!(world.frames.is_empty());
        world.say(3, Message::Resume).await;
        assert_eq!(world.hear().await, (3, "data", b"three".to_vec()));
        drop(socket);
        assert_eq!(world.hear().await, (3, "ended", END.as_bytes().to_vec()));
        world.say(3, Message::Data(b"late")).await;
        assert_eq!(world.hear().await, (3, "ended", b"connection not found".to_vec()));
        world.say(3, Message::Ended(b"")).await;
        world.say(0, Message::Other).await;
    });
    assert!(world.frames.is_empty() && world.session.connections.borrow().is_empty());
}

/// remotedialer forgets that it has paused us when a Resume of ours arrives in between.
#[test]
fn a_pause_that_the_server_has_forgotten_ends() {
    let world = World::new();
    world.run(async {
        world.dial(3).await;
        let socket = world.accept().await;
        (&socket).write_all(b"one").await.unwrap();
        assert_eq!(world.hear().await.1, "data");
        world.say(3, Message::Pause).await;
        (&socket).write_all(b"two").await.unwrap();
        assert_eq!(world.hear().await.1, "data", "what was being read");
        (&socket).write_all(b"two").await.unwrap();
        for (wait, piece) in [(TUNNEL_PAUSED_TIME, b"two"), (2 * TUNNEL_PAUSED_TIME, b"six")] {
            async_io::Timer::after(Duration::from_millis(20)).await;
            assert!(world.frames.is_empty());
            world.clock.advance(wait);
            assert_eq!(world.hear().await, (3, "pause", Vec::new()));
            assert_eq!(world.hear().await, (3, "data", piece.to_vec()));
            async_io::Timer::after(Duration::from_millis(20)).await;
            assert!(world.frames.is_empty(), "it is waited for a while");
            world.clock.advance(TUNNEL_NUDGE_TIME);
            assert_eq!(world.hear().await, (3, "resume", Vec::new()));
            (&socket).write_all(b"six").await.unwrap();
        }
        world.say(3, Message::Resume).await;
        assert_eq!(world.hear().await, (3, "data", b"six".to_vec()));
    });
}

#[test]
fn there_are_so_many_connections_at_once_and_no_more() {
    let world = World::new();
    world.run(async {
        let mut sockets = Vec::new();
        for id in 1..=i64::try_from(TUNNEL_CONNECTIONS_MAX).unwrap() {
            world.dial(id).await;
            sockets.push(world.accept().await);
        }
        assert_eq!(world.session.held.get(), TUNNEL_CONNECTIONS_MAX);
        world.dial(1000).await;
        assert_eq!(world.hear().await, (1000, "ended", b"too many connections at once".to_vec()));
        sockets.pop();
        assert_eq!(world.hear().await.1, "ended");
        while world.session.held.get() == TUNNEL_CONNECTIONS_MAX {
            smol::future::yield_now().await;
        }
        world.dial(1001).await;
        sockets.push(world.accept().await);
    });
    let twice = smol::block_on(world.executor.run(async {
        let to = [message::head(0, 1001, &Message::Connect("", "")), b"tcp/127.0.0.1:1".to_vec()].concat();
        world.session.take(&to, &Rc::downgrade(&world.executor), &world.closed, &world.draining).await
    }));
    assert_eq!(twice, Err("connection 1001 is opened twice".to_owned()));
}

/// A link that has delivered some bytes and is lost silently: nothing is received, and no write is acknowledged.
struct Gone(Vec<u8>);

impl AsyncRead for Gone {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.is_empty() {
            return Poll::Pending;
        }
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Poll::Ready(Ok(bytes.len()))
    }
}

impl AsyncWrite for Gone {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl Duplex for Gone {}

#[test]
fn a_link_that_is_gone_without_a_word_is_given_up_while_much_waits_to_be_written() {
    let world = World::new();
    let mut asked = Vec::new();
    for id in 1..=20 {
        let message = [message::head(0, id, &Message::Connect("", "")), b"udp/127.0.0.1:1".to_vec()].concat();
        asked.extend([0x82, u8::try_from(message.len()).unwrap()]);
        asked.extend(message);
    }
    let tunnel = world.tunnel();
    let begun = world.clock.now().mono;
    let (incoming, outgoing) = smol::io::split(Box::new(Gone(asked)) as Box<dyn Duplex>);
    let served = tunnel.serve(Incoming { stream: incoming, bytes: Vec::new(), taken: 0 }, outgoing);
    let time = async {
        loop {
            async_io::Timer::after(Duration::from_millis(1)).await;
            world.clock.advance(Duration::from_secs(1));
            let passed = world.clock.now().mono.since(begun);
            assert!(passed < 2 * TUNNEL_SILENCE_MAX, "it goes on as if nothing had happened");
        }
    };
    let why = smol::block_on(world.executor.run(smol::future::or(served, time)));
    assert_eq!(why, "nothing received for 60 s");
    assert_eq!(tunnel.common.held.tunnels.get(), 0);
}

/// A link that transmits a frame every ten seconds, to a server that answers pings and sends nothing else.
struct Slow {
    clock: VirtualClock,
    /// Until when the previous frame is being transmitted.
    busy: Option<crate::clock::Sleep>,
    coming: Rc<RefCell<(VecDeque<u8>, Option<Waker>)>>,
}

impl AsyncRead for Slow {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let (bytes, waker) = &mut *self.coming.borrow_mut();
        if bytes.is_empty() {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(buffer.len());
        bytes.drain(..count).zip(buffer).for_each(|(byte, place)| *place = byte);
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, frame: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(busy) = &mut self.busy {
            std::task::ready!(busy.as_mut().poll(cx));
        }
        self.busy = Some(self.clock.sleep(Duration::from_secs(10)));
        if frame[0] == 0x89 {
            let (bytes, waker) = &mut *self.coming.borrow_mut();
            bytes.extend([0x8a, 0]);
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
        Poll::Ready(Ok(frame.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Duplex for Slow {}

/// The server does not count data as a sign of life, and answers none of it.
#[test]
fn a_long_upload_on_a_slow_link_does_not_end_the_tunnel() {
    let world = World::new();
    let to = format!("tcp/{}", world.api.local_addr().unwrap());
    let message = [message::head(0, 1, &Message::Connect("", "")), to.into_bytes()].concat();
    let frame = [vec![0x82, u8::try_from(message.len()).unwrap()], message].concat();
    let coming = Rc::new(RefCell::new((VecDeque::from(frame), None)));
    let slow = Slow { clock: world.clock.clone(), busy: None, coming };
    let (incoming, outgoing) = smol::io::split(Box::new(slow) as Box<dyn Duplex>);
    let tunnel = world.tunnel();
    let served = async {
        let incoming = Incoming { stream: incoming, bytes: Vec::new(), taken: 0 };
        panic!("{}", tunnel.serve(incoming, outgoing).await)
    };
    let upload = async {
        let socket = world.accept().await;
        loop {
            (&socket).write_all(&[0; PIECE]).await.unwrap();
        }
    };
    let time = async {
        for _ in 0..5 * TUNNEL_SILENCE_MAX.as_secs() {
            async_io::Timer::after(Duration::from_millis(1)).await;
            world.clock.advance(Duration::from_secs(1));
        }
    };
    smol::block_on(world.executor.run(smol::future::or(time, smol::future::or(served, upload))));
}
