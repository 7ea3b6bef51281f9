use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

/// Counts how often it was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(wait: &mut Wait, bell: &Arc<Bell>) -> Poll<Result<Turn, TooManyWait>> {
    let waker = Waker::from(bell.clone());
    Pin::new(wait).poll(&mut Context::from_waker(&waker))
}

fn take(turns: &Turns, party: u64) -> Option<Turn> {
    match poll(&mut turns.take(Party(party)), &Arc::default()) {
        Poll::Ready(turn) => Some(turn.expect("few wait")),
        Poll::Pending => None,
    }
}

#[test]
fn a_party_has_its_own_turn_and_a_share_of_the_common_ones() {
    let halves = Share { own: 0, common: 16 };
    let own = Share { own: 3, common: 8 };
    // How many each party wants that never gives one back, one after the other: what they get.
    for (share, wanted, expected) in [
        (halves, &[40][..], &[8][..]),
        (halves, &[3, 40], &[3, 7]),
        (halves, &[40, 40], &[8, 4]),
        (halves, &[40, 40, 40, 1, 1], &[8, 4, 2, 1, 1]),
        (halves, &[40; 8], &[8, 4, 2, 1, 1, 0, 0, 0]),
        (halves, &[1; 18], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
        (own, &[40], &[5]),
        (own, &[40, 40, 40], &[5, 3, 2]),
        // The parties behind the third have no turn of their own.
        (own, &[40, 40, 40, 40, 40], &[5, 3, 2, 1, 0]),
        (own, &[1; 12], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]),
        (Share { own: 4, common: 0 }, &[2; 5], &[1, 1, 1, 1, 0]),
        (Share { own: 0, common: 1 }, &[2, 2], &[1, 0]),
    ] {
        let turns = Turns::new(share);
        let mut held = Vec::new();
        let mut got = Vec::new();
        for (party, wanted) in (1..).zip(wanted) {
            let mine: Vec<Turn> = (0..*wanted).map_while(|_| take(&turns, party)).collect();
            got.push(mine.len());
            held.push(mine);
        }
        assert_eq!(got, expected, "{share:?} {wanted:?}");
        assert!(turns.held() <= share.most());
        drop(held);
        assert_eq!(turns.held(), 0);
    }
}

#[test]
fn who_holds_fewest_is_next_and_among_equals_who_waits_longest() {
    let turns = Turns::new(Share { own: 0, common: 4 });
    let mut held = vec![take(&turns, 1).unwrap(), take(&turns, 1).unwrap()];
    held.extend([take(&turns, 2).unwrap(), take(&turns, 3).unwrap()]);
    let bells: Vec<Arc<Bell>> = (0..4).map(|_| Arc::default()).collect();
    let mut waits: Vec<Wait> = [1, 2, 4, 5].map(|party| turns.take(Party(party))).into();
    for (wait, bell) in waits.iter_mut().zip(&bells) {
        assert!(poll(wait, bell).is_pending());
    }
    let rung = || bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    // One of the first's: it goes to the fourth, who has none and came before the fifth.
    held.remove(0);
    assert_eq!(rung(), [0, 0, 1, 0]);
    // The fourth has gone meanwhile: the fifth gets it.
    drop(waits.remove(2));
    assert_eq!(rung(), [0, 0, 1, 1]);
    let fifth = match poll(&mut waits[2], &bells[3]) {
        Poll::Ready(turn) => turn.unwrap(),
        Poll::Pending => panic!("it has its turn"),
    };
    // The third's: the first and the second have one each, and another would be the last.
    drop(held.pop());
    assert_eq!(rung(), [0, 0, 1, 1]);
    drop(fifth);
    assert_eq!(rung(), [1, 0, 1, 1], "the first came before the second");
    drop((waits, held));
    let state = turns.state();
    assert!(state.holders.is_empty() && state.waiting.is_empty());
    assert_eq!((state.holders.capacity(), state.waiting.capacity()), (0, 0), "memory is given back");
}

#[test]
fn too_many_that_wait_are_refused() {
    let turns = Turns::new(Share { own: 0, common: 1 });
    let turn = take(&turns, 1);
    let bell = Arc::default();
    let mut waits: Vec<Wait> = (0..=TURNS_WAITING_MAX).map(|_| turns.take(Party(2))).collect();
    let mut last = waits.pop().unwrap();
    assert!(waits.iter_mut().all(|wait| poll(wait, &bell).is_pending()));
    assert!(matches!(poll(&mut last, &bell), Poll::Ready(Err(TooManyWait))));
    drop(waits);
    assert!(poll(&mut last, &bell).is_pending(), "there is room again");
    drop((turn, last));
    assert_eq!(turns.held(), 0);
}

/// Whoever waits, whoever goes: never more turns than there are, none of them lost, and whoever has none is next.
#[test]
fn turns_come_and_go_in_any_order() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let share = Share { own: random.usize(0..4), common: random.usize(1..9) };
        let turns = Turns::new(share);
        let mut held: Vec<Turn> = Vec::new();
        let mut waits: Vec<(Wait, Arc<Bell>)> = Vec::new();
        for step in 0..200 {
            let what = format!("seed {seed}, step {step}, {share:?}");
            match random.u8(0..4) {
                0 | 1 => {
                    let mut wait = turns.take(Party(random.u64(0..8)));
                    let bell = Arc::<Bell>::default();
                    match poll(&mut wait, &bell) {
                        Poll::Ready(turn) => held.push(turn.unwrap()),
                        Poll::Pending => waits.push((wait, bell)),
                    }
                }
                2 if !held.is_empty() => drop(held.swap_remove(random.usize(0..held.len()))),
                3 if !waits.is_empty() => drop(waits.swap_remove(random.usize(0..waits.len()))),
                _ => {}
            }
            // Some of those that were woken look at once, others later.
            let mut index = 0;
            while index < waits.len() {
                let rung = waits[index].1.0.load(Ordering::Relaxed) > 0;
                let (wait, bell) = &mut waits[index];
                if !random.bool() {
                    index += 1;
                } else if let Poll::Ready(turn) = poll(wait, bell) {
                    assert!(rung, "{what}: a turn that nobody was told of");
                    held.push(turn.unwrap());
                    waits.swap_remove(index);
                } else {
                    assert!(!rung, "{what}: woken for nothing");
                    index += 1;
                }
            }
            let state = turns.state();
            assert!(state.held() <= share.most(), "{what}: {}", state.held());
            let given = state.waiting.iter().filter(|waiting| waiting.has_turn).count();
            assert_eq!(state.held(), held.len() + given, "{what}");
            assert_eq!(state.waiting.len(), waits.len(), "{what}");
            for waiting in state.waiting.iter().filter(|waiting| !waiting.has_turn) {
                let of = state.of(waiting.party);
                assert!(!share.may_begin(of, state.holders.len(), state.held()), "{what}: a lost turn");
                assert!(of > 0 || state.held() == share.most(), "{what}: one with none waits");
            }
        }
        drop((held, waits));
        assert_eq!(turns.held(), 0, "seed {seed}");
    }
}
