//! Strangers at the node's doors: nobody who was not let in stops the agent, or keeps others out. Addresses of loopback stand
//! for those of a network; 127.0.0.1 is the machine itself.
//!
//! On real time: rates of connections and the processor time that they take are measured.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{ALL_VERSIONS, ServerConfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use smolet::config::{Config, NodeApi};
use smolet::limits::NODE_TOKENS;

use crate::client::{Client, tcp, unused_port};
use crate::common::apiserver::Identity;
use crate::k3s::{is_ready, joining};
use crate::servers::Relay;
use crate::supervisor::K3s;
use crate::world::{NODE, PATIENCE, World};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Who attacks.
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// A client on another machine.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const CONNECTS_A_SECOND: u32 = 150;
/// How long the agent may be silent, on a machine that is busy with other things: the watchdog's time is a minute. Not by a
/// [`crate::common::Stopwatch`]: whoever keeps the agent's processor busy has its clients wait for one.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The promise is this of each poll, by the agent's own measure: its loop is silent for no longer. What its thread was kept from the
/// processor by others comes on top, for a poll is measured by the clock. These builds are not optimised, and hold it all the same.
const POLL_MAX: Duration = Duration::from_millis(250);

// ---- what is measured ------------------------------------------------------------------------------------------

/// Something that goes on until it is stopped.
struct Meanwhile<T> {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Meanwhile<T> {
    fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let shared = ended.clone();
        Self { ended, thread: std::thread::spawn(move || work(&shared)) }
    }

