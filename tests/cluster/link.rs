//! The link to the server: away, cut, behind, standing still.

use std::time::Duration;

use serde_json::json;
use smolet::limits::KUBE_WATCH_TIME;

use crate::common::apiserver::ApiServer;
use crate::world::{NODE, World, app};

#[test]
fn pods_run_on_while_the_server_is_away_and_what_changed_meanwhile_is_done() {
    let world = World::new();
    world.run("stays");
    world.run("goes");
    world.api.stop_listening();
    world.pass(Duration::from_secs(2));
    world.fake.exit("stays/app", 1, "Error", "");
    world.until("it restarts without the server", |world| {
        world.fake.state().running().contains(&"stays/app#1".to_owned())
    });
    world.api.delete("pods", "default", "goes", None);
    world.bind("comes", app());
    world.api.listen_again();
    world.until("the new one runs", |world| world.is_ready("comes"));
    world.until("the deleted one is gone", |world| world.pod("goes").is_none());
    world.until("the restart is told", |world| {
        world.pod("stays").unwrap()["status"]["containerStatuses"][0]["restartCount"] == 1
    });
}

#[test]
fn a_restart_of_the_agent_without_a_server_ends_nothing() {
    let world = World::new();
    world.run("web");
    world.api.stop_listening();
    world.kill();
    let before = world.fake.state().running();
    world.start();
    world.pass(Duration::from_secs(4));
    assert_eq!(world.fake.state().running(), before);
    world.api.listen_again();
    world.api.delete("pods", "default", "web", None);
    world.until("it is gone there", |world| world.pod("web").is_none());
}

#[test]
fn a_watch_that_is_cut_or_too_old_loses_nothing() {
    let world = World::new();
    for (number, break_it) in
        [Fault::Cut, Fault::Compact, Fault::GoAway, Fault::Expire].into_iter().enumerate()
    {
        match break_it {
            Fault::Cut => world.api.cut_connections(),
            Fault::Compact => {
                world.api.compact();
                world.api.cut_connections();
            }
            Fault::GoAway => world.api.go_away(),
            Fault::Expire => world.api.expire_watches(),
        }
        let name = format!("web{number}");
        world.run(&name);
        world.api.delete("pods", "default", &name, None);
        world.until("it is gone there", |world| world.pod(&name).is_none());
    }
}

#[test]
fn a_server_that_is_back_is_followed_at_once_though_it_has_forgotten() {
    let world = World::new();
    world.run("web");
    world.api.stop_listening();
    // At least two failures in a row: the next wait would be one of 3 s at least.
    world.pass(Duration::from_secs(6));
    world.api.clear_requests();
    world.api.compact();
    world.api.listen_again();
    let asks = |world: &World, verb: &str| {
        world.api.requests().iter().any(|request| request.path == "/api/v1/pods" && request.verb == verb)
    };
    world.until("it goes on from where it was", |world| asks(world, "watch"));
    let begun = world.now();
    world.until("it begins afresh", |world| asks(world, "list"));
    assert!(world.since(begun) < Duration::from_secs(2), "{:?}", world.since(begun));
}

enum Fault {
    Cut,
    Compact,
    GoAway,
    Expire,
}

#[test]
fn a_server_whose_data_come_from_a_backup_is_followed() {
    let world = World::new();
    world.run("web");
    world.api.restore();
    world.run("later");
    world.api.delete("pods", "default", "web", None);
    world.until("the deleted one is gone", |world| world.pod("web").is_none());
}

#[test]
fn a_restored_server_is_followed_though_no_request_has_failed() {
    let world = World::new();
    world.run("web");
    // More than leases and statuses make while its watches wait for versions that it does not have.
    for number in 0..2000 {
        let word = json!({"metadata": {"annotations": {"word": format!("{number}")}}});
        world.api.patch("namespaces", "", "default", &word);
    }
    world.until("the watches have come to them", |world| world.api.open_watches() > 0);
    world.pass(Duration::from_secs(70));
    world.api.send_bookmarks();
    world.pass(Duration::from_secs(1));
    world.api.restore_at_once();
    world.pass(Duration::from_secs(30));
    world.api.delete("pods", "default", "web", None);
    world.pass(KUBE_WATCH_TIME);
    world.until("the deleted one is gone", |world| world.pod("web").is_none());
}

#[test]
fn what_the_server_refuses_for_a_while_is_told_later() {
    let world = World::new();
    world.api.fail_next(3, "PATCH", "/api/v1/namespaces/default/pods", 500, "InternalError");
    world.run("web");
    world.api.fail_next(2, "DELETE", "/api/v1/namespaces/default/pods", 503, "ServiceUnavailable");
    world.api.delete("pods", "default", "web", None);
    world.until("it is gone there", |world| world.pod("web").is_none());
}

#[test]
fn another_authority_is_not_trusted() {
    let world = World::without_agent();
    let (theirs, node) = (ApiServer::start(), format!("system:node:{NODE}"));
    let mut config = world.config();
    let path = theirs.kubeconfig(&world.path("root"), &node);
    // Their authority with our address.
    let text = std::fs::read_to_string(&path).unwrap();
    let swapped = text.replace(&theirs.address().to_string(), &world.api.address().to_string());
    assert_ne!(swapped, text);
    std::fs::write(&path, swapped).unwrap();
    config.kubeconfig = Some(path);
    world.start_with(config);
    world.until("it has tried", |world| world.api.connections() > 1);
    assert_eq!(world.api.request_count(), 0, "not a word of it");
}
