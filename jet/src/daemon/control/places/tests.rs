//! Tests of the places of control connections.

use super::*;
use std::os::unix::net::UnixStream as Client;

const SECOND: Duration = Duration::from_secs(1);
/// Time between two arrivals, so short that all have come by the time that a test goes on.
const STEP: Duration = Duration::from_nanos(1);

fn process(process: i32) -> Source {
    Source { process: Some(process), user: 0 }
}

/// Whether a connection was told that its place is another's.
fn is_sent_away(place: &mut Place) -> bool {
    place.asked_to_leave.try_recv().is_ok()
}

/// Notes that the place's connection has asked something that is being looked into.
fn look_into(place: &Place) {
    let _ = place.now_does(Doing::LookedInto);
}

/// A client's end, and a connection's.
fn pair() -> (Client, Stream) {
    let (near, far) = Client::pair().expect("a pair of sockets");
    (near, Arc::new(far))
}

/// A socket whose other end has sent nothing.
fn silent() -> Stream {
    Arc::new(std::os::unix::net::UnixDatagram::unbound().expect("a socket"))
}

/// Fills all places with connections of many processes, and returns them with the next moment.
fn full(places: &Places, begin: Instant) -> (Vec<Place>, Instant) {
    fill(places, begin, PLACES)
}

fn full_but_one(places: &Places, begin: Instant) -> (Vec<Place>, Instant) {
    fill(places, begin, PLACES - 1)
}

fn fill(places: &Places, begin: Instant, count: usize) -> (Vec<Place>, Instant) {
    let mut now = begin;
    let all = (1..=i32::try_from(count).unwrap())
        .map(|number| {
            now += STEP;
            let (place, gone) = places.enter(silent(), process(number), now).expect("a place");
            assert!(gone.is_none() && !place.is_reserved());
            place
        })
        .collect();
    (all, now + STEP)
}

#[test]
fn who_has_been_idle_longest_makes_room_and_who_is_answered_or_worked_for_does_not() {
    let (places, begin) = (Places::new(), Instant::now());
    let (mut all, now) = full(&places, begin);
    look_into(&all[0]);
    all[1].answer_begins();
    let (_new, gone) = places.enter(silent(), process(1000), now).expect("somebody is idle");
    assert!(is_sent_away(&mut all[2]) && gone.unwrap().source == process(3));
    assert!([0, 1, 3].iter().all(|&at| !is_sent_away(&mut all[at])));
    // An answer makes the connection the one that was idle last, whenever it came.
    all[3].answer_begins();
    assert!(all[3].answered());
    let (_another, _) = places.enter(silent(), process(1001), now).expect("somebody is idle");
    assert!(is_sent_away(&mut all[4]) && !is_sent_away(&mut all[3]));
    // A place that is given back is taken before anybody goes.
    drop(all.pop());
    let (_third, gone) = places.enter(silent(), process(1002), now).expect("a free place");
    assert!(gone.is_none());
}

#[test]
fn whose_question_waits_unread_is_about_to_be_answered() {
    let (places, begin) = (Places::new(), Instant::now());
    let (far, near) = pair();
    let (mut asking, _) = places.enter(near, process(5000), begin).expect("a place");
    let (mut all, now) = full_but_one(&places, begin);
    rustix::io::write(&far, b"?").expect("room");
    let (_new, gone) = places.enter(silent(), process(1000), now).expect("somebody is idle");
    assert!(gone.unwrap().source == process(1) && is_sent_away(&mut all[0]));
    assert!(!is_sent_away(&mut asking));
    let (_later, gone) = places.enter(silent(), process(1001), now + ANSWER_TAKEN_WITHIN).unwrap();
    assert!(gone.unwrap().source == process(2), "it counts from its question");
}

