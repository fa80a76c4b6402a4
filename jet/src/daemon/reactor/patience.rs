//! How long the reactor waits for senders before it gives its core away, where others share the core.
//!
//! With few processors an application or a sender runs on the reactor's own. Where applications have
//! messages, whoever shares the core may have work to do for the reactor, and gets the core at once. Where
//! they have none, only a sender brings work. If it has another processor, a change to whoever shares the
//! core and back takes longer than the work takes to come. If it shares the core itself, each moment of
//! waiting delays it. Which of the two it is depends on where the scheduler put everybody. So the reactor
//! learns it: it waits on, and stops doing so for some time where that was in vain.

/// Time in nanoseconds without work for which the reactor waits on: about what a change to another thread and
/// back takes.
const WAIT_NS: u64 = 2_000;
/// Waits in vain, one after another, after which the reactor gives way at once for some time.
const IN_VAIN_MAX: u32 = 4;
/// Times that it gives way at once before it tries again.
const REST: u32 = 64;

/// Decides whether the reactor waits on, or gives its core away, when it is time to give way.
#[derive(Debug, Default)]
pub struct Patience {
    /// Waits in vain, one after another.
    in_vain: u32,
    /// How often the core is still given away at once.
    rest: u32,
    /// Whether the present wait goes on although it was time to give way.
    waits_on: bool,
}

impl Patience {
    /// Asks, when it is time to give way after `idle_ns` nanoseconds without work, whether to wait on.
    /// `has_messages`: whether there are messages that applications may work on.
    #[inline]
    pub fn waits_on(&mut self, idle_ns: u64, has_messages: bool) -> bool {
        let was_waiting = std::mem::take(&mut self.waits_on);
        if has_messages {
            return false;
        }
        if idle_ns >= WAIT_NS {
            if was_waiting {
                self.was_in_vain();
            }
        } else if self.rest > 0 {
            self.rest -= 1;
        } else {
            self.waits_on = true;
            std::hint::spin_loop();
        }
        self.waits_on
    }

    /// Notes that there is work.
    #[inline]
    pub fn found_work(&mut self) {
        if std::mem::take(&mut self.waits_on) {
            self.in_vain = 0;
        }
    }

    /// Notes that the wait ends in sleep.
    pub fn sleeps(&mut self) {
        if std::mem::take(&mut self.waits_on) {
            self.was_in_vain();
        }
    }

    fn was_in_vain(&mut self) {
        self.in_vain += 1;
        if self.in_vain >= IN_VAIN_MAX {
            (self.in_vain, self.rest) = (0, REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY_NS: u64 = WAIT_NS / 4;

    /// Waits for a sender that gets this core only where it is given away. Returns whether the reactor waited
    /// on.
    fn wait_for_one_of_this_core(patience: &mut Patience) -> bool {
        let waited = patience.waits_on(EARLY_NS, false);
        assert!(!patience.waits_on(WAIT_NS, false), "in vain");
        patience.found_work();
        waited
    }

    /// Waits for a sender on another processor. Returns whether the reactor waited on until then.
    fn wait_for_one_of_another(patience: &mut Patience) -> bool {
        let waited = patience.waits_on(EARLY_NS, false) && patience.waits_on(2 * EARLY_NS, false);
        patience.found_work();
        waited
    }

    #[test]
    fn a_sender_on_another_processor_is_waited_for() {
        let mut patience = Patience::default();
        assert!((0..1000).all(|_| wait_for_one_of_another(&mut patience)));
        // Now and then one is late.
        for _ in 0..100 {
            assert!((1..IN_VAIN_MAX).all(|_| wait_for_one_of_this_core(&mut patience)));
            assert!(wait_for_one_of_another(&mut patience));
        }
    }

    #[test]
    fn a_sender_of_this_core_gets_it_at_once_except_for_a_few_trials() {
        let mut patience = Patience::default();
        let waited = (0..IN_VAIN_MAX + REST).filter(|_| wait_for_one_of_this_core(&mut patience)).count();
        assert_eq!(waited, IN_VAIN_MAX as usize);
        // It has moved since: the next trial shows it.
        assert!((0..1000).all(|_| wait_for_one_of_another(&mut patience)));
    }

    #[test]
    fn whoever_has_messages_gets_the_core_at_once_and_that_teaches_nothing() {
        let mut patience = Patience::default();
        for _ in 0..2 * IN_VAIN_MAX {
            assert!(!patience.waits_on(EARLY_NS, true) && !patience.waits_on(WAIT_NS, true));
            patience.found_work();
            // They came while the reactor waited on.
            assert!(patience.waits_on(EARLY_NS, false) && !patience.waits_on(WAIT_NS, true));
            patience.found_work();
        }
        assert!(wait_for_one_of_another(&mut patience));
    }

    #[test]
    fn a_wait_that_ends_in_sleep_was_in_vain() {
        let mut patience = Patience::default();
        for _ in 0..IN_VAIN_MAX {
            assert!(patience.waits_on(EARLY_NS, false));
            patience.sleeps();
            patience.found_work();
        }
        assert!(!patience.waits_on(EARLY_NS, false));
        // Who did not wait on learned nothing.
        patience.sleeps();
        assert_eq!(patience.in_vain, 0);
    }

    #[test]
    fn work_that_was_there_before_it_was_time_to_give_way_teaches_nothing() {
        let mut patience = Patience::default();
        for _ in 1..IN_VAIN_MAX {
            wait_for_one_of_this_core(&mut patience);
            patience.found_work();
        }
        assert!(wait_for_one_of_this_core(&mut patience));
        assert!(!wait_for_one_of_this_core(&mut patience), "all of them were in vain");
    }
}
