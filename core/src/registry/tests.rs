use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use proptest::prelude::*;

const SENDERS: u32 = 12;
const SESSIONS: u32 = 5;
/// A tick of the model passes this time, or does not.
const NAME_KEPT_NS: u64 = 1_000_000_000;
const NAMES: [&str; 2] = ["a", "b"];

fn name(number: u8) -> AppName {
    AppName::new(NAMES[usize::from(number) % NAMES.len()]).unwrap()
}

fn shared(app: AppName, user: u32) -> Registration {
    Registration { user: Some(UserId(user)), shares_name: true, ..Registration::new(app) }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Join {
        app: u8,
        identity: u64,
    },
    Leave(usize),
    Open {
        app: u8,
        user: Option<u32>,
        shares: bool,
    },
    /// A session is over, and its name is kept or not.
    Close(usize, bool),
    /// The sender has messages without an end from now on, or none.
    Waits(usize, bool),
    /// Nanoseconds pass.
    Tick(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let which = || 0usize..16;
    prop_oneof![
        4 => (any::<u8>(), 0u64..6).prop_map(|(app, identity)| Op::Join { app, identity }),
        2 => which().prop_map(Op::Leave),
        4 => (
            any::<u8>(),
            prop_oneof![1 => Just(None), 1 => Just(Some(1)), 8 => Just(Some(0))],
            prop::bool::weighted(0.8),
        )
            .prop_map(|(app, user, shares)| Op::Open { app, user, shares: shares && user.is_some() }),
        2 => (which(), any::<bool>()).prop_map(|(which, keeps)| Op::Close(which, keeps)),
        4 => (which(), any::<bool>()).prop_map(|(which, waits)| Op::Waits(which, waits)),
        3 => prop_oneof![Just(10_000_000), Just(600_000_000), Just(20_000_000_000)].prop_map(Op::Tick),
    ]
}

/// What a registry is to know: the plain way.
#[derive(Debug, Default)]
struct Model {
    /// Name of each sender, and the session that it was in when it was looked at last.
    senders: BTreeMap<u32, (AppName, Option<u32>)>,
    /// Values of each open session.
    sessions: BTreeMap<u32, Registration>,
    waiting: BTreeSet<u32>,
    /// User of each name that was left, and the time until which it is kept.
    kept: BTreeMap<AppName, (UserId, u64)>,
}

impl Model {
    fn of_name(&self, name: AppName) -> impl Iterator<Item = u32> {
        self.sessions.iter().filter(move |(_, open)| open.name == name).map(|(session, _)| *session)
    }

    /// Compares what the registry says.
    fn check(&mut self, registry: &Registry) {
        let mut counted: BTreeMap<u32, u32> = BTreeMap::new();
        let Self { senders, sessions, waiting, .. } = self;
        for (&peer, (name, before)) in senders {
            let session = registry.session_of(peer);
            let known = sessions.iter().filter(|(_, open)| open.name == *name);
            assert_eq!(
                session.is_some(),
                known.clone().next().is_some(),
                "{peer} has a session if its name has"
            );
            if let Some(session) = session {
                assert_eq!(sessions[&session].name, *name, "{peer} is in a session of its name");
                let goes_to = registry.senders[peer as usize].goes_to();
                assert_eq!(sessions[&goes_to].name, *name, "{peer} goes to a session of its name");
                *counted.entry(goes_to).or_default() += 1;
            }
            if waiting.contains(&peer) && before.is_some_and(|before| sessions.contains_key(&before)) {
                assert_eq!(session, *before, "{peer} waits for ends of its session");
            }
            *before = session;
        }
        for &session in sessions.keys() {
            assert_eq!(registry.senders_of(session), counted.get(&session).copied().unwrap_or(0));
        }
    }
}

proptest! {
    #[test]
    fn each_sender_has_one_session_of_its_name_and_leaves_it_when_nothing_waits(
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut registry = Registry::new(SENDERS, SESSIONS, NAME_KEPT_NS);
        let mut model = Model::default();
        let mut now_ns = 0;
        for op in ops {
            match op {
                Op::Join { app, identity } => {
                    let full = model.senders.len() == SENDERS as usize;
                    let joined = registry.join(name(app), identity);
                    assert_eq!(joined.is_none(), full);
                    if let Some(peer) = joined {
                        assert_eq!(model.senders.insert(peer, (name(app), None)).map(|_| peer), None);
                    }
                }
                Op::Leave(which) => {
                    if let Some(&peer) = model.senders.keys().nth(which) {
                        registry.leave(peer);
                        model.senders.remove(&peer);
                        model.waiting.remove(&peer);
                    }
                }
                Op::Open { app, user, shares } => {
                    let user = user.map(UserId);
                    let registration =
                        Registration { user, shares_name: shares, ..Registration::new(name(app)) };
                    let first = model.of_name(name(app)).next();
                    let other = first.map(|other| model.sessions[&other]);
                    let kept = model.kept.get(&name(app)).filter(|(_, until_ns)| now_ns < *until_ns);
                    let full = model.sessions.len() == SESSIONS as usize;
                    let expected = match other {
                        _ if full => Some(OpenRefused::NumbersTaken),
                        None if kept.is_some_and(|(of, _)| Some(*of) != user) => Some(OpenRefused::NameKept),
                        None => None,
                        Some(other) if shares && other.shares_name => {
                            (other.user != user).then_some(OpenRefused::NameOfOtherUser)
                        }
                        Some(_) => Some(OpenRefused::NameTaken),
                    };
                    match registry.open(now_ns, registration) {
                        Ok(session) => {
                            assert_eq!(expected, None);
                            model.kept.remove(&name(app));
                            assert!(model.sessions.insert(session, registration).is_none());
                        }
                        Err(refused) => assert_eq!(Some(refused), expected),
                    }
                }
                Op::Close(which, keeps) => {
                    if let Some(&session) = model.sessions.keys().nth(which) {
                        let closed = model.sessions.remove(&session);
                        assert_eq!(registry.close(now_ns, session, keeps), closed);
                        registry.free(session);
                        let Registration { name, user, .. } = closed.expect("it was open");
                        if keeps
                            && let Some(user) = user
                            && model.of_name(name).next().is_none()
                        {
                            model.kept.insert(name, (user, now_ns + NAME_KEPT_NS));
                        }
                    }
                }
                Op::Waits(which, waits) => {
                    if let Some(&peer) = model.senders.keys().nth(which) {
                        if waits {
                            model.waiting.insert(peer);
                        } else if model.waiting.remove(&peer) && registry.is_moving(peer) {
                            registry.finish_move(peer);
                        }
                    }
                }
                Op::Tick(span_ns) => {
                    now_ns += span_ns;
                    registry.spread(now_ns, |peer| model.waiting.contains(&peer));
                    let chosen_ns = |peer: u32| registry.senders[peer as usize].chosen_ns;
                    let old = |&peer: &u32| now_ns - chosen_ns(peer) >= spread::MOVE_NS;
                    let late = model.senders.keys().find(|&peer| registry.is_moving(*peer) && old(peer));
                    assert_eq!(late, None, "moves that are not over in time are given up");
                    core::iter::from_fn(|| registry.next_that_may_have_credit()).for_each(drop);
                }
            }
            model.check(&registry);
        }
        // When nobody waits any more, all that is left moves.
        for peer in core::mem::take(&mut model.waiting) {
            if registry.is_moving(peer) {
                registry.finish_move(peer);
            }
        }
        registry.spread(now_ns + spread::SPREAD_NS, |_| false);
        assert!(!registry.is_spreading(), "nothing is left to do");
        model.check(&registry);
        for app in [name(0), name(1)] {
            let counts = || model.of_name(app).map(|session| registry.senders_of(session));
            let (most, least) = (counts().max().unwrap_or(0), counts().min().unwrap_or(0));
            prop_assert!(most < least + 2, "{most} and {least} senders");
        }
    }
}

#[test]
fn who_comes_back_finds_its_place_though_others_came_back_before() {
    let app = name(0);
    let mut registry = Registry::new(SENDERS, SESSIONS, NAME_KEPT_NS);
    let sessions = [registry.open(0, shared(app, 0)).unwrap(), registry.open(0, shared(app, 0)).unwrap()];
    let peers: Vec<u32> = (1..=6).map(|identity| registry.join(app, identity).unwrap()).collect();
    let places: Vec<_> = peers.iter().map(|&peer| registry.session_of(peer).unwrap()).collect();
    for session in sessions {
        assert_eq!(registry.senders_of(session), 3);
    }
    for &peer in &peers {
        registry.leave(peer);
    }
    // Newcomers take nobody's place, whomever they send to, as long as there is another.
    let newcomers = [registry.join(app, 77), registry.join(name(1), 78)];
    for peer in newcomers.into_iter().flatten() {
        registry.leave(peer);
    }
    // Of those that come back the first three are of one session.
    let mut order: Vec<usize> = (0..6).collect();
    order.sort_by_key(|&at| places[at]);
    for at in order {
        let peer = registry.join(app, at as u64 + 1).unwrap();
        assert_eq!(registry.session_of(peer), Some(places[at]));
    }
    // One whose earlier connection still counts goes to the same session, too.
    let again = registry.join(app, 1).unwrap();
    assert_eq!(registry.session_of(again), Some(places[0]));
    // A newcomer goes to the session that has fewer, and so does one more of an identity that has enough.
    let new = registry.join(app, 99).unwrap();
    assert_ne!(registry.session_of(new), Some(places[0]));
    for _ in 0..3 {
        registry.join(app, 1).unwrap();
    }
    let counts = sessions.map(|session| registry.senders_of(session));
    assert!(counts[0].abs_diff(counts[1]) <= 2, "{counts:?}");
}

#[test]
fn few_senders_move_at_a_tick_and_all_in_the_end() {
    let senders = 5 * spread::MOVES_MAX;
    let mut registry = Registry::new(senders, SESSIONS, NAME_KEPT_NS);
    let app = name(0);
    let first = registry.open(0, shared(app, 0)).unwrap();
    for identity in 0..senders {
        registry.join(app, u64::from(identity)).unwrap();
    }
    let second = registry.open(0, shared(app, 0)).unwrap();
    let mut ticks = 0;
    while registry.is_spreading() {
        let before = registry.senders_of(second);
        registry.spread(ticks, |_| false);
        assert!(registry.senders_of(second) - before <= spread::MOVES_MAX);
        ticks += 1;
    }
    assert_eq!((registry.senders_of(first), registry.senders_of(second)), (senders / 2, senders / 2));
    assert!(ticks >= 3, "{}", format!("{ticks} ticks"));
}