#[test]
fn a_process_that_has_its_share_makes_room_for_itself() {
    let (places, now) = (Places::new(), Instant::now());
    let enter = |number, later| places.enter(silent(), process(number), now + SECOND * later);
    let (_oldest, _) = enter(1, 0).expect("a place");
    let mut crowd: Vec<_> =
        (1..=u32::try_from(PLACES / 2).unwrap()).map(|at| enter(2, at).expect("a place").0).collect();
    let (one_more, gone) = enter(2, 1000).expect("its own place");
    assert!(gone.unwrap().source == process(2) && is_sent_away(&mut crowd[0]));
    // Places are left, so another process takes nobody's.
    assert!(enter(3, 1001).expect("a place").1.is_none());
    // Where all of its own are being answered, it gets reserved places up to its share of these, and then
    // none.
    crowd.iter().chain([&one_more]).for_each(look_into);
    let reserved: Vec<_> = (0..RESERVED / 2).map(|_| enter(2, 0).expect("reserved").0).collect();
    assert!(reserved.iter().all(Place::is_reserved));
    reserved.iter().for_each(look_into);
    assert!(enter(2, 0).is_none());
    assert!(!enter(3, 0).expect("a place").0.is_reserved());
}

#[test]
fn reserved_places_are_for_when_nobody_can_go() {
    let (places, begin) = (Places::new(), Instant::now());
    let (all, _) = full(&places, begin);
    all.iter().for_each(Place::answer_begins);
    let now = Instant::now();
    let (mut first, gone) = places.enter(silent(), process(1000), now).expect("reserved");
    assert!(first.is_reserved() && gone.is_none());
    let others: Vec<_> = (1..i32::try_from(RESERVED).unwrap())
        .map(|at| places.enter(silent(), process(1000 + at), now).unwrap().0)
        .collect();
    let (newest, gone) = places.enter(silent(), process(2000), now).expect("the place of the first");
    assert!(newest.is_reserved() && gone.unwrap().source == process(1000) && is_sent_away(&mut first));
    others.iter().chain([&newest]).for_each(Place::answer_begins);
    assert!(places.enter(silent(), process(3000), Instant::now()).is_none());
    // Answers that nobody takes keep no place.
    let later = Instant::now() + ANSWER_TAKEN_WITHIN;
    let (late, gone) = places.enter(silent(), process(3000), later).expect("an ordinary place");
    assert!(!late.is_reserved() && gone.unwrap().source == process(1));
    // The same holds for the want of a descriptor.
    let Some(Room::MadeBy(gone)) = places.make_room(later) else { panic!("nobody goes") };
    assert!(gone.source == process(2));
    all.iter().skip(2).chain(&others).chain([&late, &newest]).for_each(look_into);
    assert!(places.make_room(later + SECOND).is_none());
}

#[test]
fn who_has_hung_up_makes_room_before_anybody_goes_or_is_refused() {
    let (places, begin) = (Places::new(), Instant::now());
    let (mut all, now) = fill(&places, begin, PLACES - 5);
    let mut clients: Vec<_> = (0..5)
        .map(|at| {
            let (near, far) = pair();
            (near, places.enter(far, process(-1 - at), now).expect("a place").0)
        })
        .collect();
    let enter = |number| places.enter(silent(), process(number), now + SECOND);
    // It says nothing; it is looked into; it is answered; it registers; it has asked and was not read.
    look_into(&clients[1].1);
    clients[2].1.answer_begins();
    clients[3].1.now_does(Doing::Heard);
    rustix::io::write(&clients[4].0, b"?").expect("room");
    let mut kept: Vec<_> = clients.drain(..).map(|(_near, place)| place).collect();
    let news: Vec<_> =
        (1000..1003).map(|number| enter(number).expect("a place of one that hung up")).collect();
    assert!(news.iter().all(|(place, gone)| gone.is_none() && !place.is_reserved()));
    assert!(kept[..3].iter_mut().all(is_sent_away), "their tasks end");
    assert!(!kept[3..].iter_mut().chain(&mut all).any(is_sent_away));
    let (_next, gone) = enter(1003).expect("somebody is idle");
    assert!(gone.is_some() && is_sent_away(&mut all[0]));
    // For the want of a descriptor as well.
    let (near, far) = pair();
    drop(all.pop());
    let (mut last, _) = places.enter(far, process(-6), now).expect("a free place");
    drop(near);
    assert!(matches!(places.make_room(now), Some(Room::HungUp)) && is_sent_away(&mut last));
    assert!(!kept[3..].iter_mut().any(is_sent_away));
}

