//! How the NIC's port stands: looked at when the device says that something of it changed, and told by
//! [`super::PortWatch`].

use super::VerbsNic;
use super::device_events::PortEvent;
use super::listening::Listening;
use super::port::{PortState, Standing};
use super::set_up::{Order, Survey};
use std::io;
use std::time::{Duration, Instant};

/// Between two attempts to listen at an address that is there and cannot be listened at.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// From the first word that an interface moved to the look: each identifier that is bound to it gets one.
const SETTLE: Duration = Duration::from_millis(100);

/// What a survey is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Over,
    /// It looks at the port; `all`: what listens is to begin anew after that, wherever it does.
    Looking { all: bool },
    /// What listens is with it, and begins anew; `stops`: it is to listen no more.
    Renewing { stops: bool },
}

/// Whether a NIC listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listens {
    /// Nobody asked it to.
    Nowhere,
    /// Wherever it can.
    Everywhere,
    /// Not at some address that is there.
    Lacking,
}

/// When the port is looked at.
#[derive(Debug)]
pub(super) struct Surveying {
    /// Between two looks that nothing asked for: of some changes a device says nothing, as of its interface's
    /// MTU.
    look_every: Duration,
    phase: Phase,
    /// Something changed since the one under way began; whether all are to be listened at anew.
    again: Option<bool>,
    /// When the next is due, whatever the device says.
    next: Option<Instant>,
    /// All are to be listened at anew with the next.
    all: bool,
    /// How the last one found the port.
    known: Option<Standing>,
}

impl Surveying {
    /// After one that found this.
    pub fn after(survey: &Survey, look_every: Duration) -> Self {
        let known = survey.standing.as_ref().ok().copied();
        Self { look_every, phase: Phase::Over, again: None, next: None, all: false, known }
    }

    /// When one is due, whatever the device says.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether this is not how the last one found the port.
    pub fn is_news(&self, standing: Option<Standing>) -> bool {
        standing.is_some() && standing != self.known
    }

    /// The NIC listens: it is looked now and then whether it can.
    pub fn listens(&mut self, now: Instant) {
        self.next.get_or_insert(now + self.look_every);
    }

    /// The NIC is to listen no more: neither is what is with a survey.
    pub fn stop_listening(&mut self) {
        if let Phase::Renewing { stops } = &mut self.phase {
            *stops = true;
        }
    }

    /// An interface moved: what listens is to begin anew, when that has been said of all that is bound to it.
    fn interface_moved(&mut self, now: Instant) {
        let at = now + SETTLE;
        self.all = true;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Nobody wants to know.
    fn rest(&mut self) {
        self.next = None;
    }

    /// One is wished for; `all`: what listens is to begin anew. `true`: it begins now; else it follows the
    /// one that is under way.
    fn wish(&mut self, all: bool) -> bool {
        self.next = None;
        let all = std::mem::take(&mut self.all) || all;
        if self.phase != Phase::Over {
            self.again = Some(all || self.again == Some(true));
            return false;
        }
        self.phase = Phase::Looking { all };
        true
    }

    /// It found this: whether what listens is to begin anew, wherever it does.
    fn found(&mut self, standing: &io::Result<Standing>) -> bool {
        self.known = standing.as_ref().ok().copied();
        self.phase == Phase::Looking { all: true }
    }

    /// What listens goes with it, to begin anew.
    fn renews(&mut self) {
        self.phase = Phase::Renewing { stops: false };
    }

    /// What listens is back: whether it is to listen no more.
    fn renewed(&self) -> bool {
        self.phase == Phase::Renewing { stops: true }
    }

    /// It is over; what the one is to be, if one follows at once.
    fn ended(&mut self, now: Instant, listens: Listens) -> Option<bool> {
        self.phase = Phase::Over;
        let span = match listens {
            Listens::Nowhere => None,
            _ if self.all => Some(SETTLE),
            Listens::Lacking => Some(RENEW_EVERY),
            Listens::Everywhere => Some(self.look_every),
        };
        self.next = span.map(|span| now + span);
        self.again.take()
    }
}

impl VerbsNic {
    /// The device said something of a port.
    pub(super) fn port_said(&mut self, number: u8, said: PortEvent) {
        if said == PortEvent::Down && number == self.device.port().number {
            self.watch.update(|status| {
                status.downs += 1;
                status.state = PortState::Down;
            });
        }
        self.begin_survey(false);
    }

    /// An interface moved, as one of the identifiers that are bound to it says.
    pub(super) fn survey_soon(&mut self) {
        self.surveying.interface_moved(Instant::now());
    }

    /// Something changed at the port; `all`: what listens is to begin anew.
    pub(super) fn begin_survey(&mut self, all: bool) {
        if self.device.is_gone() || (self.listening.is_empty() && !self.watch.is_watched()) {
            return self.surveying.rest();
        }
        if self.surveying.wish(all) {
            self.order(Order::Survey { port: self.device.port().clone() });
        }
    }

