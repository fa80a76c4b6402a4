//! Surveys of the NIC's port: readings of its state and addresses, made when the device reports a change.
//! [`super::PortWatch`] makes the result readable.

use super::VerbsNic;
use super::device_events::PortEvent;
use super::listening::Listening;
use super::port::{PortState, Standing};
use super::set_up::{Order, Survey};
use std::io;
use std::time::{Duration, Instant};

/// Time between two attempts to listen at an address that is present and at which listening failed.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Time from the first report that an interface moved to the survey of the port. Each identifier that is
/// bound to the interface reports it.
const SETTLE: Duration = Duration::from_millis(100);

/// Phase of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No survey is under way.
    Over,
    /// The survey reads the port. With `all` the NIC then listens anew at each present address.
    Looking { all: bool },
    /// The NIC's listeners are with the survey, which makes them listen anew. With `stops` they must end
    /// afterwards.
    Renewing { stops: bool },
}

/// Extent to which a NIC listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listens {
    /// The NIC was not asked to listen.
    Nowhere,
    /// The NIC listens at all its addresses that are present.
    Everywhere,
    /// The NIC does not listen at some address that is present.
    Lacking,
}

/// Schedule of the surveys.
#[derive(Debug)]
pub(super) struct Surveying {
    /// Time between two surveys without an event of the device. Devices do not report some changes, such as a
    /// new MTU of the interface.
    survey_every: Duration,
    phase: Phase,
    /// Request for one more survey, made while one was under way. The value says whether that one listens
    /// anew everywhere.
    again: Option<bool>,
    /// Time of the next survey, even without an event of the device.
    next: Option<Instant>,
    /// Whether the next survey makes the NIC listen anew everywhere.
    all: bool,
    /// State of the port that the last survey found.
    known: Option<Standing>,
}

impl Surveying {
    /// Makes a schedule that follows this survey.
    pub fn after(survey: &Survey, survey_every: Duration) -> Self {
        let known = survey.standing.as_ref().ok().copied();
        Self { survey_every, phase: Phase::Over, again: None, next: None, all: false, known }
    }

    /// Returns the time of the next survey, even without an event of the device.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether this state of the port differs from the one that the last survey found.
    pub fn is_news(&self, standing: Option<Standing>) -> bool {
        standing.is_some() && standing != self.known
    }

    /// Notes that the NIC listens. From now on surveys regularly check whether it listens everywhere.
    pub fn note_listening(&mut self, now: Instant) {
        self.next.get_or_insert(now + self.survey_every);
    }

    /// Notes that the NIC stops listening. Listeners that are with a survey must end, too.
    pub fn stop_listening(&mut self) {
        if let Phase::Renewing { stops } = &mut self.phase {
            *stops = true;
        }
    }

    /// Notes that an interface moved. The next survey makes the NIC listen anew, once all identifiers of the
    /// interface have reported it.
    fn interface_moved(&mut self, now: Instant) {
        let at = now + SETTLE;
        self.all = true;
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Stops scheduling surveys, since nobody uses their results.
    fn stop_scheduling(&mut self) {
        self.next = None;
    }

    /// Asks for a survey. `true` where it begins now; otherwise it follows the one under way.
    ///
    /// With `all` the survey makes the NIC listen anew everywhere.
    fn request(&mut self, all: bool) -> bool {
        self.next = None;
        let all = std::mem::take(&mut self.all) || all;
        if self.phase != Phase::Over {
            self.again = Some(all || self.again == Some(true));
            return false;
        }
        self.phase = Phase::Looking { all };
        true
    }

    /// Notes the state that the survey found. Returns whether the NIC is to listen anew everywhere.
    fn found(&mut self, standing: &io::Result<Standing>) -> bool {
        self.known = standing.as_ref().ok().copied();
        self.phase == Phase::Looking { all: true }
    }

    /// Notes that the listeners go with the survey, to listen anew.
    fn begin_renewal(&mut self) {
        self.phase = Phase::Renewing { stops: false };
    }

    /// Whether the listeners, which are back from the survey, must end.
    fn must_stop_listening(&self) -> bool {
        self.phase == Phase::Renewing { stops: true }
    }

    /// Notes that the survey is over.
    ///
    /// Where another survey follows at once, the result says whether that listens anew everywhere.
    fn ended(&mut self, now: Instant, listens: Listens) -> Option<bool> {
        self.phase = Phase::Over;
        let span = match listens {
            Listens::Nowhere => None,
            _ if self.all => Some(SETTLE),
            Listens::Lacking => Some(RENEW_EVERY),
            Listens::Everywhere => Some(self.survey_every),
        };
        self.next = span.map(|span| now + span);
        self.again.take()
    }
}

impl VerbsNic {
    /// Acts on a device's event about a port.
    pub(super) fn handle_port_event(&mut self, number: u8, event: PortEvent) {
        if event == PortEvent::Down && number == self.device.port().number {
            self.watch.update(|status| {
                status.downs += 1;
                status.state = PortState::Down;
            });
        }
        self.begin_survey(false);
    }

    /// Schedules a survey after an identifier reported that its interface moved.
    pub(super) fn survey_soon(&mut self) {
        self.surveying.interface_moved(Instant::now());
    }

