//! The agent under attack: the built binary as a process of its own beside the fake runtime, with all its paths in a
//! temporary folder.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::agent::Home;
pub use crate::common::agent::PATIENCE;
use crate::common::fake::Fake;

/// The promise: resident memory under hostile input, text and all.
const MEMORY_KIB_MAX: u64 = 16 * 1024;
/// The promise: how long one poll holds the thread at most, whatever anybody does.
pub const SILENCE_MAX: Duration = Duration::from_millis(250);
/// Neither memory nor disks nor images are watched.
pub const CALM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml");
/// All are.
pub const WATCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/watched.yaml");

/// Elapsed time without that in which the agent's thread, or this one, waited for a processor: on a busy machine that is no silence
/// of the agent's.
pub struct Watch {
    begun: Instant,
    pid: u32,
    waited: Duration,
}

impl Watch {
    /// For the agent of that PID.
    pub fn start(pid: u32) -> Self {
        Self { begun: Instant::now(), pid, waited: Self::waited(pid) }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Self::waited(self.pid).saturating_sub(self.waited))
    }

    /// So far; nothing where the kernel does not tell.
    fn waited(pid: u32) -> Duration {
        let of = |thread: String| {
            // Time on a processor, time of waiting for one (`run_delay`), and how often.
            let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
            let nanos = text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
            Duration::from_nanos(nanos.unwrap_or(0))
        };
        of(pid.to_string()) + of("thread-self".to_owned())
    }
}

pub struct Agent {
    pub fake: Fake,
    home: Home,
    child: Child,
    configuration: String,
    flags: Vec<String>,
    /// Resident memory, in KiB, with one pod running and nothing hostile yet.
    quiet_kib: u64,
    others: usize,
}

impl Agent {
    /// An agent with one good pod that runs.
    pub fn start() -> Self {
        Self::beside(Fake::start_on_real_time())
    }

    /// The same in a runtime that has been prepared.
    pub fn beside(fake: Fake) -> Self {
        Self::with(fake, CALM, &[])
    }

    /// The same with a configuration file and further flags.
    pub fn with(fake: Fake, configuration: &str, flags: &[&str]) -> Self {
        let home = Home::before_an_agent();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let child = Self::spawn(&fake, &home, configuration, &flags);
        let configuration = configuration.to_owned();
        let mut agent = Self { fake, home, child, configuration, flags, quiet_kib: 0, others: 0 };
        agent.everything_goes_on();
        agent.quiet_kib = agent.memory_kib("VmHWM:");
        agent
    }

