//! Queries of the node's own API to the loop. PURE.

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

/// The requested streams of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; on a terminal it is part of the output.
    pub stderr: bool,
    /// With a terminal.
    pub tty: bool,
}

/// A request of the node API to the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeQuestion {
    /// Location of a container's log: the answer is JSON, its `path`, and whether the container is `running`.
    Log {
        /// The pod.
        target: Target,
        /// The container.
        container: String,
        /// The previous, terminated container.
        previous: bool,
    },
    /// CRI `Exec`: the answer is the URL.
    Exec {
        /// The pod.
        target: Target,
        /// The container.
        container: String,
        /// The command.
        command: Vec<String>,
        /// The streams.
        streams: CommandStreams,
    },
    /// CRI `Attach`: the answer is the URL.
    Attach {
        /// The pod.
        target: Target,
        /// The container.
        container: String,
        /// The streams.
        streams: CommandStreams,
    },
    /// CRI `PortForward`: the answer is the URL.
    PortForward {
        /// The pod.
        target: Target,
        /// The ports; a client that speaks SPDY names them later.
        ports: Vec<u16>,
    },
    /// Runs a command in a container (`ExecSync`): the answer is its output.
    Run {
        /// The pod.
        target: Target,
        /// The container.
        container: String,
        /// The command.
        command: Vec<String>,
    },
    /// The runtime's running pods: a `v1.PodList`.
    RunningPods,
    /// Whether a pod of this node has that address in its own network, or that port in the node's.
    Reaches {
        /// The address.
        ip: IpAddr,
        /// The port.
        port: u16,
    },
    /// Usage of node, pods and containers, for Prometheus.
    Resources,
    /// The same as the kubelet's `Summary`.
    Summary {
        /// Without disks.
        only_cpu_and_memory: bool,
    },
}
