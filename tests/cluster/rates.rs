//! How often the API server is asked: `kubeAPIQPS` and `kubeAPIBurst`, `eventRecordQPS` and `eventBurst`.

use std::time::Duration;

use smolet::config::{Config, Periods, Registration};
use smolet::limits::{ApiRates, Rate};

use crate::common::apiserver::Request;
use crate::world::{NODE, World, app};

fn is_event(request: &Request) -> bool {
    request.path.ends_with("/events") || request.path.contains("/events/")
}

fn is_heartbeat(request: &Request) -> bool {
    request.path.contains("/leases") || request.path == format!("/api/v1/nodes/{NODE}/status")
}

/// How many there were of these, after checking that there were no more than the rate allows.
fn within(rate: Rate, requests: &[Request], what: &str) -> usize {
    let (first, last) = (requests.first().expect(what), requests.last().expect(what));
    let elapsed = last.at.since(first.at).as_secs_f64();
    let allowed = f64::from(rate.burst) + f64::from(rate.per_second) * elapsed;
    // They have been sent for a while when they come.
    assert!(requests.len() as f64 <= allowed + 2.0, "{} {what} in {elapsed} s", requests.len());
    requests.len()
}

#[test]
fn requests_wait_for_their_turn_and_heartbeats_do_not() {
    let world = World::without_agent();
    let rate = Rate { per_second: 2, burst: 2 };
    let config = world.config();
    let periods = Periods { lease_seconds: 4, ..Periods::default() };
    world.start_with(Config {
        api_rates: ApiRates { requests: Some(rate), events: None },
        registration: Registration { periods, ..config.registration.clone() },
        cluster_dns: vec!["10.43.0.10".to_owned()],
        ..config
    });
    for name in ["a", "b", "c"] {
        world.bind(name, app());
    }
    world.until("all are ready", |world| ["a", "b", "c"].iter().all(|name| world.is_ready(name)));
    let all = world.api.requests();
    let limited: Vec<Request> =
        all.iter().filter(|request| !is_event(request) && !is_heartbeat(request)).cloned().collect();
    let count = within(rate, &limited, "requests");
    assert!(count >= 15, "{count} requests");
    let leases: Vec<&Request> = all.iter().filter(|request| request.path.contains("/leases")).collect();
    let time = leases.last().expect("leases").at.since(leases[0].at);
    assert!(leases.len() as u64 * 2 > time.as_secs(), "{} leases in {time:?}", leases.len());
    assert!(all.iter().filter(|request| is_event(request)).count() >= 9, "nor do events");
}

#[test]
fn events_wait_for_their_turn_and_none_is_lost() {
    let world = World::without_agent();
    let rate = Rate { per_second: 1, burst: 2 };
    let api_rates = ApiRates { requests: None, events: Some(rate) };
    let config = world.config();
    world.start_with(Config { api_rates, cluster_dns: vec!["10.43.0.10".to_owned()], ..config });
    for name in ["a", "b"] {
        world.bind(name, app());
    }
    world.until("both are ready", |world| world.is_ready("a") && world.is_ready("b"));
    world.until("all that happened is told", |world| {
        let told = world.api.list("events", "default");
        let is_told = |pod: &str, reason: &str| {
            told.iter().any(|event| event["involvedObject"]["name"] == pod && event["reason"] == reason)
        };
        ["a", "b"]
            .iter()
            .all(|pod| ["Pulled", "Created", "Started"].iter().all(|reason| is_told(pod, reason)))
    });
    let told: Vec<Request> = world.api.requests().into_iter().filter(is_event).collect();
    let count = within(rate, &told, "events");
    assert!(count >= 6, "{count} events");
    let (first, last) = (&told[0], &told[count - 1]);
    assert!(last.at.since(first.at) > Duration::from_secs(2), "they did wait");
}