    /// Ends the process, as a crash or the kernel does.
    pub fn stop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our own child");
    }

    /// Starts it again on what it has left.
    pub fn begin(&mut self) {
        self.child = Self::spawn(&self.fake, &self.home, &self.configuration, &self.flags);
        self.everything_goes_on();
    }

    fn spawn(fake: &Fake, home: &Home, configuration: &str, flags: &[String]) -> Child {
        let log = File::options().create(true).append(true).open(home.path("agent.log"));
        let log = log.expect("a log file");
        let binary =
            std::env::var_os("SMOLET_BIN").expect("SMOLET_BIN names the release binary (make attack)");
        Command::new(binary)
            .args(home.words(fake))
            .args(["--config", configuration])
            // Many pods at once pull what is `latest`: none waits for its turn.
            .arg("--registry-qps=0")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the agent starts")
    }

    pub fn manifest(&self, name: &str) -> PathBuf {
        self.home.manifest(name)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    pub fn apply(&self, name: &str, text: impl AsRef<[u8]>) {
        self.home.put(name, text);
    }

    pub fn socket(&self) -> UnixStream {
        self.home.socket()
    }

    /// Asks the local socket; the answer is left to whoever reads it.
    pub fn request(&self, what: &str) -> UnixStream {
        let mut stream = self.socket();
        write!(stream, "GET {what} HTTP/1.0\r\n\r\n").expect("the request goes out");
        stream
    }

    /// What the local socket answers.
    pub fn ask(&self, what: &str) -> String {
        let mut answer = String::new();
        self.request(what).read_to_string(&mut answer).expect("the socket answers");
        answer
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the agent has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("agent.log")).expect("the log")).into_owned()
    }

    /// Waits until `holds`; the log tells what was there instead.
    pub fn wait(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let ended = self.child.try_wait().expect("our own child");
            assert_eq!(ended, None, "the agent ended while waiting for {what}; its log:\n{}", self.log());
            assert!(begun.elapsed() < PATIENCE, "waited for {what}; the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A further pod comes, runs, and the socket tells of it.
    pub fn everything_goes_on(&mut self) {
        self.others += 1;
        let name = format!("other-{}", self.others);
        self.apply(&name, pod(&name, ""));
        let running = format!("{name}-gw/app#0");
        self.wait("a further pod", |agent| agent.fake.state().running().contains(&running));
        let line = format!("{name}-gw");
        self.wait("the socket's word of it", |agent| {
            let table = agent.ask("/pods?output=table");
            table.lines().any(|row| row.contains(&line) && row.contains("Running"))
        });
    }

    /// Anonymous memory, and with it all of the program but for the embedded runtime: how much of that is resident is the kernel's
    /// decision. It maps whole folios of the page cache, and those of a file that was just written are as large as they get.
    ///
    /// The embedded runtime is a segment of its own, of which the kernel maps what is used: that counts.
    pub fn memory_at_worst_kib(&self) -> (u64, u64) {
        let anonymous = self.memory_kib("RssAnon:");
        let embedded =
            embedded_segment(&fs::read(format!("/proc/{}/exe", self.child.id())).expect("it runs"));
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).expect("it runs");
        let (mut program, mut apart, mut is_apart) = (0, None, false);
        for line in maps.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if let Some((from, to)) = first.split_once('-') {
                let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
                let (size, is_program) =
                    (address(to) - address(from), rest.starts_with("r-") && rest.contains('/'));
                let offset = rest.split_whitespace().nth(1).expect("an offset");
                is_apart = is_program && address(offset) == embedded;
                program += if is_program && !is_apart { size } else { 0 };
            } else if first == "Rss:" && is_apart {
                apart = rest.trim().trim_end_matches(" kB").parse::<u64>().ok();
            }
        }
        let apart = apart.expect("the embedded runtime is a mapping of its own");
        (anonymous, anonymous + program / 1024 + apart)
    }

    fn memory_kib(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let value = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
        value.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// The longest that a poll has held the agent's thread so far, with whose it was.
    pub fn longest_poll(&self) -> (Duration, String) {
        let metrics = self.ask("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("smolet_longest_poll_seconds{task=\""));
        let (task, seconds) = line.and_then(|line| line.split_once("\"} ")).expect("it is told");
        (Duration::from_secs_f64(seconds.parse().expect("seconds")), task.to_owned())
    }

    /// How long the local socket takes to answer at most while `attack` goes on, asked every 10 ms for so long.
    pub fn silence(&self, time: Duration) -> Duration {
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < time {
            let asked = Watch::start(self.pid());
            assert!(self.ask("/healthz").ends_with("ok"), "it is well");
            longest = longest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        longest
    }

    /// The end of an attack: everything goes on, and memory stayed within the promise all the time.
    pub fn withstood(mut self, what: &str) {
        self.everything_goes_on();
        let peak = self.memory_kib("VmHWM:");
        let (longest, task) = self.longest_poll();
        let (quiet, poll) = (self.quiet_kib, longest.as_millis());
        println!("{what}: peak {peak} KiB, quiet {quiet} KiB; longest poll {poll} ms ({task})");
        assert!(peak <= MEMORY_KIB_MAX, "{what}: {peak} KiB; the log:\n{}", self.log());
        assert!(longest <= SILENCE_MAX, "{what}: {longest:?} ({task}); the log:\n{}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the embedded runtime's segment begins in the file: that of the executable ones whose load address is not its address
/// (build.rs), rounded to pages as the kernel maps it.
fn embedded_segment(program: &[u8]) -> u64 {
    let number = |at: usize, bytes: usize| {
        program[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (table, size, entries) = (number(32, 8) as usize, number(54, 2) as usize, number(56, 2) as usize);
    let mut segments = (0..entries).map(|entry| table + entry * size);
    const LOAD: u64 = 1;
    const EXECUTABLE: u64 = 1;
    let of_it = segments.find(|at| {
        let (kind, flags) = (number(*at, 4), number(at + 4, 4));
        kind == LOAD && flags & EXECUTABLE != 0 && number(at + 16, 8) != number(at + 24, 8)
    });
    number(of_it.expect("build.rs puts the embedded runtime apart") + 8, 8) & !4095
}

/// A pod with one container `app` that runs for ever; `more` goes into the container.
pub fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers:\n  - {{name: app, image: x, {more}}}\n"
    )
}
