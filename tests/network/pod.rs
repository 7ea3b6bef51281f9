//! A pod of the tests' nodes as a client: sockets in its network namespace.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::node::PATIENCE;

/// A connection that is neither accepted nor refused by then is dropped. A refusal of the kernel's own may come with the second packet,
/// after a second.
const DROPPED: Duration = Duration::from_millis(2500);
/// Connections after which each of two endpoints was certainly chosen.
const ASKED: usize = 24;
/// Between two connections of a client that asks all the time.
const PAUSE: Duration = Duration::from_millis(50);

/// Who answered, and which client's address it saw.
pub type Answer = Result<(String, IpAddr), ErrorKind>;

/// That port of that address.
pub fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().unwrap(), port)
}

pub struct Pod {
    pub name: &'static str,
    pub ip: IpAddr,
    net: Arc<File>,
}

impl Pod {
    /// With the network namespace of that process.
    pub fn new(name: &'static str, ip: IpAddr, process: Pid) -> Self {
        let net = File::open(format!("/proc/{}/ns/net", process.as_raw_nonzero())).expect("it runs");
        Self { name, ip, net: Arc::new(net) }
    }

    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// Runs it on a thread in the pod's network namespace.
    fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let net = self.net.clone();
        std::thread::spawn(move || {
            move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            work()
        })
    }

    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(work).join().expect("the work does not panic")
    }

    pub fn ask(&self, to: SocketAddr) -> Answer {
        self.within(move || ask(to))
    }

    /// Whether somebody of that name answers, and sees the pod's own address.
    pub fn reaches(&self, to: SocketAddr, name: &str) -> bool {
        self.ask(to) == Ok((name.to_owned(), self.ip))
    }

    /// Whether the connection is refused, and not lost.
    pub fn is_refused(&self, to: SocketAddr) -> bool {
        self.ask(to) == Err(ErrorKind::ConnectionRefused)
    }

    /// See [`servers`].
    pub fn servers(&self, to: SocketAddr) -> Result<Vec<String>, ErrorKind> {
        self.within(move || servers(to))
    }

    /// Bytes of that page.
    pub fn fetch(&self, to: SocketAddr, path: &'static str) -> Result<usize, ErrorKind> {
        self.within(move || get(to, path).map(|page| page.len()))
    }

    /// Whether a connection is accepted.
    pub fn connects(&self, to: SocketAddr) -> bool {
        self.within(move || TcpStream::connect_timeout(&to, DROPPED).is_ok())
    }

    /// A server of datagrams on that port: it tells its name.
    pub fn serve_datagrams(&self, port: u16) -> DatagramServer {
        let name = self.name;
        self.answer_datagrams(port, move |_| name.as_bytes().to_vec())
    }

    /// A name server that knows the address of one name.
    pub fn serve_name(&self, name: &str, address: Ipv4Addr) -> DatagramServer {
        let labels = name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
        let known: Vec<u8> = labels.chain([0]).collect();
        self.answer_datagrams(53, move |asked| answer(asked, &known, address))
    }

    fn answer_datagrams(
        &self,
        port: u16,
        answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
    ) -> DatagramServer {
        let stop = Arc::new(AtomicBool::new(false));
        let socket =
            self.within(move || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a free port"));
        socket.set_read_timeout(Some(PAUSE)).expect("a time limit");
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let mut asked = [0; 512];
                if let Ok((length, client)) = socket.recv_from(&mut asked) {
                    // Its way may be gone with the pod.
                    let _ = socket.send_to(&answer(&asked[..length]), client);
                }
            }
        });
        DatagramServer { stop, thread: Some(thread) }
    }

    /// A client of datagrams, whose port stays.
    pub fn datagrams(&self, to: SocketAddr) -> Datagrams {
        let socket = self.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port"));
        socket.set_read_timeout(Some(DROPPED)).expect("a time limit");
        Datagrams { socket, to }
    }

    /// A client that asks until it is told to stop.
    pub fn keep_asking(&self, to: SocketAddr) -> Traffic {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (told, answers) = (stop.clone(), answered.clone());
        let what = format!("{} to {to}", self.name);
        let thread = self.spawn(move || {
            let mut tally = Tally { what, ..Tally::default() };
            while !told.load(Ordering::Relaxed) {
                let begun = Instant::now();
                match ask(to) {
                    Ok(_) => {
                        tally.answered += 1;
                        answers.store(tally.answered, Ordering::Relaxed);
                    }
                    Err(why) => tally.failed.push(why),
                }
                tally.longest = tally.longest.max(begun.elapsed());
                std::thread::sleep(PAUSE);
            }
            tally
        });
        Traffic { stop, answered, thread: Some(thread) }
    }
}

