//! The runtime's events: what they lead to without a relist, and that they come again.

use rustix::process::{Signal, kill_process};

use crate::agent::{Agent, PATIENCE, container, is_ready};
use crate::recovery::shim_child;
use crate::runtime::{Runtime, wait_for};

const PLAIN: &str = "
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: 'smolet.test/version:1'}";
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn said(agent: &Agent, what: &str) -> usize {
    agent.log().matches(what).count()
}

/// Ends the first process of each pod in turn, and waits until it was started again: the number of relists meanwhile.
fn relists_for_restarts(runtime: &Runtime, agent: &Agent) -> usize {
    let before = said(agent, "relist: ");
    assert!(before > 0, "relists are told of in the log");
    for name in NAMES {
        let full = agent.full(name);
        let old = runtime.running_container(&full, "app").id;
        kill_process(shim_child(old.as_str()), Signal::KILL).expect("the container can be killed");
        wait_for(&format!("{name} runs again"), PATIENCE, || {
            let containers = runtime.containers_of(&full);
            let runs = |c: &&smolet::model::ContainerItem| c.state == smolet::model::ContainerState::Running;
            containers.iter().find(runs).filter(|new| new.id != old).map(drop)
        });
    }
    said(agent, "relist: ") - before
}

pub fn an_exit_is_told_and_waits_for_no_relist(runtime: &Runtime) {
    let agent = Agent::started(runtime, "told");
    NAMES.iter().for_each(|name| agent.apply_pod(name, PLAIN));
    NAMES.iter().for_each(|name| drop(agent.running(name)));
    wait_for("events", PATIENCE, || (said(&agent, "is up; relisting every 60 s") >= 1).then_some(()));
    let relists = relists_for_restarts(runtime, &agent);
    println!("  {} restarts, {relists} relists meanwhile", NAMES.len());
    // A relist that is due by itself may fall into the time.
    assert!(relists < NAMES.len() / 2, "{relists} relists for {} restarts", NAMES.len());
    for name in NAMES {
        agent.wait_pod(name, "restarted once", |status| {
            is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 1)
        });
    }
    assert_eq!(said(&agent, "missed changes of"), 0, "nothing was missed");
    agent.end_pods();
}

pub fn events_come_again_after_containerd_was_killed(runtime: &Runtime) {
    let agent = Agent::started(runtime, "again");
    NAMES.iter().for_each(|name| agent.apply_pod(name, PLAIN));
    NAMES.iter().for_each(|name| drop(agent.running(name)));
    wait_for("events", PATIENCE, || (said(&agent, "is up; relisting every 60 s") >= 1).then_some(()));
    let (ups, ends) = (said(&agent, "is up; relisting every 60 s"), said(&agent, "reopening it"));
    runtime.kill();
    wait_for("the stream's end", PATIENCE, || (said(&agent, "reopening it") > ends).then_some(()));
    runtime.start();
    // The first event after the restart shows that events come again. One that comes before the stream is open shows
    // nothing.
    let mut late = 0;
    wait_for("events again", PATIENCE, || {
        late += 1;
        let name = format!("late{late}");
        agent.apply_pod(&name, PLAIN);
        agent.running(&name);
        agent.delete(&name);
        (said(&agent, "is up; relisting every 60 s") > ups).then_some(())
    });
    let relists = relists_for_restarts(runtime, &agent);
    println!("  {} restarts, {relists} relists meanwhile", NAMES.len());
    assert!(relists < NAMES.len() / 2, "{relists} relists for {} restarts", NAMES.len());
    agent.end_pods();
}
