//! A client by hand: hyper's HTTP/2 over rustls. It takes what it knows from a kubeconfig, as a real one does.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use async_io::{Async, Timer};
use futures_rustls::TlsConnector;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{ClientConfig, RootCertStore};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use smol::LocalExecutor;
use smol_hyper::rt::FuturesIo;

use crate::PATIENCE;
use crate::common::TempDir;
use crate::common::apiserver::ApiServer;

pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

#[derive(Clone)]
struct Spawner(Weak<LocalExecutor<'static>>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Spawner
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        if let Some(executor) = self.0.upgrade() {
            executor.spawn(task).detach();
        }
    }
}

/// What a client needs to know.
#[derive(Clone)]
pub struct Config {
    pub address: SocketAddr,
    pub ca: String,
    /// Certificate and key, as PEM.
    pub identity: Option<(String, String)>,
    pub token: Option<String>,
}

impl Config {
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let data = |value: &Value| -> Option<String> {
            let bytes: ByteString = serde_json::from_value(value.as_str()?.into()).unwrap();
            Some(String::from_utf8(bytes.0).unwrap())
        };
        Self {
            address: cluster["server"].as_str().unwrap().strip_prefix("https://").unwrap().parse().unwrap(),
            ca: data(&cluster["certificate-authority-data"]).unwrap(),
            identity: data(&user["client-certificate-data"]).zip(data(&user["client-key-data"])),
            token: user["token"].as_str().map(str::to_owned),
        }
    }

    pub fn anonymous(server: &ApiServer) -> Self {
        Self { address: server.address(), ca: server.ca_pem(), identity: None, token: None }
    }

    fn tls(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }
}

/// One connection.
pub struct Client {
    executor: Rc<LocalExecutor<'static>>,
    requests: SendRequest<Full<Bytes>>,
    token: Option<String>,
}

impl Client {
    /// As the cluster's administrator.
    pub fn of(server: &ApiServer) -> Self {
        Self::named(server, "admin")
    }

    /// As this user, with a certificate.
    pub fn named(server: &ApiServer, user: &str) -> Self {
        let folder = TempDir::new();
        Self::connect(&Config::read(&server.kubeconfig(folder.path(), user))).unwrap()
    }

    pub fn connect(config: &Config) -> Result<Self, String> {
        let executor = Rc::new(LocalExecutor::new());
        let spawner = Spawner(Rc::downgrade(&executor));
        let connecting = async {
            let socket =
                Async::<TcpStream>::connect(config.address).await.map_err(|error| error.to_string())?;
            let name = ServerName::from(config.address.ip());
            let tls = TlsConnector::from(Arc::new(config.tls())).connect(name, socket).await;
            let tls = tls.map_err(|error| error.to_string())?;
            assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let (requests, connection) = Builder::new(spawner.clone())
                .handshake(FuturesIo::new(tls))
                .await
                .map_err(|e| e.to_string())?;
            hyper::rt::Executor::execute(&spawner, async {
                let _ = connection.await;
            });
            Ok::<_, String>(requests)
        };
        let requests = smol::block_on(executor.run(in_time(connecting)))?;
        Ok(Self { executor, requests, token: config.token.clone() })
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        (kind, body): (&str, Option<&Value>),
    ) -> Request<Full<Bytes>> {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
        request = request.header("accept", JSON);
        if body.is_some() {
            request = request.header("content-type", kind);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(Full::new(bytes)).unwrap()
    }

    /// Begins a request, whose answer may come much later.
    pub fn begin(&mut self, method: &str, path: &str, body: (&str, Option<&Value>)) -> Pending {
        let request = self.request(method, path, body);
        let mut requests = self.requests.clone();
        let answer = self.executor.spawn(async move {
            let answer = requests.send_request(request).await.map_err(|error| format!("{error:?}"))?;
            let (code, retry) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
            let body = answer.into_body().collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
            let text = String::from_utf8(body.to_vec()).unwrap();
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Ok(Answer { code, body: value, retry })
        });
        Pending { executor: self.executor.clone(), answer }
    }

    pub fn call(&mut self, method: &str, path: &str, body: (&str, Option<&Value>)) -> Result<Answer, String> {
        self.begin(method, path, body).wait(PATIENCE).expect("an answer")
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.call("GET", path, (JSON, None)).unwrap()
    }

    pub fn post(&mut self, path: &str, body: Value) -> Answer {
        self.call("POST", path, (JSON, Some(&body))).unwrap()
    }

    pub fn put(&mut self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, (JSON, Some(&body))).unwrap()
    }