    /// It was looked at.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        let all = self.surveying.found(&survey.standing);
        let before = self.watch.status().addresses;
        self.watch.update(|status| {
            status.take_survey(&survey);
            status.address_changes += u64::from(status.addresses != before);
        });
        let present = survey.addresses;
        if self.listening.iter().any(|listening| listening.is_stale(&present, all)) {
            self.surveying.renews();
            let listening = std::mem::take(&mut self.listening);
            return self.order(Order::Renew { listening, present, all });
        }
        self.survey_ended();
    }

    /// What listens is as the survey wants it.
    pub(super) fn renewed(&mut self, mut listening: Vec<Listening>) {
        if self.surveying.renewed() {
            listening.clear();
        }
        listening.append(&mut self.listening);
        self.listening = listening;
        self.survey_ended();
    }

    fn survey_ended(&mut self) {
        let listens = match self.listening.as_slice() {
            [] => Listens::Nowhere,
            all if all.iter().any(Listening::is_lacking) => Listens::Lacking,
            _ => Listens::Everywhere,
        };
        let again = self.surveying.ended(Instant::now(), listens);
        self.tell_listening();
        if let Some(all) = again {
            self.begin_survey(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_EVERY: Duration = Duration::from_secs(7);
    const STANDING: Standing =
        Standing { state: PortState::Active, packet_bytes_max: 4096, is_infiniband: false };
    const LONGER: Standing = Standing { packet_bytes_max: 1024, ..STANDING };

    fn surveying() -> Surveying {
        Surveying::after(&Survey { standing: Ok(STANDING), addresses: Vec::new() }, LOOK_EVERY)
    }

    #[test]
    fn what_changes_while_the_port_is_looked_at_is_looked_at_after_that_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        assert!(surveying.wish(false), "none is under way");
        assert!(!surveying.found(&Ok(STANDING)), "nothing begins anew");
        assert!(!surveying.wish(false) && !surveying.wish(true) && !surveying.wish(false));
        assert_eq!(surveying.ended(now, Listens::Everywhere), Some(true), "one of the three wanted all");
        assert!(surveying.wish(true), "the one that follows");
        assert!(surveying.found(&Ok(STANDING)), "all begin anew");
        assert_eq!(surveying.ended(now, Listens::Everywhere), None, "and no other");
    }

    #[test]
    fn it_is_looked_again_after_a_while_where_anything_listens() {
        let (mut surveying, now) = (surveying(), Instant::now());
        let mut next = |listens| {
            assert!(surveying.wish(false));
            assert_eq!(surveying.next(), None, "one is under way");
            assert_eq!(surveying.ended(now, listens), None);
            surveying.next()
        };
        assert_eq!(next(Listens::Nowhere), None);
        assert_eq!(next(Listens::Everywhere), Some(now + LOOK_EVERY));
        assert_eq!(next(Listens::Lacking), Some(now + RENEW_EVERY));
        surveying.rest();
        assert_eq!(surveying.next(), None, "nobody wants to know");
        surveying.listens(now);
        surveying.listens(now + SETTLE);
        assert_eq!(surveying.next(), Some(now + LOOK_EVERY), "at one address more");
    }

    #[test]
    fn an_interface_that_moved_has_all_that_listens_begin_anew_soon_and_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        surveying.listens(now);
        surveying.interface_moved(now);
        surveying.interface_moved(now + SETTLE / 2);
        assert_eq!(surveying.next(), Some(now + SETTLE), "the first word counts");
        assert!(surveying.wish(false) && surveying.found(&Ok(STANDING)), "all begin anew");
        surveying.renews();
        // It moves again meanwhile.
        surveying.interface_moved(now);
        assert_eq!(surveying.ended(now, Listens::Everywhere), None);
        assert_eq!(surveying.next(), Some(now + SETTLE));
        assert!(surveying.wish(false) && surveying.found(&Ok(STANDING)), "all begin anew once more");
        assert_eq!(surveying.ended(now, Listens::Everywhere), None);
        assert!(surveying.wish(false) && !surveying.found(&Ok(STANDING)), "that was that");
    }

    #[test]
    fn what_is_with_a_survey_is_stopped_when_it_is_back_and_what_is_not_at_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        // Nothing is away while the port is looked at: who stops then has done so.
        assert!(surveying.wish(true));
        surveying.stop_listening();
        surveying.found(&Ok(STANDING));
        surveying.renews();
        assert!(!surveying.renewed(), "it began to listen after that");
        surveying.stop_listening();
        assert!(surveying.renewed());
        assert_eq!(surveying.ended(now, Listens::Nowhere), None);
        assert!(surveying.wish(true));
        surveying.renews();
        assert!(!surveying.renewed(), "said of the one before");
    }

    #[test]
    fn a_port_that_stands_as_it_was_found_is_no_news() {
        let mut surveying = surveying();
        assert!(!surveying.is_news(Some(STANDING)) && !surveying.is_news(None));
        assert!(surveying.is_news(Some(LONGER)));
        assert!(surveying.wish(false));
        surveying.found(&Ok(LONGER));
        assert!(!surveying.is_news(Some(LONGER)) && surveying.is_news(Some(STANDING)));
        surveying.found(&Err(io::ErrorKind::Other.into()));
        assert!(surveying.is_news(Some(LONGER)), "nothing is known");
    }
}
