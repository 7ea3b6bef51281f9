//! Files that containers hold or make: the loop waits for none of them, and none is read without end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::agent::{Agent, CALM, PATIENCE, Watch, pod};
use crate::common::away::Away;
use crate::common::fake::Fake;
use crate::outputs;

/// How long the loop may leave the local socket without an answer, whatever a file does. A test machine that is busy with others
/// takes its time too; a file that does not answer takes for ever.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Asks the local socket every 10 ms, and remembers the longest wait for an answer.
struct Listener {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Listener {
    fn start(agent: &Agent) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, socket, pid) = (ends.clone(), agent.path("sock"), agent.pid());
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !seen.load(Ordering::Relaxed) {
                let asked = Watch::start(pid);
                // What only the loop can answer. An agent that ended has no word for it, and the test sees that by itself.
                let _ = ask_within(&socket, 10 * SILENCE_MAX);
                longest = longest.max(asked.elapsed());
                std::thread::sleep(Duration::from_millis(10));
            }
            longest
        });
        Self { ends, thread }
    }

    fn longest(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn ask_within(socket: &Path, patience: Duration) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(b"GET /pods?output=table HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What a container makes of the file for its last words, and what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Fifo,
    LinkToZero,
    Sparse,
    OnServerThatIsAway,
}

impl Made {
    fn said(self) -> &'static str {
        match self {
            // The end of nothing but zeros.
            Self::Sparse => "\\u0000\\u0000",
            Self::Fifo | Self::LinkToZero => "Error on reading termination log",
            Self::OnServerThatIsAway => "does not answer within 10 s",
        }
    }
}

#[test]
fn termination_logs_that_are_no_files_or_do_not_answer() {
    let mut agent = Agent::start();
    let mut away = None;
    for made in [Made::Fifo, Made::LinkToZero, Made::Sparse, Made::OnServerThatIsAway] {
        let name = format!("{made:?}").to_ascii_lowercase();
        agent.apply(&name, pod(&name, ""));
        let app = format!("{name}-gw/app");
        let running = format!("{app}#0");
        agent.wait("the pod", |agent| agent.fake.state().running().contains(&running));
        let (written, _) = outputs(&agent, &name);
        let written = Path::new(&written);
        match made {
            Made::Fifo => {
                fs::remove_file(written).unwrap();
                mkfifoat(CWD, written, Mode::RWXU).unwrap();
            }
            Made::LinkToZero => {
                fs::remove_file(written).unwrap();
                std::os::unix::fs::symlink("/dev/zero", written).unwrap();
            }
            Made::Sparse => File::create(written).unwrap().set_len(1 << 40).unwrap(),
            Made::OnServerThatIsAway => {
                away = Some(Away::mount(written.parent().expect("its directory")));
            }
        }
        let beside = Listener::start(&agent);
        agent.fake.exit(&app, 1, "", "");
        let deadline = Instant::now() + PATIENCE;
        let mut told = false;
        while !told && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            let answer = ask_within(&agent.path("sock"), Duration::from_secs(1));
            told = answer.is_ok() && agent.ask("/pods").contains(made.said());
        }
        let silence = beside.longest();
        println!("{made:?}: the socket waited {} ms at most", silence.as_millis());
        assert!(silence <= SILENCE_MAX, "{made:?}: the loop was silent for {silence:?}; {}", agent.log());
        assert!(told, "{made:?}: the status says {:?}; {}", made.said(), agent.log());
        fs::remove_file(agent.manifest(&name)).unwrap();
    }
    // Everything else goes on beside the one that hangs, and it goes when its server is back.
    agent.everything_goes_on();
    drop(away);
    agent.withstood("termination logs that are no files or do not answer");
}

#[test]
fn a_hosts_file_of_600_mib() {
    let mut agent = Agent::start();
    let app = "hosts-gw/app";
    agent.apply("hosts", pod("hosts", ""));
    agent.wait("the pod", |agent| agent.fake.state().running().contains(&format!("{app}#0")));
    let hosts = {
        let state = agent.fake.state();
        let mounts = &state.container(app).unwrap().config.mounts;
        let mount = mounts.iter().find(|mount| mount.container_path == "/etc/hosts");
        PathBuf::from(&mount.unwrap().host_path)
    };
    let own = fs::read(&hosts).unwrap();
    let grow = || File::create(&hosts).unwrap().set_len(600 << 20).unwrap();
    // By the container, before it is started again; and while the agent is away.
    grow();
    let beside = Listener::start(&agent);
    agent.fake.exit(app, 1, "", "");
    agent.wait("its next start", |agent| agent.fake.state().running().contains(&format!("{app}#1")));
    let silence = beside.longest();
    println!("a hosts file of 600 MiB: the socket waited {} ms at most", silence.as_millis());
    assert!(silence <= SILENCE_MAX, "{silence:?}");
    assert_eq!(fs::read(&hosts).unwrap(), own, "it is the pod's own again");
    agent.stop();
    grow();
    agent.begin();
    agent.fake.exit(app, 1, "", "");
    agent.wait("its next start", |agent| agent.fake.state().running().contains(&format!("{app}#2")));
    assert_eq!(fs::read(&hosts).unwrap(), own);
    agent.withstood("a hosts file of 600 MiB, and a restart of the agent");
}

#[test]
fn files_of_the_state_that_are_huge_or_none() {
    // As a privileged container could leave them: the agent starts all the same, or says why not, and reads none of it whole.
    let mut agent = Agent::with(Fake::start_on_real_time(), CALM, &[]);
    agent.stop();
    let root = agent.path("root");
    for name in ["checkpoint", "panics", "config.json"] {
        File::create(root.join(name)).unwrap().set_len(1 << 40).unwrap();
        let _ = mkfifoat(CWD, root.join(format!("{name}.new")), Mode::RWXU);
    }
    agent.begin();
    agent.withstood("files of the state of a terabyte");
}
