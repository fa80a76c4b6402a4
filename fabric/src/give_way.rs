//! When a polling thread gives its core to others.
//!
//! What a thread waits for may be the work of another one that has only the same core. Then each poll in
//! vain delays it. Where each has a core of its own, each call of `sched_yield` in vain costs as much as two
//! or three polls. Which of the two it is, the calls themselves tell: one that comes back at once ran
//! nobody.
//!
//! A thread that always finds something gives its core away, too, each time that it has handed on as much as
//! the core's own cache (L2) holds beside the rest. Whoever shares the core then reads these bytes from the
//! cache. It would read them from further away after more of them came. Where somebody keeps the core for
//! long, which reading these bytes does not take, the thread gives it away less and less often.

/// Fewest polls in vain before the core is given to others. A single one would give it away between two
/// messages of a burst.
const POLLS_MIN: u32 = 2;
/// Most polls in vain before the core is given to others.
const POLLS_MAX: u32 = 32;
/// Time after which a call of `sched_yield` has run somebody else: a call that has not takes a quarter of it.
const OTHERS_RAN_NS: u64 = 1_000;
/// Time of polls in vain, one after another, after which there are too many of them. Polls that make system
/// calls take as long as a hundred others.
const BATCH_NS_MAX: u64 = 4_000;
/// Fewest bytes handed on after which the core is given to others: a quarter of an L2 cache of 2 MiB. Where
/// nobody else runs on the core, the call costs a two-hundredth of what handing on so many bytes takes.
const BYTES_MIN: u64 = 512 << 10;
/// Most bytes handed on after which the core is given to others.
const BYTES_MAX: u64 = 32 << 20;
/// Time after which others have kept the core for too long: reading what was handed on takes a fifth of it.
const OTHERS_STAYED_NS: u64 = 500_000;

/// Gives a polling thread's core to others, after as many polls in vain, or bytes handed on, as it decides.
#[derive(Clone, Copy, Debug)]
pub struct GiveWay {
    /// Polls in vain before the core is given to others.
    interval: u32,
    polls: u32,
    /// Bytes handed on before the core is given to others although there is more to do.
    bytes_interval: u64,
    /// Time in nanoseconds since which polls were in vain and the core was kept. `None`: not known.
    since_ns: Option<u64>,
    /// Bytes that the thread handed on since it began: all, and those before the core was last given to
    /// others.
    bytes: u64,
    given_at_bytes: u64,
}

impl Default for GiveWay {
    fn default() -> Self {
        Self {
            interval: POLLS_MAX / 4,
            polls: 0,
            bytes_interval: BYTES_MIN,
            since_ns: None,
            bytes: 0,
            given_at_bytes: 0,
        }
    }
}

impl GiveWay {
    /// Notes that a wait begins. Without this call the time of its first polls in vain does not count.
    #[inline]
    pub fn begin(&mut self, now_ns: u64) {
        (self.polls, self.since_ns) = (0, Some(now_ns));
    }

    /// Notes that a poll found something.
    #[inline]
    pub fn found_something(&mut self) {
        (self.polls, self.since_ns) = (0, None);
    }

    /// Notes that a poll found nothing. `true`: it is time to [`give`](Self::give) the core to others.
    #[inline]
    pub fn found_nothing(&mut self) -> bool {
        self.polls += 1;
        if self.polls < self.interval {
            std::hint::spin_loop();
            return false;
        }
        true
    }

    /// Notes how many bytes the thread has handed on to other threads since it began. `true`: it is time to
    /// [`give`](Self::give) the core to others, although there is more to do.
    #[inline]
    pub fn handed_on(&mut self, bytes: u64) -> bool {
        self.bytes = bytes;
        bytes.wrapping_sub(self.given_at_bytes) >= self.bytes_interval
    }

    /// Gives the core to others. `polled_ns`: the time now. Returns the time afterwards, by the same clock
    /// `now_ns`.
    #[inline]
    pub fn give(&mut self, polled_ns: u64, now_ns: impl FnOnce() -> u64) -> u64 {
        rustix::thread::sched_yield();
        let back_ns = now_ns();
        let batch_ns = polled_ns.saturating_sub(self.since_ns.unwrap_or(polled_ns));
        self.gave_way(batch_ns, back_ns.saturating_sub(polled_ns));
        self.since_ns = Some(back_ns);
        back_ns
    }

