//! Bad links and registries that serve wrong bytes.

use std::collections::VecDeque;

use super::server::{Auth, Faults, Registry};
use super::{Node, put_app, with_app};

const MIB: u64 = 1 << 20;

#[test]
fn a_link_cut_at_every_mebibyte_costs_no_byte_twice() {
    const SIZES: [usize; 3] = [9_300_000, 4_100_000, 700_000];
    let (registry, image) = with_app(&SIZES);
    registry.set(Auth::Anyone, Faults { cut: Some((MIB, u32::MAX)), ..Faults::default() });
    let node = Node::new();
    node.pull(&image).unwrap();
    let size: u64 = SIZES.iter().map(|size| *size as u64).sum();
    let ratio = registry.sent() as f64 / size as f64;
    println!("{} bytes sent for an image of {size}: {ratio:.4}", registry.sent());
    assert!(ratio <= 1.05, "{ratio}");
    assert_eq!(node.restarts(), 0);
    let cut = registry.log().iter().filter(|request| request.headers.contains_key("range")).count();
    assert_eq!(cut, 8 + 3, "every connection was cut");
}

/// What is wrong; the error, or nothing when the pull succeeds; how often a layer began again.
#[test]
fn faults() {
    let none = Faults::default;
    let statuses = |statuses: &[(u16, Option<&'static str>)]| VecDeque::from(statuses.to_vec());
    let rows = [
        ("cut once", Faults { cut: Some((100_000, 2)), ..none() }, "", 0),
        ("cut twice without ranges", Faults { cut: Some((200_000, 3)), no_range: true, ..none() }, "", 0),
        (
            "cut for ever without ranges",
            Faults { cut: Some((20_000, u32::MAX)), no_range: true, ..none() },
            "attempts without progress",
            0,
        ),
        ("one wrong byte once", Faults { wrong: 1, ..none() }, "", 1),
        ("wrong bytes", Faults { wrong: u32::MAX, ..none() }, "has the digest sha256:", 2),
        ("another ETag", Faults { cut: Some((100_000, 2)), other_etags: true, ..none() }, "", 0),
        ("416", Faults { cut: Some((100_000, 2)), refuses_ranges: true, ..none() }, "", 0),
        (
            "always 416",
            Faults { cut: Some((100_000, u32::MAX)), refuses_ranges: true, ..none() },
            "attempts without progress",
            0,
        ),
        ("a page for the rest", Faults { cut: Some((100_000, 2)), pages: 1, ..none() }, "", 0),
        ("stalled", Faults { stalls: 2, ..none() }, "", 0),
        ("short", Faults { short: 5, ..none() }, "end of file before message length reached", 0),
        ("429", Faults { statuses: statuses(&[(429, Some("2"))]), ..none() }, "", 0),
        ("503, then 500", Faults { statuses: statuses(&[(503, None), (500, None)]), ..none() }, "", 0),
        ("500", Faults { always: Some(500), ..none() }, "500 Internal Server Error", 0),
        (
            "429 for an hour",
            Faults { statuses: statuses(&[(429, Some("3600"))]), ..none() },
            "wait for 3600 s",
            0,
        ),
        ("403", Faults { always: Some(403), ..none() }, "pull access denied, repository does not exist", 0),
        ("400", Faults { always: Some(400), ..none() }, "400 Bad Request", 0),
    ];
    let (registry, image) = with_app(&[400_000]);
    for (what, faults, error, restarts) in rows {
        registry.set(Auth::Anyone, faults);
        let node = Node::new();
        match node.pull(&image) {
            Ok(_) => assert_eq!(error, "", "{what}"),
            Err(found) => {
                let found = found.to_string();
                assert!(!error.is_empty() && found.contains(error), "{what}: {found}");
                assert!(node.store.0.borrow().images.is_empty(), "{what}: nothing is seen of the image");
            }
        }
        assert_eq!(node.restarts(), restarts, "{what}");
        if what == "a page for the rest" {
            let last = registry.log().pop().unwrap();
            assert!(last.headers.contains_key("range"), "it is asked for the rest still: {last:?}");
        }
    }
}

#[test]
fn redirects_take_no_credentials_to_another_host() {
    let (registry, image) = with_app(&[300_000, 200]);
    let storage = Registry::start();
    put_app(&storage, &[300_000, 200]);
    let faults = Faults { blobs_at: Some(format!("http://{}", storage.host())), ..Faults::default() };
    registry.set(Auth::TokenForLogin, faults);
    storage.set(Auth::Anyone, Faults { cut: Some((100_000, 3)), ..Faults::default() });
    let node = Node::with_login(super::server::LOGIN.0, super::server::LOGIN.1);
    node.pull(&image).unwrap();
    let asked = registry.log();
    assert!(
        asked.iter().any(
            |request| request.target.contains("/blobs/") && request.headers.contains_key("authorization")
        )
    );
    let asked = storage.log();
    assert!(asked.len() >= 4, "{asked:?}");
    assert!(asked.iter().all(|request| !request.headers.contains_key("authorization")), "{asked:?}");
    assert!(
        asked.iter().any(|request| request.headers.contains_key("range")),
        "a range survives the redirect"
    );

    // To itself, without end; the signature of the URL is in no message.
    let faults = Faults { blobs_at: Some(format!("http://{}", registry.host())), ..Faults::default() };
    registry.set(Auth::Anyone, faults);
    let error = Node::new().pull(&image).unwrap_err().to_string();
    assert!(error.contains("stopped after 5 redirects"), "{error}");

    // The other host refuses: no credentials are fetched for it.
    registry.set(
        Auth::Anyone,
        Faults { blobs_at: Some(format!("http://{}", storage.host())), ..Faults::default() },
    );
    storage.set(Auth::TokenForLogin, Faults::default());
    let error = Node::with_login("me", "hunter2-secret").pull(&image).unwrap_err().to_string();
    assert!(error.contains("pull access denied"), "{error}");
    assert!(storage.log().iter().all(|request| !request.target.starts_with("/token")));
}

#[test]
fn a_refusal_without_its_body_ends_the_pull() {
    let (registry, image) = with_app(&[5000]);
    registry.set(Auth::Basic, Faults { silent_refusals: true, ..Faults::default() });
    let node = Node::new();
    let pulled = smol::block_on(smol::future::or(async { Some(node.pull_it(&image).await) }, async {
        async_io::Timer::after(std::time::Duration::from_secs(20)).await;
        None
    }));
    let error = pulled.expect("it ends").unwrap_err().to_string();
    assert!(error.contains("pull access denied"), "{error}");
}

#[test]
fn a_registry_that_asks_for_a_long_wait_is_not_asked_again() {
    let (registry, image) = with_app(&[5000, 6000]);
    for layers_only in [false, true] {
        let statuses =
            if layers_only { VecDeque::new() } else { VecDeque::from(vec![(429, Some("300")); 100]) };
        let layers = layers_only.then_some(429);
        registry.set(Auth::Anyone, Faults { statuses, layers, after: Some("300"), ..Faults::default() });
        let error = Node::new().pull(&image).unwrap_err().to_string();
        assert!(error.contains("asks to wait for 300 s"), "{error}");
        let log = registry.log();
        let mut targets: Vec<_> = log.iter().map(|request| (&request.method, &request.target)).collect();
        let all = targets.len();
        targets.sort();
        targets.dedup();
        assert_eq!(targets.len(), all, "each was asked for once: {log:?}");
    }
}

#[test]
fn an_image_whose_configuration_is_too_large_to_be_stored_is_refused_before_its_layers() {
    let registry = Registry::start();
    registry.put_described("team/app", "1", &"x".repeat(600 << 10), &[super::layer(1, 5000)]);
    let error = Node::new().pull(&format!("{}/team/app:1", registry.host())).unwrap_err().to_string();
    assert!(error.contains("configuration") && error.contains("524288 bytes"), "{error}");
    let blobs = registry.log().iter().filter(|request| request.target.contains("/blobs/")).count();
    assert_eq!(blobs, 1, "no layer was asked for");
}
