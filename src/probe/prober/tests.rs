use super::*;

const SECOND: i64 = 1_000_000_000;
/// A quarter of a second after a whole one.
const START: Mono = Mono(100 * SECOND + SECOND / 4);

fn at(seconds: i64) -> Mono {
    Mono(seconds * SECOND)
}

fn id(n: u32) -> ContainerId {
    ContainerId::from(format!("c{n}"))
}

fn prober(kind: ProbeKind, edit: impl FnOnce(&mut Probe)) -> Prober {
    let mut probe = Probe::default();
    edit(&mut probe);
    Prober::new(kind, Schedule::new(&probe))
}

/// Running since [`START`], its startup probe successful.
fn runs(id: &ContainerId) -> ProbedContainer<'_> {
    ProbedContainer { id, progress: Progress::Runs(START), started: true, before: None, is_ending: false }
}

/// Runs the probe when due with the given results; returns the times of the probes.
fn asked(prober: &mut Prober, id: &ContainerId, answers: &[ProbeResult]) -> Vec<Mono> {
    let mut times = Vec::new();
    for answer in answers {
        let Some(due) = prober.due() else { break };
        assert!(!prober.begin(due).expect("it is due").is_late);
        prober.record(id, Some(*answer));
        times.push(due);
    }
    times
}

use ProbeKind::{Liveness, Readiness, Startup};
use ProbeResult::{Failure, Success, Unknown};

#[test]
fn it_asks_at_the_start_and_then_each_period_at_whole_seconds() {
    let mut prober = prober(Liveness, |_| {});
    assert_eq!((prober.due(), prober.result()), (None, None), "nothing is there");
    prober.update(&runs(&id(1)), START);
    assert_eq!(prober.result(), Some((&id(1), Success)));
    assert_eq!(asked(&mut prober, &id(1), &[Success; 4]), [START, at(110), at(120), at(130)]);
}

#[test]
fn the_initial_delay_counts_from_the_containers_start() {
    let mut prober = prober(Liveness, |probe| {
        (probe.initial_delay_seconds, probe.period_seconds) = (Some(7), Some(1));
    });
    prober.update(&runs(&id(1)), START + Duration::from_secs(3));
    assert_eq!(asked(&mut prober, &id(1), &[Success; 2]), [START + Duration::from_secs(7), at(108)]);
}

#[test]
fn the_start_is_taken_at_first_sight() {
    let mut prober = prober(Readiness, |probe| probe.initial_delay_seconds = Some(60));
    let it = id(1);
    let mut seen = runs(&it);
    seen.started = false;
    prober.update(&seen, START);
    // The wall clock stepped, and the runtime's time with it.
    (seen.progress, seen.started) = (Progress::Runs(at(0)), true);
    prober.update(&seen, at(105));
    assert_eq!(prober.due(), Some(START + Duration::from_mins(1)));
}

#[test]
fn as_many_answers_in_a_row_count_as_the_thresholds_say() {
    let mut prober = prober(Readiness, |probe| {
        (probe.success_threshold, probe.failure_threshold) = (Some(2), Some(3));
    });
    prober.update(&runs(&id(1)), START);
    assert_eq!(prober.result(), Some((&id(1), Failure)));
    let mut changes = |answers: &[Option<ProbeResult>]| {
        let mut changed = Vec::new();
        for answer in answers {
            prober.begin(prober.due().unwrap()).unwrap();
            changed.push(prober.record(&id(1), *answer));
        }
        (changed, prober.result().unwrap().1)
    };
    let (yes, no) = (Some(Success), Some(Failure));
    assert_eq!(changes(&[yes, no, yes]), (vec![false; 3], Failure));
    assert_eq!(changes(&[yes]), (vec![true], Success));
    assert_eq!(changes(&[yes, no, no]), (vec![false; 3], Success));
    // A probe that could not run neither counts nor interrupts a series.
    assert_eq!(changes(&[None, no, no]), (vec![false, true, false], Failure));
}

#[test]
fn a_container_that_is_to_be_killed_is_not_asked_again_until_the_next_one() {
    let mut prober = prober(Liveness, |_| {});
    prober.update(&runs(&id(1)), START);
    assert_eq!(asked(&mut prober, &id(1), &[Failure; 9]).len(), 3);
    prober.update(&runs(&id(1)), at(200));
    assert_eq!((prober.due(), prober.result()), (None, Some((&id(1), Failure))));
    let next = id(2);
    prober.update(&ProbedContainer { progress: Progress::Runs(at(300)), ..runs(&next) }, at(300));
    assert_eq!((prober.due(), prober.result()), (Some(at(300)), Some((&next, Success))));
}

#[test]
fn the_others_wait_for_the_startup_probe_which_speaks_once() {
    let (mut startup, mut readiness) = (prober(Startup, |_| {}), prober(Readiness, |_| {}));
    let it = id(1);
    let mut seen = ProbedContainer { started: false, ..runs(&it) };
    startup.update(&seen, START);
    readiness.update(&seen, START);
    assert_eq!((startup.result(), readiness.due()), (Some((&it, Unknown)), None));
    assert_eq!(asked(&mut startup, &it, &[Failure, Failure, Success]).len(), 3);
    assert_eq!((startup.due(), startup.result()), (None, Some((&it, Success))));
    seen.started = true;
    startup.update(&seen, at(121));
    readiness.update(&seen, at(121));
    assert_eq!((startup.due(), readiness.due()), (None, Some(at(121))), "at once");
}

