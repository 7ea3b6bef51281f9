//! `healthCheckNodePort`: load balancers ask a node whether it has endpoints of a Service (`healthcheck/service_health.go`).
//!
//! Whatever the request, the answer is 200 while this node has a ready endpoint and the proxy's rules are up to date, else 503; with a
//! body as kube-proxy's, and the number of endpoints as a weight. One request for each connection.
//!
//! The rules are those of the address family that is asked over, as each of kube-proxy's two proxiers has a listener of its own family; a
//! Service of one family answers for that.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use async_io::Async;
use hyper::header::{HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use smol::lock::Semaphore;

use super::model::ServiceName;
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::limits::{
    HEALTHZ_HEAD_BYTES_MAX, SERVICE_HEALTH_CONNECTIONS_MAX, SERVICE_HEALTH_RETRY, SERVICE_HEALTH_TIME,
};
use crate::server::{Body, Handler, JSON, serve, text};
use crate::stream::{Socket, stream};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// What the checks of all Services share.
#[derive(Clone)]
pub(crate) struct HealthChecks {
    /// The rules are up to date, IPv4's and IPv6's.
    is_proxy_healthy: Rc<Cell<[bool; 2]>>,
    /// `SERVICE_HEALTH_CONNECTIONS_MAX` of them.
    places: Arc<Semaphore>,
    executor: Weak<Executor>,
    clock: SharedClock,
}

impl HealthChecks {
    /// `executor` has a task for each connection.
    pub(crate) fn new(
        is_proxy_healthy: Rc<Cell<[bool; 2]>>,
        executor: Weak<Executor>,
        clock: SharedClock,
    ) -> Self {
        let places = Arc::new(Semaphore::new(SERVICE_HEALTH_CONNECTIONS_MAX));
        Self { is_proxy_healthy, places, executor, clock }
    }
}

/// The check of one Service.
pub(crate) struct HealthCheck {
    service: ServiceName,
    /// Ready endpoints on this node.
    local_endpoints: Cell<usize>,
    /// The Service has addresses of IPv4, of IPv6.
    has_families: Cell<[bool; 2]>,
    shared: HealthChecks,
}

impl HealthCheck {
    pub(crate) fn new(service: ServiceName, shared: HealthChecks) -> Rc<Self> {
        Rc::new(Self { service, local_endpoints: Cell::new(0), has_families: Cell::default(), shared })
    }

    /// Sets the number of ready endpoints on this node.
    pub(crate) fn set_local_endpoints(&self, count: usize) {
        self.local_endpoints.set(count);
    }

    /// Sets whether the Service has addresses of IPv4, and of IPv6.
    pub(crate) fn set_families(&self, has_families: [bool; 2]) {
        self.has_families.set(has_families);
    }

    /// Serves the port on all addresses until dropped. One that somebody else has is tried again each minute.
    pub(crate) async fn run(self: Rc<Self>, port: u16) {
        let mut is_logged = false;
        loop {
            // Where the node has no IPv6 it is IPv4 alone.
            let listener = Async::<TcpListener>::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| Async::<TcpListener>::bind((Ipv4Addr::UNSPECIFIED, port)));
            let error = match listener {
                Ok(listener) => self.accept(&listener).await,
                Err(error) => error,
            };
            if !std::mem::replace(&mut is_logged, true) {
                log::warn!(
                    "service {}: healthCheckNodePort {port}: {error}; load balancers take this node for one without endpoints; \
                     end what has the port, which is retried each minute",
                    self.service
                );
            }
            self.shared.clock.sleep(SERVICE_HEALTH_RETRY).await;
        }
    }

    /// Until the listener fails.
    async fn accept(self: &Rc<Self>, listener: &Async<TcpListener>) -> io::Error {
        loop {
            let (socket, client) = match listener.accept().await {
                Ok((socket, client)) => (Socket::from(socket), client),
                Err(error) => return error,
            };
            let is_ipv6 = client.ip().to_canonical().is_ipv6();
            // Full: the next ones wait in the kernel's queue.
            let place = self.shared.places.acquire_arc().await;
            let Some(executor) = self.shared.executor.upgrade() else { return std::future::pending().await };
            let (check, time_is_up) = (self.clone(), self.shared.clock.sleep(SERVICE_HEALTH_TIME));
            let answer = async move {
                let _place = place;
                smol::future::or(check.answer(socket, is_ipv6), time_is_up).await;
            };
            executor.spawn("service health check", answer).detach();
        }
    }

    async fn answer(self: Rc<Self>, socket: Socket<TcpStream>, is_ipv6: bool) {
        // A silent connection has no buffer.
        if socket.readable().await.is_ok() {
            let handler: Handler = Box::new(move |_| Box::pin(std::future::ready(self.response(is_ipv6))));
            serve(stream(socket).into_inner(), HEALTHZ_HEAD_BYTES_MAX, handler).await;
        }
    }

    /// Whether the rules are up to date, for somebody who asks over IPv6 or IPv4.
    fn is_proxy_healthy(&self, is_ipv6: bool) -> bool {
        let of = match self.has_families.get() {
            [true, true] | [false, false] => is_ipv6,
            [false, true] => true,
            [true, false] => false,
        };
        self.shared.is_proxy_healthy.get()[usize::from(of)]
    }

    fn response(&self, is_ipv6: bool) -> Response<Body> {
        let (count, is_healthy) = (self.local_endpoints.get(), self.is_proxy_healthy(is_ipv6));
        let status = if count > 0 && is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let ServiceName { namespace, name } = &self.service;
        let mut response = text(
            status,
            JSON,
            format!(
                "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace:?},\n\t\t\"name\": {name:?}\n\t}},\n\
                 \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}"
            ),
        );
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response.headers_mut().insert(WEIGHT, HeaderValue::from(count));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::model::Wall;

    struct World {
        executor: Rc<Executor>,
        clock: VirtualClock,
        is_healthy: Rc<Cell<[bool; 2]>>,
        check: Rc<HealthCheck>,
        address: SocketAddr,
    }

    impl World {
        fn new() -> Self {
            let (executor, clock) = (Rc::new(Executor::new()), VirtualClock::new(Wall(0)));
            let is_healthy = Rc::new(Cell::new([true; 2]));
            let shared =
                HealthChecks::new(is_healthy.clone(), Rc::downgrade(&executor), Rc::new(clock.clone()));
            let name = ServiceName { namespace: "default".into(), name: "web".into() };
            let check = HealthCheck::new(name, shared);
            let listener = Async::<TcpListener>::bind(([127, 0, 0, 1], 0)).unwrap();
            let address = listener.get_ref().local_addr().unwrap();
            let accept = {
                let check = check.clone();
                async move {
                    check.accept(&listener).await;
                }
            };
            executor.spawn("listener", accept).detach();
            Self { executor, clock, is_healthy, check, address }
        }

        /// Runs the check beside a script of blocking calls until that has ended, or for so long.
        fn beside<T: Send + 'static>(
            &self,
            time: Duration,
            script: impl FnOnce() -> T + Send + 'static,
        ) -> Option<T> {
            let (begun, script) = (std::time::Instant::now(), std::thread::spawn(script));
            while !script.is_finished() && begun.elapsed() < time {
                smol::block_on(self.executor.run(async_io::Timer::after(Duration::from_millis(2))));
            }
            script.is_finished().then(|| script.join().unwrap())
        }

        fn ask(&self, request: &'static str) -> Option<String> {
            self.ask_within(Duration::from_mins(1), request)
        }

        fn ask_within(&self, time: Duration, request: &'static str) -> Option<String> {
            let address = self.address;
            self.beside(time, move || {
                let (mut client, mut answer) = (TcpStream::connect(address).unwrap(), String::new());
                client.write_all(request.as_bytes()).unwrap();
                client.read_to_string(&mut answer).unwrap();
                answer
            })
        }
    }

    #[test]
    fn a_node_with_endpoints_is_healthy() {
        let world = World::new();
        for (count, is_healthy, line) in [
            (0, true, "HTTP/1.1 503 Service Unavailable"),
            (2, true, "HTTP/1.1 200 OK"),
            (2, false, "HTTP/1.1 503 Service Unavailable"),
            (0, false, "HTTP/1.1 503 Service Unavailable"),
        ] {
            world.check.set_local_endpoints(count);
            world.is_healthy.set([is_healthy; 2]);
            for request in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz?x HTTP/1.0\r\n\r\n"] {
                let answer = world.ask(request).unwrap();
                let (head, body) = answer.split_once("\r\n\r\n").unwrap();
                let (first, fields) = head.split_once("\r\n").unwrap();
                assert_eq!(first.split_once(' ').unwrap().1, line.split_once(' ').unwrap().1, "{answer}");
                for field in [
                    "content-type: application/json".to_owned(),
                    "x-content-type-options: nosniff".to_owned(),
                    format!("x-load-balancing-endpoint-weight: {count}"),
                ] {
                    assert!(fields.split("\r\n").any(|line| line == field), "{field} in {answer}");
                }
                assert_eq!(
                    body,
                    format!(
                        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t}},\n\t\
                         \"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}"
                    )
                );
            }
        }
    }

    #[test]
    fn a_family_without_rules_is_unhealthy_for_those_who_come_over_it() {
        let world = World::new();
        world.check.set_local_endpoints(1);
        for (families, healthy, over_ipv4, over_ipv6) in [
            ([true, true], [true, false], 200, 503),
            ([true, true], [false, true], 503, 200),
            ([true, true], [true, true], 200, 200),
            ([true, false], [true, false], 200, 200),
            ([true, false], [false, true], 503, 503),
            ([false, true], [true, false], 503, 503),
            ([false, true], [false, true], 200, 200),
        ] {
            world.check.set_families(families);
            world.is_healthy.set(healthy);
            let status = |is_ipv6| world.check.response(is_ipv6).status().as_u16();
            let row = format!("families {families:?}, healthy {healthy:?}");
            assert_eq!((status(false), status(true)), (over_ipv4, over_ipv6), "{row}");
            let answer = world.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {over_ipv4}")), "{row}: {answer}");
        }
    }

    #[test]
    fn connections_that_say_nothing_are_bounded_and_end() {
        let world = World::new();
        world.check.set_local_endpoints(1);
        let address = world.address;
        let silent = move || -> Vec<_> {
            (0..SERVICE_HEALTH_CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect()
        };
        let silent = world.beside(Duration::from_mins(1), silent).unwrap();
        let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        // They may not all be accepted yet; when they are, there is no place.
        let begun = std::time::Instant::now();
        while world.check.shared.places.try_acquire().is_some() {
            assert!(begun.elapsed() < Duration::from_mins(1), "each of them has a place");
            smol::block_on(world.executor.run(async_io::Timer::after(Duration::from_millis(2))));
        }
        assert_eq!(world.ask_within(Duration::from_secs(1), request), None);
        world.clock.advance(SERVICE_HEALTH_TIME);
        assert!(world.ask(request).unwrap().starts_with("HTTP/1.1 200"));
        drop(silent);
    }
    #[test]
    fn a_port_that_somebody_has_is_taken_when_it_is_free() {
        use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
        let world = World::new();
        world.check.set_local_endpoints(1);
        // It does not listen: who connects is refused until the health check does.
        let other =
            net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&other, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = SocketAddr::try_from(net::getsockname(&other).unwrap()).unwrap();
        world.executor.spawn("health check", world.check.clone().run(address.port())).detach();
        let a_moment =
            || smol::block_on(world.executor.run(async_io::Timer::after(Duration::from_millis(50))));
        a_moment();
        drop(other);
        // A process that another test starts has a copy of it until it has its program.
        let begun = std::time::Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < Duration::from_mins(1), "the port is free");
            world.clock.advance(SERVICE_HEALTH_RETRY);
            a_moment();
        }
        let answer = World { address, ..world }.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
    }
}
