//! Requests to the supervisors of k3s servers: HTTP/1.1 over TLS, one connection for each of the few requests.

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};

use super::Refused;
use crate::clock::SharedClock;
use crate::kube::{Authenticated, KubeError, Loaded, Protocol, tls_connect};
use crate::limits::{
    KUBE_CALL_TIME, KUBE_MESSAGE_BYTES_MAX, NODE_FILE_BYTES_MAX, TUNNEL_SILENCE_MAX, TUNNEL_WINDOW_BYTES,
};
use crate::net::Address;
use crate::net::Lookups;
use crate::text::start_of;

/// Client of the supervisor that the credentials name. Clones share the DNS lookups.
#[derive(Clone)]
pub(crate) struct Supervisor {
    lookups: Lookups,
    clock: SharedClock,
    authenticated: Authenticated,
}

/// Headers and credentials of a request.
#[derive(Clone, Default)]
pub(crate) struct Ask<'a> {
    /// POST when there is a body, else GET.
    pub(crate) body: Vec<u8>,
    pub(crate) path: &'a str,
    /// The `Authorization` header.
    pub(crate) authorization: Option<&'a str>,
    pub(crate) headers: &'a [(&'static str, &'a str)],
}

impl Supervisor {
    /// Addresses of servers that show a verified certificate of the cluster are added to `authenticated`.
    pub(crate) fn new(clock: SharedClock, authenticated: Authenticated) -> Self {
        Self { lookups: Lookups::default(), clock, authenticated }
    }

    /// Connects with those credentials. With a `ration` at most that many bytes can be read.
    pub(crate) async fn connect(
        &self,
        with: &Loaded,
        ration: Option<usize>,
    ) -> Result<crate::stream::Stream, KubeError> {
        let address = Address { host: with.server.host.clone(), port: with.server.port };
        let socket = self.lookups.connect(&address).await.map_err(KubeError::Unreachable)?;
        let _ = socket.get_ref().set_nodelay(true);
        // With a larger buffer more bytes would be in flight, when the server is asked to pause, than there is space for.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket.get_ref(), TUNNEL_WINDOW_BYTES);
        // When a link is lost silently, unacknowledged writes are the only sign of it.
        let silence = u32::try_from(TUNNEL_SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(socket.get_ref(), silence);
        tls_connect(with, socket, Protocol::Http1, ration, &self.authenticated).await
    }

    /// The response's body, within `limits::KUBE_CALL_TIME`: the server is slow in checking the node's password.
    pub(crate) async fn ask(&self, with: &Loaded, ask: &Ask<'_>) -> Result<Vec<u8>, Refused> {
        let late = async {
            self.clock.sleep(KUBE_CALL_TIME).await;
            Err(Refused::Unreachable(format!(
                "k3s server {}: no answer within {} s",
                with.server.authority(),
                KUBE_CALL_TIME.as_secs()
            )))
        };
        smol::future::or(Box::pin(self.exchange(with, ask)), late).await
    }

    async fn exchange(&self, with: &Loaded, ask: &Ask<'_>) -> Result<Vec<u8>, Refused> {
        let at = |why: String| Refused::Unreachable(format!("k3s server {}: {why}", with.server.authority()));
        // A body of that length, its head, and the overhead of TLS. hyper itself reads heads without a limit (`103`).
        let socket =
            self.connect(with, Some(2 * NODE_FILE_BYTES_MAX)).await.map_err(|error| match error {
                KubeError::Untrusted(_) => Refused::Untrusted,
                error => at(error.to_string()),
            })?;
        let handshake = hyper::client::conn::http1::handshake(socket).await;
        let (mut sender, connection) = handshake.map_err(|error| at(error.to_string()))?;
        let mut request = Request::new(Full::new(Bytes::from(ask.body.clone())));
        if !ask.body.is_empty() {
            *request.method_mut() = Method::POST;
        }
        *request.uri_mut() = ask.path.parse().map_err(|_| at(format!("{} cannot be asked for", ask.path)))?;
        let headers = request.headers_mut();
        let agent = concat!("smolet/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let host = with.server.authority();
        let given = [(HOST, host.as_str())].into_iter();
        let given = given.chain(ask.authorization.map(|value| (AUTHORIZATION, value)));
        let others = ask.headers.iter().map(|(name, value)| (HeaderName::from_static(name), *value));
        for (name, value) in given.chain(others) {
            let mut value =
                HeaderValue::from_str(value).map_err(|_| at(format!("no header may hold the {name}")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| at(error.to_string()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), NODE_FILE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| at(format!("{}: {error}", ask.path)))?.to_bytes();
            if status.is_success() {
                return Ok(body.to_vec());
            }
            let message = String::from_utf8_lossy(&body);
            Err(Refused::Status(status.as_u16(), start_of(message.trim(), KUBE_MESSAGE_BYTES_MAX).to_owned()))
        };
        // The connection only makes progress while it is polled; the exchange shows its end.
        let drive = async {
            let _ = connection.await;
            std::future::pending().await
        };
        smol::future::or(exchange, drive).await
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use futures_rustls::pki_types::PrivateKeyDer;
    use futures_rustls::rustls::crypto::ring;
    use futures_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;
    use crate::clock::SystemClock;
    use crate::kube::ServerUrl;

    /// Informational responses (`103 Early Hints`) without end: hyper reads on, and TLS uses the loop's processor time.
    #[test]
    fn a_server_that_never_ends_its_head_sends_no_more_than_its_ration() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialized_der().to_vec().into()),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let tls = ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = StreamOwned::new(tls, listener.accept().unwrap().0);
            // hyper takes no response before it has sent its request.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            let hints = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(500);
            let mut sent = 0_usize;
            while stream.write_all(&hints).is_ok() {
                sent += hints.len();
            }
            sent
        });
        let with = Loaded {
            server: ServerUrl { host: "127.0.0.1".to_owned(), port, prefix: String::new() },
            server_name: Some("localhost".to_owned()),
            authorities: Some(crate::x509::pem("CERTIFICATE", certificate.der()).into_bytes()),
            intermediates: None,
            certificate: None,
            token: None,
        };
        let supervisor = Supervisor::new(Rc::new(SystemClock), Authenticated::default());
        let (begun, before) = (Instant::now(), processor_time());
        let ask = Ask { path: "/v1-k3s/config", ..Ask::default() };
        let refused = smol::block_on(supervisor.ask(&with, &ask)).map(|_| ()).unwrap_err();
        let (time, cost) = (begun.elapsed(), processor_time().saturating_sub(before));
        let sent = server.join().unwrap();
        println!("{sent} bytes in {time:?}, {cost:?} of the processor: {refused:?}");
        assert!(matches!(refused, Refused::Unreachable(_)), "{refused:?}");
        assert!(time < KUBE_CALL_TIME / 2 && cost < KUBE_CALL_TIME / 4, "{time:?} {cost:?}");
        // The rest in the kernels' buffers was never read.
        assert!(sent < 8 * 1024 * 1024, "{sent} bytes");
    }

    /// Processor time of this thread.
    fn processor_time() -> Duration {
        rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
    }
}