    /// Begins a survey after a change at the port. With `all` it makes the NIC listen anew everywhere.
    pub(super) fn begin_survey(&mut self, all: bool) {
        if self.device.is_gone() || (self.listening.is_empty() && !self.watch.is_watched()) {
            return self.surveying.stop_scheduling();
        }
        if self.surveying.request(all) {
            self.order(Order::Survey { port: self.device.port().clone() });
        }
    }

    /// Continues after the survey has read the port's state.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        let all = self.surveying.found(&survey.standing);
        let before = self.watch.status().addresses;
        self.watch.update(|status| {
            status.take_survey(&survey);
            status.address_changes += u64::from(status.addresses != before);
        });
        let present = survey.addresses;
        if self.listening.iter().any(|listening| listening.is_stale(&present, all)) {
            self.surveying.begin_renewal();
            let listening = std::mem::take(&mut self.listening);
            return self.order(Order::Renew { listening, present, all });
        }
        self.survey_ended();
    }

    /// Takes the listeners back from the survey, and ends it.
    pub(super) fn renewed(&mut self, mut listening: Vec<Listening>) {
        if self.surveying.must_stop_listening() {
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
        self.update_listening();
        if let Some(all) = again {
            self.begin_survey(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SURVEY_EVERY: Duration = Duration::from_secs(7);
    const STANDING: Standing =
        Standing { state: PortState::Active, packet_bytes_max: 4096, is_infiniband: false };
    const LONGER: Standing = Standing { packet_bytes_max: 1024, ..STANDING };

    fn surveying() -> Surveying {
        Surveying::after(&Survey { standing: Ok(STANDING), addresses: Vec::new() }, SURVEY_EVERY)
    }

    #[test]
    fn what_changes_while_the_port_is_looked_at_is_looked_at_after_that_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        assert!(surveying.request(false), "none is under way");
        assert!(!surveying.found(&Ok(STANDING)), "nothing begins anew");
        assert!(!surveying.request(false) && !surveying.request(true) && !surveying.request(false));
        assert_eq!(surveying.ended(now, Listens::Everywhere), Some(true), "one of the three wanted all");
        assert!(surveying.request(true), "the one that follows");
        assert!(surveying.found(&Ok(STANDING)), "all begin anew");
        assert_eq!(surveying.ended(now, Listens::Everywhere), None, "and no other");
    }

    #[test]
    fn it_is_looked_again_after_a_while_where_anything_listens() {
        let (mut surveying, now) = (surveying(), Instant::now());
        let mut next = |listens| {
            assert!(surveying.request(false));
            assert_eq!(surveying.next(), None, "one is under way");
            assert_eq!(surveying.ended(now, listens), None);
            surveying.next()
        };
        assert_eq!(next(Listens::Nowhere), None);
        assert_eq!(next(Listens::Everywhere), Some(now + SURVEY_EVERY));
        assert_eq!(next(Listens::Lacking), Some(now + RENEW_EVERY));
        surveying.stop_scheduling();
        assert_eq!(surveying.next(), None, "nobody wants to know");
        surveying.note_listening(now);
        surveying.note_listening(now + SETTLE);
        assert_eq!(surveying.next(), Some(now + SURVEY_EVERY), "at one address more");
    }

    #[test]
    fn an_interface_that_moved_has_all_that_listens_begin_anew_soon_and_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        surveying.note_listening(now);
        surveying.interface_moved(now);
        surveying.interface_moved(now + SETTLE / 2);
        assert_eq!(surveying.next(), Some(now + SETTLE), "the first word counts");
        assert!(surveying.request(false) && surveying.found(&Ok(STANDING)), "all begin anew");
        surveying.begin_renewal();
        // The interface moves again meanwhile.
        surveying.interface_moved(now);
        assert_eq!(surveying.ended(now, Listens::Everywhere), None);
        assert_eq!(surveying.next(), Some(now + SETTLE));
        assert!(surveying.request(false) && surveying.found(&Ok(STANDING)), "all begin anew once more");
        assert_eq!(surveying.ended(now, Listens::Everywhere), None);
        assert!(surveying.request(false) && !surveying.found(&Ok(STANDING)), "that was that");
    }

    #[test]
    fn what_is_with_a_survey_is_stopped_when_it_is_back_and_what_is_not_at_once() {
        let (mut surveying, now) = (surveying(), Instant::now());
        // While the survey looks at the port, the listeners are not with it, so stopping is complete at once.
        assert!(surveying.request(true));
        surveying.stop_listening();
        surveying.found(&Ok(STANDING));
        surveying.begin_renewal();
        assert!(!surveying.must_stop_listening(), "it began to listen after that");
        surveying.stop_listening();
        assert!(surveying.must_stop_listening());
        assert_eq!(surveying.ended(now, Listens::Nowhere), None);
        assert!(surveying.request(true));
        surveying.begin_renewal();
        assert!(!surveying.must_stop_listening(), "said of the one before");
    }

    #[test]
    fn a_port_that_stands_as_it_was_found_is_no_news() {
        let mut surveying = surveying();
        assert!(!surveying.is_news(Some(STANDING)) && !surveying.is_news(None));
        assert!(surveying.is_news(Some(LONGER)));
        assert!(surveying.request(false));
        surveying.found(&Ok(LONGER));
        assert!(!surveying.is_news(Some(LONGER)) && surveying.is_news(Some(STANDING)));
        surveying.found(&Err(io::ErrorKind::Other.into()));
        assert!(surveying.is_news(Some(LONGER)), "nothing is known");
    }
}
