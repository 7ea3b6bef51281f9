//! The node's API as its clients find it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::apiserver::Identity;
pub use crate::common::client::{Client, Response, tcp};
use crate::world::{NODE, World};

impl World {
    /// The port that the Node object tells.
    pub fn node_port(&self) -> u16 {
        let port = self.wait("the node's port", |world| {
            let node = world.node()?;
            node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().filter(|port| *port > 0)
        });
        port.try_into().unwrap()
    }

    /// After an agent's end: the Node object tells no port until the next agent does, which may be given the same.
    pub fn forget_port(&self) {
        let mut status = self.node().expect("it has joined")["status"].clone();
        status["daemonEndpoints"]["kubeletEndpoint"]["Port"] = 0.into();
        self.api.update_status("nodes", "", NODE, status);
    }

    /// A connection that trusts the node's own certificate, for its name.
    pub fn connect(&self, identity: Option<&Identity>) -> io::Result<Client> {
        let port = self.node_port();
        let pem = std::fs::read_to_string(self.path("root/pki/smolet.crt"))?;
        Client::connect(port, &pem, identity)
    }

    /// One request with its whole answer.
    pub fn request(&self, identity: Option<&Identity>, method: &str, path: &str, headers: &str) -> Response {
        let mut client = self.connect(identity).expect("the node answers");
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: gw\r\n{headers}\r\n").as_bytes());
        client.rest()
    }
}

/// A port on which nothing listens, for an agent that has to be told one. It is below those that the kernel gives out, so that no
/// other test has it before the agent does.
pub fn unused_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..COUNT)
        .map(|_| NEXT.fetch_add(1, Ordering::Relaxed))
        // Other processes' tests begin elsewhere.
        .map(|number| FIRST + (std::process::id().wrapping_mul(61).wrapping_add(number)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a port is unused")
}
