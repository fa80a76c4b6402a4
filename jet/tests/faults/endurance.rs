//! A minute of it: applications are stopped, go on, and are killed at random under full load. No slab, no message and
//! no byte is lost.

use crate::children::Role;
use crate::rig::{Actor, Random, Rig, number};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, Sender, SenderOptions};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const APPS: [&str; 4] = ["one", "two", "three", "four"];
const IN_FLIGHT: usize = 32;
/// Between two looks at what is to be done next.
const STEP: Duration = Duration::from_millis(10);

/// How long: `JET_FAULTS_SPAN_S` seconds, or a minute.
fn span() -> Duration {
    let text = std::env::var("JET_FAULTS_SPAN_S").ok();
    Duration::from_secs(
        text.map_or(60, |text| text.parse().expect("JET_FAULTS_SPAN_S is a number of seconds")),
    )
}

/// Sends small and large messages until it is told to stop, and waits for the end of each: how many there were.
fn send(mut traffic: Traffic, mut sizes: Random, stop: &AtomicBool) -> u64 {
    let (mut in_flight, mut sent) = (0, 0);
    while in_flight > 0 || !stop.load(Ordering::Relaxed) {
        while in_flight < IN_FLIGHT && !stop.load(Ordering::Relaxed) {
            let bytes =
                if sizes.below(3) == 0 { 1 + sizes.size_below(1 << 20) } else { sizes.size_below(4097) };
            traffic.send(bytes).expect("taken");
            in_flight += 1;
            sent += 1;
        }
        assert_eq!(
            traffic.end().status,
            AckStatus::Consumed,
            "what an application that died left is sent again"
        );
        in_flight -= 1;
    }
    sent
}

/// An application, and when it goes on if it is stopped.
struct Victim {
    actor: Actor,
    goes_on: Option<Instant>,
}

/// What one life of an application reported.
fn check(actor: &Actor) {
    assert_eq!((actor.reported("wrong"), actor.reported("corrupt"), actor.reported("failed")), (0, 0, 0));
}

#[test]
fn applications_stopped_and_killed_at_random_lose_nothing() {
    let mut random = Random::for_test("endurance", 70);
    let rig = Rig::start(&["session.quarantine_ms=100"]);
    let mut victims: Vec<Victim> = APPS
        .iter()
        .map(|app| Victim { actor: rig.application(Role::Consumer, app), goes_on: None })
        .collect();
    let stop = AtomicBool::new(false);
    let (mut stops, mut kills) = (0, 0);
    let sent: u64 = std::thread::scope(|scope| {
        let senders: Vec<_> = APPS
            .iter()
            .enumerate()
            .map(|(n, app)| {
                let options = SenderOptions {
                    retry: RetryPolicy::all_for_ns(u64::MAX),
                    region_bytes: 32 << 20,
                    ..Rig::sender_options(&rig.addresses()[n % 2], app)
                };
                let traffic = Traffic::over(Sender::connect(options).expect("let in"), random.fork());
                let sizes = random.fork();
                let stop = &stop;
                scope.spawn(move || send(traffic, sizes, stop))
            })
            .collect();
        let deadline = Instant::now() + span();
        while Instant::now() < deadline {
            std::thread::sleep(STEP);
            for (victim, app) in victims.iter_mut().zip(APPS) {
                match victim.goes_on {
                    Some(at) if Instant::now() >= at => {
                        victim.actor.process.signal(Signal::CONT);
                        victim.goes_on = None;
                    }
                    Some(_) => {}
                    None => {}
                }
                match random.below(200) {
                    0 => {
                        // Also while it is stopped.
                        victim.actor.process.kill();
                        check(&victim.actor);
                        *victim = Victim { actor: rig.application(Role::Consumer, app), goes_on: None };
                        kills += 1;
                    }
                    1..=6 if victim.goes_on.is_none() => {
                        victim.actor.process.stop();
                        let most_ms = 2 << random.below(10);
                        let span_ms = 1 + random.below(most_ms);
                        victim.goes_on = Some(Instant::now() + Duration::from_millis(span_ms));
                        stops += 1;
                    }
                    _ => {}
                }
            }
        }
        for victim in victims.iter().filter(|victim| victim.goes_on.is_some()) {
            victim.actor.process.signal(Signal::CONT);
        }
        stop.store(true, Ordering::Relaxed);
        senders.into_iter().map(|sender| sender.join().expect("every message has its end")).sum()
    });
    victims.iter().for_each(|victim| check(&victim.actor));
    let status = rig.wait_whole();
    eprintln!("{sent} messages, {stops} stops, {kills} kills; {:#}", status["escape"]);
    assert!(sent > 100 && stops > 0, "{sent} messages, {stops} stops, {kills} kills");
    assert!(
        number(&status, "escape.copied.total") > 0,
        "the escape controller had something to do: {status:#}"
    );
    // What is posted to the SRQ leaves escape memory by being used.
    let mut traffic = Traffic::new(&rig.addresses()[0], APPS[0], random.fork());
    crate::rig::until("escape memory to be in no use", || {
        traffic.round();
        (number(&rig.wait_whole(), "escape.memory.used") == 0).then_some(())
    });
}