#[test]
fn a_failed_startup_probe_speaks_once_too() {
    let mut prober = prober(Startup, |_| {});
    let it = id(1);
    prober.update(&ProbedContainer { started: false, ..runs(&it) }, START);
    assert_eq!(asked(&mut prober, &it, &[Failure; 9]).len(), 3);
    assert_eq!((prober.due(), prober.result()), (None, Some((&it, Failure))));
}

#[test]
fn a_container_that_does_not_run_is_not_asked() {
    let mut prober = prober(Liveness, |_| {});
    let it = id(1);
    prober.update(&ProbedContainer { progress: Progress::Made, ..runs(&it) }, START);
    assert_eq!((prober.due(), prober.result()), (None, Some((&it, Success))), "it has yet to start");
    prober.update(&runs(&it), START);
    assert_eq!(prober.due(), Some(START));
    prober.lost();
    assert_eq!(prober.due(), None);
    prober.update(&runs(&it), START);
    assert_eq!(prober.due(), Some(START));
    prober.update(&ProbedContainer { progress: Progress::Ended, ..runs(&it) }, at(105));
    assert_eq!((prober.due(), prober.result()), (None, Some((&it, Failure))));
}

#[test]
fn of_a_pod_that_ends_only_the_readiness_is_asked_for() {
    for (kind, due, result) in
        [(Liveness, None, Success), (Readiness, Some(START), Failure), (Startup, None, Success)]
    {
        let mut prober = prober(kind, |_| {});
        let it = id(1);
        let seen = ProbedContainer { started: kind != Startup, ..runs(&it) };
        prober.update(&seen, START);
        assert_eq!(prober.due(), Some(START), "{kind:?}");
        prober.update(&ProbedContainer { is_ending: true, ..seen }, START);
        assert_eq!((prober.due(), prober.result()), (due, Some((&it, result))), "{kind:?}");
        let again = prober.record(&it, Some(Failure));
        assert!(!again, "{kind:?}: an answer that was under way comes too late");
    }
}

#[test]
fn what_was_shown_before_the_agent_started_holds_until_a_probe_says_otherwise() {
    let it = id(1);
    for (kind, ready, result) in [
        (Readiness, true, Some(Success)),
        (Readiness, false, None),
        (Liveness, true, None),
        (Startup, true, Some(Success)),
    ] {
        let mut prober = prober(kind, |probe| probe.failure_threshold = Some(2));
        let before = Some(PreviousStatus { ready, jitter: 0 });
        prober.update(&ProbedContainer { before, ..runs(&it) }, at(200));
        assert_eq!(prober.result().map(|(_, result)| result), result, "{kind:?}");
        assert_eq!(prober.due(), (kind != Startup).then_some(at(200)), "{kind:?}");
        if kind == Readiness {
            asked(&mut prober, &it, &[Failure; 2]);
            assert_eq!(prober.result(), Some((&it, Failure)));
        }
    }
}

#[test]
fn containers_from_before_are_asked_within_a_period_one_here_one_there() {
    let it = id(1);
    let due = |jitter| {
        let mut prober = prober(Liveness, |_| {});
        prober.update(
            &ProbedContainer { before: Some(PreviousStatus { ready: true, jitter }), ..runs(&it) },
            Mono(at(200).0 + 5),
        );
        prober.due().unwrap()
    };
    assert_eq!(due(0), Mono(at(200).0 + 5));
    assert_eq!(due(u32::MAX / 2), at(204));
    assert_eq!(due(u32::MAX), at(209));
}

#[test]
fn a_late_probe_is_told_apart_and_moves_no_other() {
    let it = id(1);
    let mut prober = prober(Liveness, |_| {});
    prober.update(&runs(&it), START);
    for (now, late, next) in [
        (at(101), false, at(110)),
        (at(110) + PROBE_LATE, true, at(120)),
        // The previous probe took more than a period.
        (Mono(at(131).0 + 7), true, at(141)),
    ] {
        assert_eq!(prober.begin(now), Some(DueProbe { container: it.clone(), is_late: late }), "{now:?}");
        assert_eq!((prober.due(), prober.begin(at(999))), (None, None), "one at a time");
        prober.record(&it, Some(Success));
        assert_eq!(prober.due(), Some(next), "{now:?}");
    }
    assert_eq!(prober.begin(at(140)), None, "not before its time");
}

#[test]
fn answers_of_a_former_generation_are_passed_over() {
    let (old, new) = (id(1), id(2));
    let mut prober = prober(Liveness, |probe| probe.failure_threshold = Some(1));
    prober.update(&runs(&old), START);
    prober.begin(START).unwrap();
    prober.update(&runs(&new), at(101));
    prober.begin(at(101)).expect("its own first probe");
    assert!(!prober.record(&old, Some(Failure)));
    assert_eq!(
        (prober.due(), prober.result()),
        (None, Some((&new, Success))),
        "its probe is still under way"
    );
    assert!(prober.record(&new, Some(Failure)));
}