    fn stop(self) -> T {
        self.ended.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// The longest that the agent's own socket was silent.
fn silence(world: &World) -> Meanwhile<Duration> {
    let path = world.path("sock");
    Meanwhile::start(move |ended| {
        let mut longest = Duration::ZERO;
        while !ended.load(Ordering::SeqCst) {
            let begun = Instant::now();
            assert!(health(&path).ends_with("ok"));
            longest = longest.max(begun.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        longest
    })
}

fn health(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).expect("the agent listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    answer
}

/// As many connects a second as a small sender has, each with the first byte of a greeting or of a request; the last ones stay
/// open.
fn connects(from: Vec<Ipv4Addr>, port: u16, first: &'static [u8]) -> Meanwhile<usize> {
    Meanwhile::start(move |ended| {
        let mut open: VecDeque<TcpStream> = VecDeque::new();
        let (begun, mut all) = (Instant::now(), 0);
        while !ended.load(Ordering::SeqCst) {
            if let Ok(mut socket) = tcp(from[all % from.len()], port) {
                let _ = socket.write_all(first);
                open.push_back(socket);
            }
            all += 1;
            if open.len() > 300 {
                open.pop_front();
            }
            let due = Duration::from_secs(1) * u32::try_from(all).unwrap() / CONNECTS_A_SECOND;
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        all
    })
}

/// The longest poll of the agent's tasks since its start, and whose it was: `smolet_longest_poll_seconds`.
fn longest_poll(world: &World) -> (Duration, String) {
    let page = world.local("/metrics");
    let name = "smolet_longest_poll_seconds{task=\"";
    let line = page.lines().find_map(|line| line.strip_prefix(name)).expect("the metric");
    let (task, seconds) = line.split_once("\"} ").expect("a label");
    (Duration::from_secs_f64(seconds.parse().unwrap()), task.to_owned())
}

#[expect(clippy::print_stdout, reason = "what was measured")]
fn assert_polls_are_short(world: &World, attack: &str) {
    let (longest, task) = longest_poll(world);
    println!("{attack}: the longest poll took {longest:?} ({task})");
    // "loop" is the start, before the loop's first turn: it waits for the disk, which other tests keep busy.
    assert!(longest < POLL_MAX || task == "loop", "{attack}: {task} took {longest:?}");
}

fn own_certificate(world: &World) -> String {
    std::fs::read_to_string(world.path("root/pki/smolet.crt")).unwrap()
}

/// The API server, which may do everything.
fn server(world: &World) -> Identity {
    world.api.allow_access("kube-apiserver", "*", "*");
    world.api.identity("kube-apiserver", &[], None)
}

/// Asks with that certificate from there, with so long a way that the greeting comes so late.
fn ask_late(world: &World, from: Ipv4Addr, late: Duration, shown: &Identity) -> Result<String, String> {
    ask_over(tcp(from, world.node_port()), &own_certificate(world), late, shown)
}

/// The same over that connection, trusting that authority.
fn ask_over(
    socket: std::io::Result<TcpStream>,
    authority: &str,
    late: Duration,
    shown: &Identity,
) -> Result<String, String> {
    let asked = || {
        let socket = socket?;
        std::thread::sleep(late);
        let shown = (vec![shown.certificate.clone()], shown.key.clone());
        Client::connect_over(socket, ALL_VERSIONS, authority, Some(shown))?.ask("/healthz", "")
    };
    asked()
        .map_err(|error: std::io::Error| error.to_string())
        .and_then(|said| if said.ends_with("\r\n\r\nok") { Ok(said) } else { Err(said) })
}

// ---- certificates ----------------------------------------------------------------------------------------------

/// A chain whose ends nobody finds: `linked` authorities of one name, any of which may have signed any other, and `others`
/// that have to be read again at each step. With the key of the first.
fn tangled(linked: usize, others: usize) -> (Vec<CertificateDer<'static>>, Vec<u8>) {
    let named = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let key = || KeyPair::generate().unwrap();
    let mut authority = named("a");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authorities = (0..linked).map(|_| authority.self_signed(&key()).unwrap().der().clone());
    let authorities: Vec<_> = authorities.collect();
    let small = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let other = named("b").self_signed(&small).unwrap().der().clone();
    let own = key();
    let first = named("c").signed_by(&own, &Issuer::new(authority, key())).unwrap().der().clone();
    let chain = std::iter::once(first).chain(std::iter::repeat_n(other, others)).chain(authorities);
    (chain.collect(), own.serialize_der())
}

#[test]
fn chains_of_hundreds_of_certificates_do_not_stop_the_agent() {
    let world = World::on_real_time();
    let identity = server(&world);
    let (port, authority) = (world.node_port(), own_certificate(&world));
    let (all, few) = (tangled(9, 240), tangled(9, 0));
    let bytes = all.0.iter().map(|certificate| certificate.len() + 5).sum::<usize>();
    assert!(bytes < 64 * 1024, "rustls refuses {bytes}");
    for (what, (chain, key)) in [("249 certificates", all), ("9 of one name", few)] {
        let silence = silence(&world);
        let clients: Vec<_> = (0..6)
            .map(|_| {
                let (chain, key, authority) = (chain.clone(), key.clone(), authority.clone());
                std::thread::spawn(move || {
                    let socket = tcp(HOSTILE, port)?;
                    Client::connect_over(socket, ALL_VERSIONS, &authority, Some((chain, key)))?
                        .ask("/pods", "")
                })
            })
            .collect();
        for client in clients {
            let said = client.join().unwrap();
            assert!(!said.as_ref().is_ok_and(|said| said.contains(" 200 ")), "{said:?}");
        }
        let longest = silence.stop();
        println!("six clients with {what}: {longest:?} of silence");
        assert!(longest < SILENCE_MAX, "{what}: {longest:?}");
        assert_polls_are_short(&world, what);
    }
    ask_late(&world, ELSEWHERE, Duration::ZERO, &identity).unwrap();
}

#[test]
fn whoever_answers_for_the_api_server_does_not_stop_the_agent_by_certificates() {
    let world = World::on_real_time_without_agent();
    let (chain, key) = tangled(9, 240);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(key.into()))
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let (acceptor, count) = (futures_rustls::TlsAcceptor::from(Arc::new(config)), answered.clone());
    let answering = Meanwhile::start(move |ended| {
        for socket in listener.incoming() {
            if ended.load(Ordering::SeqCst) {
                return;
            }
            let socket = async_io::Async::new(socket.unwrap()).unwrap();
            let accepted =
                smol::block_on(smol::future::or(async { acceptor.accept(socket).await.map(drop) }, async {
                    async_io::Timer::after(Duration::from_secs(30)).await;
                    Err(std::io::ErrorKind::TimedOut.into())
                }));
            assert!(accepted.is_err(), "the agent believes it");
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let config = world.config();
    let kubeconfig = config.kubeconfig.clone().unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace(&world.api.url(), &format!("https://{address}"))).unwrap();
    world.start_with(config);
    world.until("its socket", |world| UnixStream::connect(world.path("sock")).is_ok());
    let silence = silence(&world);
    world.until("it has tried", |_| answered.load(Ordering::SeqCst) >= 2);
    let longest = silence.stop();
    println!("a server with 249 certificates: {longest:?} of silence");
    assert!(longest < SILENCE_MAX, "{longest:?}");
    assert_polls_are_short(&world, "a server with 249 certificates");
    world.kill();
    answering.ended.store(true, Ordering::SeqCst);
    let _ = TcpStream::connect(address);
    answering.stop();
}

// ---- places ----------------------------------------------------------------------------------------------------

/// How long a greeting may be on its way from the other end of the world, or through a slow radio.
const LATE: Duration = Duration::from_millis(600);

/// Out of ten clients from there, those that were kept out.
fn kept_out(world: &World, from: Ipv4Addr, identity: &Identity) -> Vec<String> {
    (0..10).filter_map(|_| ask_late(world, from, LATE, identity).err()).collect()
}

#[test]
fn connects_from_one_address_keep_nobody_else_out() {
    let world = World::on_real_time();
    let identity = server(&world);
    let flood = connects(vec![HOSTILE], world.node_port(), b"\x16");
    std::thread::sleep(Duration::from_secs(1));
    for (who, from) in [("a client nobody knows", ELSEWHERE), ("the machine itself", Ipv4Addr::LOCALHOST)] {
        let refused = kept_out(&world, from, &identity);
        println!("150 connects a second from one address: {who}: {} of 10 kept out", refused.len());
        assert!(refused.is_empty(), "{who}: {refused:?}");
    }
    assert_polls_are_short(&world, "150 connects a second");
    assert!(flood.stop() > 300);
}

#[test]
fn connects_from_many_addresses_keep_out_no_client_that_is_known_nor_the_machine_itself() {
    let world = World::on_real_time();
    let identity = server(&world);
    ask_late(&world, ELSEWHERE, Duration::ZERO, &identity).unwrap();
    let many = (100..200).map(|host| Ipv4Addr::new(127, 0, 0, host)).collect();
    let flood = connects(many, world.node_port(), b"\x16");
    std::thread::sleep(Duration::from_secs(1));
    for (who, from) in [("a client that is known", ELSEWHERE), ("the machine itself", Ipv4Addr::LOCALHOST)] {
        let refused = kept_out(&world, from, &identity);
        println!("150 connects a second from 100 addresses: {who}: {} of 10 kept out", refused.len());
        assert!(refused.is_empty(), "{who}: {refused:?}");
    }
    assert_polls_are_short(&world, "150 connects a second");
    assert!(flood.stop() > 300);
}

/// A k3s server reaches the node through its tunnel, which ends in a socket of the agent's own: no local user has its places.
#[test]
fn connects_of_a_local_user_keep_out_neither_the_tunnel_nor_a_known_client() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let identity = server(&world);
    world.start_with(joining(&world, &k3s, &k3s.token()));
    world.until("the node is ready", is_ready);
    world.until("the tunnel is open", |_| k3s.has_tunnel(NODE));
    let (port, authority) = (world.node_port(), world.api.ca_pem());
    let through = k3s.forward(NODE, &format!("127.0.0.1:{port}"));
    world.until("a known client is let in", |_| {
        ask_over(tcp(ELSEWHERE, port), &authority, Duration::ZERO, &identity).is_ok()
    });
    let flood = connects(vec![Ipv4Addr::LOCALHOST], port, b"\x16");
    std::thread::sleep(Duration::from_secs(1));
    for (who, from, port) in
        [("the tunnel", Ipv4Addr::LOCALHOST, through), ("a client that is known", ELSEWHERE, port)]
    {
        let ask = |_| ask_over(tcp(from, port), &authority, LATE, &identity).err();
        let refused: Vec<String> = (0..10).filter_map(ask).collect();
        println!("150 connects a second of a local user: {who}: {} of 10 kept out", refused.len());
        assert!(refused.is_empty(), "{who}: {refused:?}");
    }
    assert_polls_are_short(&world, "150 connects a second");
    assert!(flood.stop() > 300);
}

/// The address of the API server, which the agent has connected to by itself, is known before anybody was let in from there.
#[test]
fn connects_from_many_addresses_do_not_keep_the_api_server_from_a_new_agent() {
    let world = World::on_real_time_without_agent();
    let identity = server(&world);
    let relay = Relay::start(TcpListener::bind((ELSEWHERE, 0)).unwrap(), world.api.address());
    let config = world.config();
    let kubeconfig = config.kubeconfig.clone().unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace(&world.api.url(), &format!("https://{}", relay.address)))
        .unwrap();
    for start in ["first", "second"] {
        world.start_with(config.clone());
        let many = (66..100).map(|host| Ipv4Addr::new(127, 0, 0, host)).collect();
        let flood = connects(many, world.node_port(), b"\x16");
        std::thread::sleep(Duration::from_secs(1));
        let refused = kept_out(&world, ELSEWHERE, &identity);
        println!(
            "150 connects a second to the {start} agent: the API server: {} of 10 kept out",
            refused.len()
        );
        assert!(refused.is_empty(), "{refused:?}");
        assert_polls_are_short(&world, start);
        assert!(flood.stop() > 300);
        world.kill();
        world.forget_port();
    }
}

/// An agent that tells its health on a port, and that port.
fn with_healthz() -> (World, u16) {
    let world = World::on_real_time_without_agent();
    let config = world.config();
    let healthz = SocketAddr::from((Ipv4Addr::LOCALHOST, unused_port()));
    let node_api = NodeApi { healthz: Some(healthz), ..config.node_api.clone() };
    world.start_with(Config { node_api, ..config });
    world.node_port();
    (world, healthz.port())
}

/// More connections than there are places come at once, again and again, from the address that the probes come from.
#[test]
fn silent_connections_keep_no_probe_from_the_port_of_health() {
    let (world, port) = with_healthz();
    let flood = Meanwhile::start(move |ended| {
        let mut all = 0_u32;
        let mut open = VecDeque::new();
        while !ended.load(Ordering::SeqCst) {
            let burst: Vec<_> = (0..40).filter_map(|_| tcp(Ipv4Addr::LOCALHOST, port).ok()).collect();
            all += u32::try_from(burst.len()).unwrap();
            open.push_back(burst);
            if open.len() > 20 {
                open.pop_front();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        all
    });
    std::thread::sleep(Duration::from_millis(500));
    // A client that this busy machine stops before it has written is silent as the others: it asks anew.
    let mut late = 0;
    let mut ask = || loop {
        // It may be stopped as soon as the kernel has connected it, before it knows.
        let begun = Instant::now();
        let mut socket = tcp(Ipv4Addr::LOCALHOST, port).unwrap();
        let connected = Instant::now();
        let mut said = String::new();
        let asked = write!(socket, "GET /healthz HTTP/1.0\r\n\r\n");
        if connected.elapsed() > Duration::from_micros(200) || begun.elapsed() > Duration::from_micros(400) {
            late += 1;
            assert!(late < 10_000, "none is in time");
            continue;
        }
        std::thread::sleep(Duration::from_millis(5));
        let asked = asked.and_then(|()| socket.read_to_string(&mut said));
        return (asked.is_err() || !said.ends_with("ok")).then(|| format!("{asked:?} {said}"));
    };
    let refused: Vec<String> = (0..100).filter_map(|_| ask()).collect();
    let all = flood.stop();
    println!(
        "{all} silent connections to the port of health: {} of 100 probes kept out, {late} late ones apart",
        refused.len()
    );
    assert_polls_are_short(&world, "silent connections");
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn connects_keep_nobody_from_the_port_of_health() {
    let (_world, port) = with_healthz();
    let flood = connects(vec![HOSTILE], port, b"G");
    std::thread::sleep(Duration::from_secs(1));
    for from in [ELSEWHERE, Ipv4Addr::LOCALHOST] {
        let refused = (0..10)
            .filter(|_| {
                let mut socket = tcp(from, port).unwrap();
                std::thread::sleep(LATE / 3);
                let mut said = String::new();
                let asked = write!(socket, "GET /healthz HTTP/1.0\r\n\r\n");
                asked.and_then(|()| socket.read_to_string(&mut said)).is_err() || !said.ends_with("ok")
            })
            .count();
        println!("150 connects a second to the port of health: {refused} of 10 from {from} kept out");
        assert_eq!(refused, 0, "{from}");
    }
    flood.stop();
}

// ---- what strangers cost ---------------------------------------------------------------------------------------

#[test]
fn handshakes_of_one_address_are_rationed() {
    use futures_rustls::rustls::version::TLS12;
    let world = World::on_real_time();
    let identity = server(&world);
    ask_late(&world, ELSEWHERE, Duration::ZERO, &identity).unwrap();
    let (port, authority) = (world.node_port(), own_certificate(&world));
    let floods: Vec<_> = (0..4)
        .map(|_| {
            let authority = authority.clone();
            Meanwhile::start(move |ended| {
                let mut all = 0_u32;
                while !ended.load(Ordering::SeqCst) {
                    let socket = tcp(HOSTILE, port).unwrap();
                    // Of 1.2 the client is the one who hears last.
                    all += u32::from(Client::connect_over(socket, &[&TLS12], &authority, None).is_ok());
                }
                all
            })
        })
        .collect();
    // Until what may be done at once is used up.
    std::thread::sleep(Duration::from_secs(4));
    let (begun, before) = (Instant::now(), world.processor_time());
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        ask_late(&world, ELSEWHERE, Duration::ZERO, &identity).unwrap();
        longest = longest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(400));
    }
    let (took, time) = (world.processor_time() - before, begun.elapsed());
    assert_polls_are_short(&world, "handshakes of one address");
    let handshakes: u32 = floods.into_iter().map(Meanwhile::stop).sum();
    println!(
        "{handshakes} handshakes of one address: {took:?} of the processor in {time:?}; a known client: {longest:?}"
    );
    assert!(longest < SILENCE_MAX, "{longest:?}");
    // A tenth is its share; what accepts it, and the known client, cost something beside it.
    assert!(took < time * 3 / 10, "{took:?} of {time:?}");
}

#[test]
fn tokens_of_nobody_are_asked_for_a_few_times_and_a_known_clients_at_once() {
    let world = World::on_real_time();
    let identity = server(&world);
    ask_late(&world, ELSEWHERE, Duration::ZERO, &identity).unwrap();
    world.api.add_token("new", "kube-apiserver", &[]);
    let ask = |from, token: &str| {
        let socket = tcp(from, world.node_port()).unwrap();
        let client = Client::connect_over(socket, ALL_VERSIONS, &own_certificate(&world), None).unwrap();
        client.ask("/healthz", &format!("Authorization: Bearer {token}\r\n")).unwrap()
    };
    let begun = Instant::now();
    let said: Vec<String> = (0..60).map(|number| ask(HOSTILE, &format!("wrong-{number}"))).collect();
    let (reviews, seconds) = (world.api.count("POST", TOKEN_REVIEWS), begun.elapsed().as_secs() + 1);
    println!("60 tokens of nobody: the API server was asked {reviews} times");
    let (limited, others): (Vec<String>, Vec<String>) =
        said.into_iter().partition(|said| said.starts_with("HTTP/1.1 429 "));
    assert!(others.iter().all(|said| said.starts_with("HTTP/1.1 401 ")), "{others:?}");
    let why = "\r\n\r\nTokenReview rate limit of this address exceeded; retry\n";
    assert!(!limited.is_empty() && limited.iter().all(|said| said.ends_with(why)), "{limited:?}");
    assert!(ask(ELSEWHERE, "new").ends_with("\r\n\r\nok"));
    // Each handshake takes long on a busy machine, and meanwhile another token may be asked for.
    let allowed = u64::from(NODE_TOKENS.burst) + u64::from(NODE_TOKENS.per_second) * seconds;
    assert!((1..=allowed).contains(&(reviews as u64)), "{reviews} of {allowed} in {seconds} s");
}