/// Of the name server (RFC 1035): the header, the question, and the address if it is asked for.
fn answer(asked: &[u8], known: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let question = &asked[12..];
    let name_end = question.iter().position(|byte| *byte == 0).expect("a question") + 1;
    let (name, kind) = (&question[..name_end], &question[name_end..name_end + 2]);
    let (is_known, is_address) = (name.eq_ignore_ascii_case(known), kind == [0, 1]);
    let found = u8::from(is_known && is_address);
    let mut said = asked[..2].to_vec();
    said.extend([0x81, if is_known { 0x80 } else { 0x83 }, 0, 1, 0, found, 0, 0, 0, 0]);
    said.extend(&question[..name_end + 4]);
    if found == 1 {
        said.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        said.extend(address.octets());
    }
    said
}

/// Ends with the test.
pub struct DatagramServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DatagramServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It is only waited for.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A socket of a pod.
pub struct Datagrams {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Datagrams {
    /// Who answers; `None`: nobody, or not from where it was asked.
    pub fn ask(&self) -> Option<String> {
        self.socket.send_to(b"who", self.to).ok()?;
        let mut name = [0; 64];
        let (length, from) = self.socket.recv_from(&mut name).ok()?;
        (from == self.to).then(|| String::from_utf8_lossy(&name[..length]).into_owned())
    }
}

/// What became of a client's connections.
#[derive(Debug, Default)]
pub struct Tally {
    pub what: String,
    pub answered: usize,
    pub failed: Vec<ErrorKind>,
    pub longest: Duration,
}

/// A client that asks all the time.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Tally>>,
}

impl Traffic {
    /// Answers so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    pub fn stop(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let tally = self.thread.take().expect("it is stopped once").join().expect("it does not panic");
        println!(
            "{}: {} answers, {} refusals, longest {:?}",
            tally.what,
            tally.answered,
            tally.failed.len(),
            tally.longest
        );
        tally
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Who answers a client in this thread's namespace.
pub fn ask(to: SocketAddr) -> Answer {
    let page = get(to, "/cgi-bin/who")?;
    let page = String::from_utf8(page).expect("a name");
    let answer = page.trim_end().lines().last().and_then(|line| line.split_once(' '));
    let (name, client) = answer.ok_or(ErrorKind::UnexpectedEof)?;
    Ok((name.to_owned(), client.parse().map_err(|_| ErrorKind::InvalidData)?))
}

/// The names of all who answer there, in order.
pub fn servers(to: SocketAddr) -> Result<Vec<String>, ErrorKind> {
    let names: Result<Vec<String>, ErrorKind> = (0..ASKED).map(|_| Ok(ask(to)?.0)).collect();
    let mut names = names?;
    names.sort();
    names.dedup();
    Ok(names)
}

/// A page, with the head before it.
fn get(to: SocketAddr, path: &str) -> Result<Vec<u8>, ErrorKind> {
    let mut connection = TcpStream::connect_timeout(&to, DROPPED).map_err(|error| error.kind())?;
    connection.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut page = Vec::new();
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n").map_err(|error| error.kind())?;
    connection.read_to_end(&mut page).map_err(|error| error.kind())?;
    Ok(page)
}
