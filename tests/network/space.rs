//! Network namespaces of this process: each is a thread's, and ends with it. Links between two end with either.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::UnshareFlags;

/// A connection that is neither accepted nor refused by then is dropped.
const DROPPED: Duration = Duration::from_secs(5);
/// How long an answer may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with its loopback up.
pub struct Space {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

impl Space {
    pub fn new() -> Self {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            #[allow(deprecated, reason = "its successor is an unsafe function")]
            let unshared = rustix::thread::unshare(UnshareFlags::NEWNET);
            unshared.expect("a network namespace needs root");
            ready.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            while let Ok(job) = receiver.recv() {
                job();
            }
        });
        let thread_id = is_ready.recv().unwrap();
        let space = Self { jobs: Some(jobs), thread: Some(thread), thread_id };
        space.ip("link set lo up");
        // Addresses can be used at once.
        space.set("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        space
    }

    /// Runs it in the namespace, and waits for its result.
    pub fn within<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || {
            let _ = done.send(job());
        });
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().expect("the job ended by a panic")
    }

    /// What a program of this machine prints there.
    pub fn run(&self, program: &str, arguments: &str) -> String {
        let (program, words) = (program.to_owned(), arguments.to_owned());
        self.within(move || {
            let output = Command::new(&program).args(words.split(' ')).output().unwrap();
            assert!(
                output.status.success(),
                "{program} {words}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout).unwrap()
        })
    }

    pub fn ip(&self, arguments: &str) {
        self.run("ip", arguments);
    }

    pub fn set(&self, path: &str, value: &str) {
        let (path, value) = (path.to_owned(), value.to_owned());
        self.within(move || std::fs::write(path, value).unwrap());
    }

    /// A link to another namespace, with an address (with its prefix) at each end.
    pub fn link(&self, name: &str, addresses: &[&str], to: &Space, of: &[&str]) {
        self.ip(&format!("link add {name} type veth peer name eth0 netns {}", to.thread_id));
        for (space, link, addresses) in [(self, name, addresses), (to, "eth0", of)] {
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                space.ip(&format!("addr add {address} dev {link}{nodad}"));
            }
            space.ip(&format!("link set {link} up"));
        }
    }

    /// Answers each connection to that port of TCP with the name and the client's address, until the namespace ends.
    pub fn serve_tcp(&self, at: SocketAddr, name: &'static str) {
        let listener = self.within(move || TcpListener::bind(at).unwrap());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else { return };
                let client = connection.peer_addr().unwrap().ip();
                let _ = connection.write_all(format!("{name} {client}").as_bytes());
            }
        });
    }

    /// Answers each packet to that port of UDP with the name.
    pub fn serve_udp(&self, at: SocketAddr, name: &'static str) {
        let socket = self.within(move || UdpSocket::bind(at).unwrap());
        std::thread::spawn(move || {
            let mut packet = [0; 64];
            while let Ok((_, client)) = socket.recv_from(&mut packet) {
                let _ = socket.send_to(name.as_bytes(), client);
            }
        });
    }

    /// Who serves that address for a client here, and the client's address as the server saw it.
    pub fn ask(&self, to: SocketAddr) -> Result<(String, IpAddr), std::io::ErrorKind> {
        self.within(move || {
            let mut connection = TcpStream::connect_timeout(&to, DROPPED).map_err(|error| error.kind())?;
            let mut answer = String::new();
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            connection.read_to_string(&mut answer).map_err(|error| error.kind())?;
            let (name, client) = answer.split_once(' ').unwrap();
            Ok((name.to_owned(), client.parse().unwrap()))
        })
    }

    /// The names of all who serve that address, in order of their names.
    pub fn ask_often(&self, to: SocketAddr) -> Vec<String> {
        let mut names: Vec<String> = (0..24).map(|_| self.ask(to).unwrap().0).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}
