//! The CRI services of the embedded runtime on a socket, for crictl and the kubelet.
//!
//! ```text
//!     crictl, kubelet ──► /run/smolet/cri.sock (0600) ──► grpc::server ──► CriService ──► Cri: the embedded runtime
//! ```
//!
//! `service` has the table of methods: path, request, function. The messages are the CRI's own, in both directions, so nothing is
//! converted here but errors to statuses. Bounds: `limits/cri_server.rs`.

mod embedded;
pub mod service;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smol::channel::{Sender, bounded};
use smol::lock::Semaphore;

pub use service::{Cri, CriService, Events};

use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::grpc;
use crate::grpc::server::Activity;
use crate::limits::CRI_CONNECTIONS_MAX;
use crate::server;

/// The bound socket; its file is removed on drop.
#[derive(Debug)]
pub struct CriServer {
    socket: server::Server,
}

impl CriServer {
    /// Binds the socket with mode 0600. A socket that a dead agent left behind is replaced; one with a listener, and a file that is
    /// no socket, is left alone.
    ///
    /// # Errors
    /// One message that names the path.
    pub fn bind(path: &Path) -> Result<Self, String> {
        server::Server::bind(path).map(|socket| Self { socket }).map_err(|why| format!("CRI server: {why}"))
    }

    /// Serves the runtime until dropped. At most `limits::CRI_CONNECTIONS_MAX` connections at once: for a further one the oldest
    /// without a call is closed, whose client opens another one when it needs it. When all have calls, it waits in the kernel's
    /// queue.
    pub async fn run<R: Cri + 'static>(self, runtime: Rc<R>, executor: Rc<Executor>, clock: SharedClock) {
        let server = grpc::server::Server::new(Rc::new(CriService::new(runtime)), &executor, clock.clone());
        let slots = Arc::new(Semaphore::new(CRI_CONNECTIONS_MAX));
        let mut logged = None;
        // In the order in which they were accepted; those that have ended are removed with the next one.
        let mut open: Vec<(Rc<Activity>, Sender<()>)> = Vec::with_capacity(CRI_CONNECTIONS_MAX);
        loop {
            let slot = slots.acquire_arc().await;
            open.retain(|(_, close)| !close.is_closed());
            let socket = match self.socket.accept().await {
                Ok(socket) => socket,
                Err(error) => {
                    // Usually out of descriptors: the server can only wait, and logs it once.
                    if logged.replace(error.kind()) != Some(error.kind()) {
                        log::warn!("CRI server: accept failed: {error}; retrying every second");
                    }
                    clock.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            if open.len() + 1 >= CRI_CONNECTIONS_MAX
                && let Some(at) = open.iter().position(|(activity, _)| activity.is_idle())
            {
                // Its place is free once it has ended.
                let _ = open.remove(at).1.try_send(());
            }
            let (server, activity) = (server.clone(), Rc::<Activity>::default());
            let (close, closed) = bounded(1);
            open.push((activity.clone(), close));
            executor
                .spawn("CRI connection", async move {
                    let close = async {
                        if closed.recv().await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    };
                    server.serve(socket, activity, close).await;
                    drop((slot, closed));
                })
                .detach();
        }
    }
}
