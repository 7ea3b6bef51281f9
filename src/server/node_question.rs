//! What the node's own API asks of the loop. PURE.

use std::net::IpAddr;

/// A pod as a path names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its UID, where the path has one.
    pub uid: Option<String>,
}

/// Which streams of a command are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStreams {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Errors; on a terminal they are in the output.
    pub stderr: bool,
    /// On a terminal.
    pub tty: bool,
}

/// A request of the node API to the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeQuestion {
    /// Where a container's log is: the answer is JSON, its `path`, and whether the container is `running`.
    Log {
        /// Whose.
        target: Target,
        /// Which container's.
        container: String,
        /// Of its life before this one.
        previous: bool,
    },
    /// Where the runtime runs a command: the answer is the URL.
    Exec {
        /// Where.
        target: Target,
        /// In which container.
        container: String,
        /// The command.
        command: Vec<String>,
        /// With which streams.
        streams: CommandStreams,
    },
    /// Where the runtime has the streams of a container's main process: the answer is the URL.
    Attach {
        /// Whose.
        target: Target,
        /// Which container's.
        container: String,
        /// Which streams.
        streams: CommandStreams,
    },
    /// Where the runtime reaches a pod's ports: the answer is the URL.
    PortForward {
        /// Whose.
        target: Target,
        /// Which; a client that speaks SPDY names them later.
        ports: Vec<u16>,
    },
    /// What a command says that is run in a container.
    Run {
        /// Where.
        target: Target,
        /// In which container.
        container: String,
        /// The command.
        command: Vec<String>,
    },
    /// The pods that run, as the runtime knows them: a `v1.PodList`.
    RunningPods,
    /// Whether a pod of this node is at that address, on its own network, or has that port on the node's.
    Reaches {
        /// The address.
        ip: IpAddr,
        /// The port.
        port: u16,
    },
    /// What node, pods and containers use, for Prometheus.
    Resources,
    /// The same as the kubelet's `Summary`.
    Summary {
        /// Without disks.
        only_cpu_and_memory: bool,
    },
}
