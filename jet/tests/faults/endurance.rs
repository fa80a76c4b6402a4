//! Test of applications that are stopped, continued and killed at random under full load. No slab, no message
//! and no byte is lost.
//!
//! Jet's own reports prove nothing here. The senders write down what they sent, and the applications what
//! they took. The two are compared at the end, message by message.

use crate::children::Role;
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, Sender};
use jet_control::status::Status;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const APPS: [&str; 4] = ["one", "two", "three", "four"];
const IN_FLIGHT: usize = 32;
/// Time between two choices of what happens next.
const STEP: Duration = Duration::from_millis(10);

/// Returns how long the test runs: `JET_FAULTS_SPAN_S` seconds, or ten.
fn span() -> Duration {
    let text = std::env::var("JET_FAULTS_SPAN_S").ok();
    Duration::from_secs(
        text.map_or(10, |text| text.parse().expect("JET_FAULTS_SPAN_S is a number of seconds")),
    )
}

/// Record of what a sender sent: its own id, and the tag and length of each message by its number. The bytes
/// follow from the tag, which no other sender uses.
struct Sent {
    sender: u64,
    messages: HashMap<u64, (u64, u64)>,
}

/// Sends small and large messages until `stop` is set, and waits for the end of each.
fn send(mut traffic: Traffic, mut sizes: Random, stop: &AtomicBool) -> Sent {
    let mut sent = Sent { sender: traffic.sender.id(), messages: HashMap::new() };
    let mut in_flight = 0;
    while in_flight > 0 || !stop.load(Ordering::Relaxed) {
        while in_flight < IN_FLIGHT && !stop.load(Ordering::Relaxed) {
            let bytes =
                if sizes.below(3) == 0 { 1 + sizes.size_below(1 << 20) } else { sizes.size_below(4097) };
            let tag = traffic.next_tag();
            let ticket = traffic.send(bytes).expect("taken");
            sent.messages.insert(ticket.0, (tag, bytes as u64));
            in_flight += 1;
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

/// Counts of what the lives of an application took. A life is one process of the application, from its start
/// to its kill.
#[derive(Debug, Default, PartialEq, Eq)]
struct Taken {
    /// Messages that were marked as sent before.
    marked: usize,
    /// Messages that an earlier life had begun to take.
    again: usize,
}

/// Compares what the lives of an application wrote down, in their order, with what was sent to it. Every
/// message was finished by at least one life, with its tag and its length (its bytes are checked where they
/// are taken). No message arrived that was not sent, and none arrived twice in one life. A message that
/// arrived again was marked, and can have been in flight at the kill.
fn compare(app: &str, sent: &Sent, lives: &[Vec<String>]) -> Taken {
    let (mut begun, mut finished) = (HashSet::new(), HashSet::new());
    let mut taken = Taken::default();
    for (life, lines) in lives.iter().enumerate() {
        let (mut begun_here, mut finished_here) = (HashSet::new(), HashSet::new());
        let mut again_here = 0;
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            if words == ["registered"] {
                continue;
            }
            let what = format!("{app}, life {life}: {line}");
            let [event @ ("begun" | "finished"), sender, number, ..] = words[..] else { panic!("{what}") };
            assert_eq!(u64::from_str_radix(sender, 16), Ok(sent.sender), "{what}: not its sender");
            let number: u64 = number.parse().expect("a number");
            let Some(&(tag, bytes)) = sent.messages.get(&number) else { panic!("{what}: never sent") };
            if event == "finished" {
                assert_eq!(words[3..], [tag.to_string(), bytes.to_string()], "{what}: sent otherwise");
                assert!(begun_here.contains(&number) && finished_here.insert(number), "{what}: twice");
                continue;
            }
            assert!(begun_here.insert(number), "{what}: twice to one application");
            let marked = words[3] == "true";
            assert!(marked || !begun.contains(&number), "{what}: came before, and is not marked");
            assert!(!marked || life > 0, "{what}: marked, and nobody had died");
            taken.marked += usize::from(marked);
            again_here += usize::from(begun.contains(&number));
        }
        // An earlier life began these messages, so they were sent before the kill. Messages that were
        // acknowledged by then are never sent again.
        assert!(
            again_here <= IN_FLIGHT,
            "{app}, life {life}: {again_here} came again, and {IN_FLIGHT} at most were in flight"
        );
        taken.again += again_here;
        // An application takes one message after the other, so a kill interrupts at most one.
        let cut = begun_here.len() - finished_here.len();
        assert!(cut <= usize::from(life + 1 < lives.len()), "{app}, life {life}: {cut} not finished");
        begun.extend(begun_here);
        finished.extend(finished_here);
    }
    let mut lost: Vec<_> = sent.messages.keys().filter(|number| !finished.contains(number)).collect();
    lost.sort_unstable();
    assert!(lost.is_empty(), "{app}: called consumed and never taken: {lost:?}");
    taken
}

/// Checks that the comparison finds a message that was acknowledged and arrives again, marked or not.
#[test]
#[should_panic(expected = "one, life 1: 33 came again, and 32 at most were in flight")]
fn what_is_replayed_after_a_death_is_found() {
    let messages = |count: u64| (0..count).map(|number| (number, (number, 8))).collect();
    let life = |count: u64, marked: bool| -> Vec<String> {
        let lines = |n| [format!("begun 7 {n} {marked}"), format!("finished 7 {n} {n} 8")];
        (0..count).flat_map(lines).collect()
    };
    let lives_of = |count| [life(count, false), life(count, true)];
    let most = IN_FLIGHT as u64;
    let sent = |count| Sent { sender: 7, messages: messages(count) };
    let taken = compare("one", &sent(most), &lives_of(most));
    assert_eq!(taken, Taken { marked: IN_FLIGHT, again: IN_FLIGHT });
    compare("one", &sent(most + 1), &lives_of(most + 1));
}

/// Application, the records of its earlier lives, and the number of steps for which it is still stopped.
struct Victim {
    app: &'static str,
    actor: Actor,
    lives: Vec<Vec<String>>,
    stopped_steps: Option<u64>,
}

impl Victim {
    fn new(rig: &Rig, app: &'static str) -> Self {
        Self { app, actor: rig.application(Role::Consumer, app), lives: Vec::new(), stopped_steps: None }
    }

    /// Kills the application, also while it is stopped, and starts the next one.
    fn kill(&mut self, rig: &Rig) {
        self.actor.process.kill();
        self.lives.push(self.actor.report());
        self.actor = rig.application(Role::Consumer, self.app);
        self.stopped_steps = None;
    }

    fn continue_process(&mut self) {
        self.actor.process.signal(Signal::CONT);
        self.stopped_steps = None;
    }

    /// Counts down one step, and continues the application at the last one.
    fn step(&mut self) {
        match &mut self.stopped_steps {
            Some(0) => self.continue_process(),
            Some(steps) => *steps -= 1,
            None => {}
        }
    }

    fn held_slabs(&self, status: &Status) -> u32 {
        status.session(self.app).map_or(0, |own| own.held_slabs)
    }
}

/// Guard that ends the senders when dropped, also where the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts of what was done to the applications.
#[derive(Debug, Default)]
struct Done {
    stops: u32,
    kills: u32,
}

/// Does what must happen whatever the seed chooses. One application is stopped until its backlog is moved to
/// escape memory, and one is killed while it holds something.
fn what_must_happen(rig: &Rig, victims: &mut [Victim], random: &mut Random) -> Done {
    let copied = || rig.status().escape.copied.total;
    let stopped = &mut victims[random.size_below(APPS.len())];
    let before = copied();
    stopped.actor.process.pause();
    until("a backlog to be moved to memory", || (copied() > before).then_some(()));
    stopped.continue_process();
    let killed = &mut victims[random.size_below(APPS.len())];
    killed.actor.process.pause();
    rig.wait_status("it to hold something", |status| killed.held_slabs(status) > 0);
    killed.kill(rig);
    Done { stops: 2, kills: 1 }
}

/// Does what the seed chooses for a step: a kill once in 200 steps, a stop of a few milliseconds to a second
/// six times in 200.
fn what_happens(rig: &Rig, victim: &mut Victim, random: &mut Random, done: &mut Done) {
    match random.below(200) {
        0 => {
            victim.kill(rig);
            done.kills += 1;
        }
        1..=6 if victim.stopped_steps.is_none() => {
            victim.actor.process.pause();
            let most_ms = 2 << random.below(10);
            victim.stopped_steps = Some(random.below(most_ms) / 10);
            done.stops += 1;
        }
        _ => {}
    }
}

#[test]
fn applications_stopped_and_killed_at_random_lose_nothing() {
    let mut random = random_for("endurance", 70);
    let rig = Rig::start(&["session.quarantine_ms=100"]);
    let mut victims = APPS.map(|app| Victim::new(&rig, app));
    let stop = AtomicBool::new(false);
    let mut done = Done::default();
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let stop_at_the_end = StopOnDrop(&stop);
        let senders: Vec<_> = (0..)
            .zip(APPS)
            .map(|(n, app)| {
                let options = Rig::sender_options(&rig.addresses()[n % 2], app)
                    .retry(RetryPolicy::all_for(Duration::MAX))
                    .region_bytes(32 << 20);
                let sender = Sender::connect(&options).expect("let in");
                let traffic = Traffic::over(sender, random.fork()).with_tags_from((n as u64 + 1) << 28);
                let sizes = random.fork();
                let stop = &stop;
                scope.spawn(move || send(traffic, sizes, stop))
            })
            .collect();
        done = what_must_happen(&rig, &mut victims, &mut random);
        for _ in 0..span().as_millis() / STEP.as_millis() {
            std::thread::sleep(STEP);
            for victim in &mut victims {
                victim.step();
                what_happens(&rig, victim, &mut random, &mut done);
            }
        }
        victims.iter_mut().filter(|victim| victim.stopped_steps.is_some()).for_each(Victim::continue_process);
        drop(stop_at_the_end);
        senders.into_iter().map(|sender| sender.join().expect("every message has its end")).collect()
    });
    let status = rig.wait_whole();
    let mut taken = Taken::default();
    for (victim, sent) in victims.iter_mut().zip(&sent) {
        victim.lives.push(victim.actor.report());
        let of_one = compare(victim.app, sent, &victim.lives);
        taken = Taken { marked: taken.marked + of_one.marked, again: taken.again + of_one.again };
    }
    let messages: usize = sent.iter().map(|sent| sent.messages.len()).sum();
    eprintln!("{messages} messages, {done:?}, {taken:?}; {:#?}", status.escape);
    // The application that was killed while it was stopped held messages, and they were sent again.
    assert!(taken.marked > 0, "{messages} messages, {done:?}, {taken:?}");
    // A slab of escape memory that is posted to the SRQ leaves it only when it is used.
    let mut traffic = Traffic::new(&rig.addresses()[0], APPS[0], random.fork());
    until("escape memory to be in no use", || {
        traffic.round();
        (rig.wait_whole().escape.memory.used == 0).then_some(())
    });
}