    /// Notes that the core was given to others. `batch_ns`: what the polls in vain before it took. `took_ns`:
    /// how long the thread was without the core. Both are in nanoseconds.
    fn gave_way(&mut self, batch_ns: u64, took_ns: u64) {
        if self.handed_on(self.bytes) {
            // Who stays for long works at something else, and would get most of the core.
            self.bytes_interval = if took_ns >= OTHERS_STAYED_NS {
                (self.bytes_interval * 2).min(BYTES_MAX)
            } else {
                (self.bytes_interval / 2).max(BYTES_MIN)
            };
        }
        (self.polls, self.given_at_bytes) = (0, self.bytes);
        self.interval = if took_ns >= OTHERS_RAN_NS || batch_ns >= BATCH_NS_MAX {
            (self.interval / 2).max(POLLS_MIN)
        } else {
            (self.interval * 2).min(POLLS_MAX)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls in vain until the core is given to others. Returns how many polls that were.
    fn polls(give_way: &mut GiveWay) -> u32 {
        (1..).find(|_| give_way.found_nothing()).unwrap()
    }

    #[test]
    fn who_shares_a_core_gives_way_at_once_and_who_has_one_polls_on() {
        let mut give_way = GiveWay::default();
        for _ in 0..8 {
            give_way.gave_way(100, 5 * OTHERS_RAN_NS);
        }
        assert_eq!(polls(&mut give_way), POLLS_MIN);
        for _ in 0..8 {
            give_way.gave_way(100, OTHERS_RAN_NS / 4);
        }
        assert_eq!(polls(&mut give_way), POLLS_MAX);
    }

    #[test]
    fn long_polls_are_few() {
        let mut give_way = GiveWay::default();
        // Polls of 1 us each.
        for _ in 0..20 {
            let batch_ns = 1000 * u64::from(polls(&mut give_way));
            give_way.gave_way(batch_ns, 0);
        }
        assert!((2..=4).contains(&polls(&mut give_way)));
    }

    #[test]
    fn who_always_finds_something_gives_way_after_as_much_as_the_core_s_cache_holds() {
        let (mut give_way, mut bytes) = (GiveWay::default(), 0);
        for _ in 0..3 {
            assert!(!give_way.handed_on(bytes + BYTES_MIN - 1));
            bytes += BYTES_MIN;
            assert!(give_way.handed_on(bytes) && give_way.handed_on(bytes), "until it is done");
            give_way.gave_way(0, 0);
        }
        // What was handed on before the core was given away for another reason does not count.
        assert!(!give_way.handed_on(bytes + BYTES_MIN - 1));
        polls(&mut give_way);
        give_way.gave_way(0, OTHERS_STAYED_NS);
        assert!(!give_way.handed_on(bytes + 2 * BYTES_MIN - 2));
        assert!(give_way.handed_on(bytes + 2 * BYTES_MIN - 1));
    }

    #[test]
    fn whoever_keeps_the_core_for_long_gets_it_seldom() {
        let (mut give_way, mut bytes) = (GiveWay::default(), 0);
        let mut hand_on = |took_ns| {
            let before = bytes;
            while !give_way.handed_on(bytes) {
                bytes += BYTES_MIN;
            }
            give_way.gave_way(0, took_ns);
            bytes - before
        };
        let long: Vec<u64> = (0..8).map(|_| hand_on(OTHERS_STAYED_NS) / BYTES_MIN).collect();
        assert_eq!(long, [1, 2, 4, 8, 16, 32, 64, 64]);
        let short: Vec<u64> = (0..8).map(|_| hand_on(OTHERS_STAYED_NS - 1) / BYTES_MIN).collect();
        assert_eq!(short, [64, 32, 16, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn only_polls_in_vain_one_after_another_count() {
        let mut give_way = GiveWay::default();
        let interval = polls(&mut give_way);
        give_way.found_something();
        for _ in 1..interval {
            assert!(!give_way.found_nothing());
        }
        give_way.found_something();
        assert_eq!(polls(&mut give_way), interval);
    }

    #[test]
    fn the_time_of_polls_in_vain_is_that_since_the_wait_began_or_the_core_came_back() {
        let mut give_way = GiveWay { interval: POLLS_MAX, ..GiveWay::default() };
        // Nobody ran, and the polls before it were few and slow.
        give_way.begin(0);
        assert_eq!(give_way.give(BATCH_NS_MAX, || BATCH_NS_MAX + 1), BATCH_NS_MAX + 1);
        assert_eq!(give_way.interval, POLLS_MAX / 2);
        // Since then they were fast.
        give_way.give(BATCH_NS_MAX + 2, || BATCH_NS_MAX + 3);
        assert_eq!(give_way.interval, POLLS_MAX);
        // When the polls began is not known.
        give_way.found_something();
        give_way.give(3 * BATCH_NS_MAX, || 3 * BATCH_NS_MAX);
        assert_eq!(give_way.interval, POLLS_MAX);
    }
}