    pub fn patch(&mut self, path: &str, kind: &str, body: Value) -> Answer {
        self.call("PATCH", path, (kind, Some(&body))).unwrap()
    }

    pub fn delete(&mut self, path: &str, options: Value) -> Answer {
        self.call("DELETE", path, (JSON, Some(&options))).unwrap()
    }

    /// Begins a watch; an answer that is none is a failure.
    pub fn watch(&mut self, path: &str) -> Result<Lines, Answer> {
        let request = self.request("GET", path, (JSON, None));
        let mut requests = self.requests.clone();
        let response: Response<Incoming> =
            self.run(in_time(async move { requests.send_request(request).await })).expect("an answer");
        if response.status() == 200 {
            let body = response.into_body();
            return Ok(Lines { executor: self.executor.clone(), body, bytes: Vec::new(), ended: None });
        }
        let code = response.status().as_u16();
        let body = self.run(in_time(response.into_body().collect())).unwrap().to_bytes();
        Err(Answer { code, body: serde_json::from_slice(&body).unwrap(), retry: false })
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    smol::future::or(work, async {
        Timer::after(PATIENCE).await;
        panic!("no answer within {PATIENCE:?}");
    })
    .await
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    /// There is a header that says when to come again.
    pub retry: bool,
}

impl Answer {
    /// The object of a success.
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{self:?}");
        self.body
    }

    /// Code, reason and message of a failure, which is a whole Status.
    pub fn failed(self) -> (u16, String, String) {
        let status = &self.body;
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["code"], json!(self.code));
        let text = |field: &str| status[field].as_str().unwrap().to_owned();
        (self.code, text("reason"), text("message"))
    }

    /// The same without the message.
    pub fn why(self) -> (u16, String) {
        let (code, reason, _) = self.failed();
        (code, reason)
    }
}

/// An answer that is waited for.
pub struct Pending {
    executor: Rc<LocalExecutor<'static>>,
    answer: smol::Task<Result<Answer, String>>,
}

impl Pending {
    /// `None`: nothing has come within that time.
    pub fn wait(&mut self, time: Duration) -> Option<Result<Answer, String>> {
        let answer = &mut self.answer;
        smol::block_on(self.executor.run(smol::future::or(async { Some(answer.await) }, async {
            Timer::after(time).await;
            None
        })))
    }
}

/// A watch.
pub struct Lines {
    executor: Rc<LocalExecutor<'static>>,
    body: Incoming,
    bytes: Vec<u8>,
    /// How it has ended: in order, or not.
    pub ended: Option<Result<(), String>>,
}

impl Lines {
    /// The next event, if one comes within that time.
    pub fn within(&mut self, time: Duration) -> Option<Value> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            if self.ended.is_some() {
                return None;
            }
            let body = &mut self.body;
            let frame = smol::block_on(self.executor.run(smol::future::or(
                async { Some(body.frame().await) },
                async {
                    Timer::after(time).await;
                    None
                },
            )));
            match frame? {
                None => self.ended = Some(Ok(())),
                Some(Err(error)) => self.ended = Some(Err(format!("{error:?}"))),
                Some(Ok(frame)) => self.bytes.extend_from_slice(&frame.into_data().unwrap()),
            }
        }
    }

    /// The next event: its kind and object.
    pub fn next(&mut self) -> (String, Value) {
        let mut event = self.within(PATIENCE).expect("an event");
        (event["type"].as_str().unwrap().to_owned(), event["object"].take())
    }

    /// Kind, name and the revision of the next event.
    pub fn brief(&mut self) -> (String, String, u64) {
        let (kind, object) = self.next();
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        (kind, text("name"), text("resourceVersion").parse().unwrap_or(0))
    }

    /// The watch ends without a further event.
    pub fn end(&mut self) -> Result<(), String> {
        assert_eq!(self.within(PATIENCE), None);
        self.ended.clone().expect("it ends")
    }
}