/// Has all of these answered, and drops and returns those whose places are others' already.
fn answer(crowd: &mut Vec<Place>) -> Vec<u64> {
    let mut gone = Vec::new();
    crowd.retain(|place| {
        let stays = place.answered();
        if stays {
            look_into(place);
        } else {
            gone.push(place.number);
        }
        stays
    });
    gone
}

#[test]
fn where_nobody_is_idle_who_has_most_gives_until_all_have_as_many() {
    let (places, now) = (Places::new(), Instant::now());
    let enter = |number| {
        let (place, gone) = places.enter(silent(), process(number), now).expect("a place");
        look_into(&place);
        (place, gone)
    };
    let mut crowd: Vec<_> = (0..PLACES).map(|at| enter([1, 2][at % 2]).0).collect();
    let mut registering: Vec<_> = crowd.drain(..4).collect();
    registering.iter().for_each(|place| assert!(place.now_does(Doing::Heard)));
    let mut thirds = Vec::new();
    for at in 0..LEAVING {
        let (place, gone) = enter(3);
        assert!(!place.is_reserved(), "{at}");
        assert!(matches!(gone, Some(Gone { why: Why::HasMost, .. })), "{at}: {gone:?}");
        thirds.push(place);
    }
    // Only so many may be on their way out. None of them is cut.
    let (reserved, gone) = enter(3);
    assert!(reserved.is_reserved() && gone.is_none() && !crowd.iter_mut().any(is_sent_away));
    drop(reserved);
    assert_eq!(answer(&mut crowd), Vec::from_iter(4..4 + LEAVING as u64), "who came first goes first");
    let refused = loop {
        let (place, gone) = enter(3);
        if place.is_reserved() {
            break gone;
        }
        thirds.push(place);
        assert_eq!(answer(&mut crowd).len(), 1);
    };
    assert!(refused.is_none());
    assert_eq!((thirds.len(), crowd.len() + registering.len()), (85, 171));
    // Two that have as many take nothing from each other.
    assert!(enter(1).0.is_reserved() && enter(2).0.is_reserved());
    assert!(!registering.iter_mut().chain(&mut crowd).chain(&mut thirds).any(is_sent_away));
}

#[test]
fn whose_place_is_anothers_and_takes_no_answer_is_closed_for_the_next() {
    let (places, begin) = (Places::new(), Instant::now());
    let mut crowd: Vec<_> = (0..PLACES)
        .map(|at| places.enter(silent(), process([1, 2][at % 2]), begin).expect("a place").0)
        .collect();
    crowd.iter().for_each(look_into);
    let enter = |now| {
        let place = places.enter(silent(), process(3), now).expect("a place").0;
        look_into(&place);
        place
    };
    let _thirds: Vec<_> = (0..LEAVING).map(|_| enter(begin)).collect();
    crowd[0].answer_begins();
    let early = enter(Instant::now());
    assert!(early.is_reserved() && !is_sent_away(&mut crowd[0]), "its answer is under way");
    let late = enter(Instant::now() + ANSWER_TAKEN_WITHIN);
    assert!(!late.is_reserved() && is_sent_away(&mut crowd[0]));
}

#[test]
fn a_question_that_was_read_when_its_place_was_taken_is_not_heard() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (places, now) = (Places::new(), Instant::now());
    let (mut place, _) = places.enter(silent(), process(1), now).expect("a place");
    assert_eq!(runtime.block_on(place.hear(async { Ok::<_, ()>("?") })), Some(Ok("?")));
    assert!(place.answered());
    let heard = runtime.block_on(place.hear(async {
        assert!(matches!(places.make_room(Instant::now()), Some(Room::MadeBy(_))));
        Ok::<_, ()>("?")
    }));
    assert_eq!(heard, None);
}
