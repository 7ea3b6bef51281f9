//! Lifecycle hooks: postStart and preStop by exec, HTTP, TCP and sleep (kubelet `lifecycle.HandlerRunner`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use hyper::header::AUTHORIZATION;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};

use crate::addresses::NodeAddresses;
use crate::cri::{ExecOutput, Runtime, RuntimeResult};
use crate::fair_semaphore::FairSemaphore;
use crate::limits::HOOKS_EXEC;
use crate::net::Address;
use crate::net::Lookups;
use crate::net::http::HttpGet;
use crate::probe::http::{self, NOT_TLS};
use crate::probe::run::{Tools, said};
use crate::sync::act::{HookCall, HookFuture, Hooks};
use crate::text::quoted;

/// The action of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Runs this command in the container, without expansion.
    Exec(Vec<String>),
    /// Sends this request.
    HttpGet(HttpGet),
    /// Connects to this address.
    TcpSocket(Address),
    /// Sleeps.
    Sleep(Duration),
}

impl Hook {
    /// PURE: the action of that handler; `pod_ip` is the pod's address, `ports` are the container's.
    ///
    /// # Errors
    /// An invalid address or header.
    pub fn of(
        handler: &LifecycleHandler,
        ports: &[ContainerPort],
        pod_ip: Option<IpAddr>,
    ) -> Result<Self, String> {
        if let Some(exec) = &handler.exec {
            Ok(Self::Exec(exec.command.clone().unwrap_or_default()))
        } else if let Some(action) = &handler.http_get {
            HttpGet::new(action, ports, pod_ip, "lifecycle").map(Self::HttpGet)
        } else if let Some(action) = &handler.tcp_socket {
            Address::of_tcp(action, ports, pod_ip).map(Self::TcpSocket)
        } else if let Some(sleep) = &handler.sleep {
            Ok(Self::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))))
        } else {
            Err("invalid handler".to_owned())
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exec(command) => write!(f, "Exec lifecycle hook ([{}])", command.join(" ")),
            Self::HttpGet(get) => write!(f, "HTTP lifecycle hook ({})", get.path),
            Self::TcpSocket(address) => write!(f, "TCP lifecycle hook ({address})"),
            Self::Sleep(time) => write!(f, "Sleep lifecycle hook ({})", time.as_secs()),
        }
    }
}

/// Runs hooks, with the probes' tools.
pub struct HookRunner<R> {
    tools: Tools<R>,
    /// Permits of commands, which have no timeout and must leave slots for the runtime's other calls.
    execs: FairSemaphore,
    addresses: NodeAddresses,
}

impl<R: Runtime> HookRunner<R> {
    /// A runner for a node with these addresses.
    pub fn new(tools: Tools<R>, addresses: NodeAddresses) -> Self {
        Self { tools, execs: FairSemaphore::new(HOOKS_EXEC), addresses }
    }

    /// The address of pods in the node's network: a node without an address uses loopback.
    fn node_ip(&self) -> IpAddr {
        let first = self.addresses.now().first().and_then(|ip| ip.parse().ok());
        first.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    async fn run(&self, call: HookCall<'_>) -> Result<Option<String>, String> {
        let of_pod = call.pod_ips.first().and_then(|ip| ip.parse().ok());
        // Differs from the kubelet, which has no address for the hooks of pods in the node's network.
        let hook = Hook::of(call.handler, call.ports, of_pod.or_else(|| Some(self.node_ip())))
            .map_err(|why| format!("Cannot run handler: {why}"))?;
        let Tools { runtime, clock, lookups } = &self.tools.of_pod(&call.key.uid);
        let done = match &hook {
            // Without a timeout: the caller drops the call at its own.
            Hook::Exec(command) => match self.execs.acquire((&call.key.uid).into()).await {
                Ok(_permit) => exit_of(command, runtime.exec_sync(call.id, command, Duration::ZERO).await),
                Err(why) => Err(why.to_string()),
            },
            Hook::HttpGet(get) => http_get(lookups, get).await,
            Hook::TcpSocket(address) => lookups.connect(address).await.map(|_| None),
            Hook::Sleep(time) => {
                clock.sleep(*time).await;
                Ok(None)
            }
        };
        done.map_err(|why| {
            let (container, pod) = (quoted(call.container), quoted(&call.key.kubelet_format()));
            format!("{hook} for Container {container} in Pod {pod} failed - error: {why}")
        })
    }
}

/// `runHTTPHandler`: any response is a success; a server that does not speak TLS is retried without.
async fn http_get(lookups: &Lookups, get: &HttpGet) -> Result<Option<String>, String> {
    match http::get(lookups, get).await {
        Err(why) if get.tls && why.ends_with(NOT_TLS) => {
            let mut plain = HttpGet { tls: false, ..get.clone() };
            plain.headers.remove(AUTHORIZATION);
            http::get(lookups, &plain).await?;
            let address = &get.address;
            Ok(Some(format!(
                "request to HTTPS lifecycle hook {address} got HTTP response, retry with HTTP succeeded"
            )))
        }
        done => done.map(|_| None),
    }
}

fn exit_of(command: &[String], done: RuntimeResult<ExecOutput>) -> Result<Option<String>, String> {
    match done {
        Ok(ExecOutput { exit_code: 0, .. }) => Ok(None),
        Ok(ExecOutput { exit_code, stdout, stderr }) => {
            let output = quoted(&said(&stdout, &stderr));
            Err(format!("command '{}' exited with {exit_code}, message: {output}", command.join(" ")))
        }
        Err(error) => Err(format!("{error}, message: \"\"")),
    }
}

impl<R: Runtime> Hooks for HookRunner<R> {
    fn run<'a>(&'a self, call: HookCall<'a>) -> HookFuture<'a> {
        Box::pin(Self::run(self, call))
    }
}
