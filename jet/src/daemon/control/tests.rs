//! Tests of the control socket over a reactor that only answers commands.

use super::places::{ANSWER_TAKEN_WITHIN, Gone, PLACES, Place, Places, RESERVED, Source, Why};
use super::{ControlContext, Entrance, refuse_connection, serve};
use crate::daemon::cache::published::standing_still;
use crate::daemon::cache::{CacheConfig, CacheControl, CacheView, Reserve};
use crate::daemon::config::Config;
use crate::daemon::congestion::{CongestionConfig, CongestionControl};
use crate::daemon::drain::Drain;
use crate::daemon::rdma::RdmaView;
use crate::daemon::reactor::{Command, CommandInbox, Commands, OpenSessionError, Ringer};
use crate::daemon::rights::config::{RegisterRule, RightsConfig};
use crate::daemon::rights::{Rights, RightsKeeper, Viewers, accounts};
use crate::daemon::status::{About, Sources, StatusCache};
use jet_control::connection::{ANSWER_TIMEOUT, Look};
use jet_control::protocol::{Incarnation, PROTOCOL_VERSION, Register};
use jet_control::status::Pages;
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_core::{Checksums, OpenError};
use jet_fabric::memory::SharedMemory;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A control plane without a daemon around it.
struct ControlPlane {
    context: Arc<ControlContext>,
    /// The reactor's end of the queue of commands; `None` once the reactor is gone.
    inbox: Option<CommandInbox>,
    places: Places,
    runtime: tokio::runtime::Runtime,
}

impl ControlPlane {
    /// Starts a control plane whose status has this view of the cache, or that of a cache without changes.
    fn start(folder: &Path, view: Option<CacheView>) -> Self {
        Self::start_with(folder, view, Rights::default())
    }

    /// Starts a control plane with these rights.
    fn start_with(folder: &Path, view: Option<CacheView>, rights: Rights) -> Self {
        // One thread runs everything, as in the daemon: whatever blocks holds up all clients.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let inside = runtime.enter();
        let (commands, inbox) = Commands::new().expect("a queue");
        let off = CacheConfig { reserve: Reserve::Off, warm: false, counters: false, ..Default::default() };
        let cache = Arc::new(CacheControl::start(&off, 4096, None, &[]).expect("nothing to do"));
        let socket = folder.join("jetd.sock");
        let congestion =
            CongestionControl::start(&CongestionConfig::default(), &socket).expect("no actuators");
        let about = About {
            incarnation: 7,
            listen: Vec::new(),
            pages: Pages::Small,
            numa_node: None,
            nic_thread: false,
            checksums: Checksums::Off,
            sessions_max: 4,
            peers_max: 4,
        };
        let status = StatusCache::start(Sources {
            commands: Arc::clone(&commands),
            about,
            congestion: congestion.view(),
            cache: view.unwrap_or_else(|| cache.view()),
            rdma: RdmaView::default(),
        });
        let context = Arc::new(ControlContext {
            commands,
            pool: Arc::new(SharedMemory::new("test-pool", 4096, false).expect("memory")),
            pool_slabs: 1,
            escape: None,
            gives_memory: false,
            shape: Config::default().segment_shape(),
            ringer: Ringer::start(4).expect("a thread"),
            cache,
            status,
            incarnation: 7,
            drain: Arc::new(Drain::new(Duration::ZERO)),
            rights: RightsKeeper::new(rights, Arc::new(|| Ok(RightsConfig::default()))),
            control_socket: socket,
            admin_socket: folder.join("jetd-admin.sock"),
        });
        drop(inside);
        Self { context, inbox: Some(inbox), places: Places::new(), runtime }
    }

    fn client(&self) -> ControlConnection {
        self.client_at(Entrance::Applications)
    }

    fn client_at(&self, entrance: Entrance) -> ControlConnection {
        let (near, far) = self.pair();
        let (place, _) = self.enter(&far).expect("a place");
        self.serve(far, place, entrance);
        near
    }

    fn serve(&self, far: Arc<tokio::net::UnixStream>, place: Place, entrance: Entrance) {
        self.runtime.spawn(serve(Arc::clone(&self.context), far, place, entrance));
    }

    /// Makes a connection that is not served yet: a client's end and the daemon's.
    fn pair(&self) -> (ControlConnection, Arc<tokio::net::UnixStream>) {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        far.set_nonblocking(true).expect("a socket");
        let _inside = self.runtime.enter();
        let far = tokio::net::UnixStream::from_std(far).expect("a socket");
        (ControlConnection::from_stream(near, ANSWER_TIMEOUT).expect("a connection"), Arc::new(far))
    }

    /// Gives a connection a place. All are of one process, this one.
    fn enter(&self, far: &Arc<tokio::net::UnixStream>) -> Option<(Place, Option<Gone>)> {
        self.enter_from(Source::of(far), far)
    }

    /// Makes a connection that has a place and says nothing.
    fn idle(&self) -> (ControlConnection, Place) {
        let (near, far) = self.pair();
        (near, self.enter(&far).expect("a place").0)
    }

    fn enter_from(&self, source: Source, far: &Arc<tokio::net::UnixStream>) -> Option<(Place, Option<Gone>)> {
        self.places.enter(Arc::clone(far) as _, source, Instant::now())
    }

    /// Takes all ordinary places that this process may have, as connections for which the daemon works.
    /// Nobody takes such a place.
    fn take_all(&self) -> Vec<Place> {
        let ask = |_| {
            let (_, far) = self.pair();
            let (place, gone) = self.enter(&far).expect("a place");
            assert!(!place.is_reserved() && gone.is_none());
            self.heard(place)
        };
        (0..PLACES / 2).map(ask).collect()
    }

    /// Returns the place of a connection that was heard.
    fn heard(&self, mut place: Place) -> Place {
        let question = place.hear(std::future::ready(Ok::<_, ()>(())));
        assert!(matches!(self.runtime.block_on(question), Some(Ok(()))));
        place
    }

    /// Runs the control plane until `clients` has ended, which runs on a thread of its own. Meanwhile the
    /// reactor answers snapshots as they are, and refuses every registration.
    fn run<T: Send + 'static>(&self, clients: impl FnOnce() -> T + Send + 'static) -> T {
        let clients = std::thread::spawn(clients);
        self.runtime.block_on(async {
            while !clients.is_finished() {
                while let Some(command) = self.inbox.as_ref().and_then(CommandInbox::take) {
                    answer_command(command);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn register(protocol: u32, memory_instead_of_waiting: bool) -> ControlRequest {
    ControlRequest::Register(Register { protocol, memory_instead_of_waiting, ..Register::new("store") })
}

/// Sends a request that must be refused, and returns the reason.
#[track_caller]
fn refused(client: &mut ControlConnection, request: &ControlRequest) -> (ErrorCode, String) {
    match client.request(request).expect("an answer").0 {
        ControlResponse::Error { code, message } => (code, message),
        other => panic!("{other:?}"),
    }
}

fn answer_command(command: Command) {
    match command {
        Command::Snapshot { snapshot, reply } => drop(reply.send(snapshot)),
        Command::Open { reply, .. } => {
            drop(reply.send(Err(OpenSessionError::Receiver(OpenError::NameTaken))));
        }
        _ => panic!("nobody asked for it"),
    }
}

/// Guard that lets a reading of the cache go on when dropped, also where the test fails.
struct LetGoOn(PathBuf);

impl Drop for LetGoOn {
    fn drop(&mut self) {
        // Opening it for both does not wait for a reader.
        drop(std::fs::OpenOptions::new().read(true).write(true).open(&self.0));
    }
}

#[test]
fn a_cache_that_cannot_be_read_holds_up_neither_the_status_nor_registrations() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let publisher = standing_still::publisher(&fifo);
    let plane = ControlPlane::start(folder.path(), Some(publisher.view()));
    let (mut tool, mut application) = (plane.client(), plane.client());
    let ages = plane.run(move || {
        let _let_go_on = LetGoOn(fifo);
        let mut ages = Vec::new();
        for _ in 0..20 {
            let status = tool.status().expect("a status");
            assert_eq!((status.protocol, status.incarnation), (PROTOCOL_VERSION, Incarnation(7)));
            let cache = status.cache.expect("every daemon has it");
            assert_eq!(cache.reservation.reason.as_deref(), Some("before"));
            ages.push(cache.age_ms);
        }
        let refusal = refused(&mut application, &register(PROTOCOL_VERSION, false));
        assert_eq!(refusal.0, ErrorCode::NameTaken, "{refusal:?}");
        ages
    });
    assert!(ages.is_sorted() && ages.last() > Some(&300), "25 ms lie between two: {ages:?}");
}

#[test]
fn a_client_of_another_version_is_refused_for_its_version_whatever_else_it_asks() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    for (protocol, end) in
        [(PROTOCOL_VERSION - 1, "update the program that asked"), (PROTOCOL_VERSION + 1, "update the daemon")]
    {
        // This daemon has no memory to give either.
        let mut client = plane.client();
        let (code, text) = plane.run(move || refused(&mut client, &register(protocol, true)));
        assert_eq!(code, ErrorCode::Version, "{text}");
        for part in [format!("version {protocol}:"), format!("version {PROTOCOL_VERSION} of"), end.to_owned()]
        {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
    let mut client = plane.client();
    let (code, text) = plane.run(move || refused(&mut client, &register(PROTOCOL_VERSION, true)));
    assert!(code == ErrorCode::BadRequest && text.contains("no memory to give"), "{code:?} {text}");
}

#[test]
fn each_socket_takes_its_own_requests() {
    let folder = tempfile::tempdir().unwrap();
    let rights = RightsConfig { look: Viewers::Admin, ..RightsConfig::default() };
    let drain = ControlRequest::Drain { deadline_ms: Some(600_000) };
    for look in [Viewers::Applications, Viewers::Admin] {
        let rights = accounts::resolve(&RightsConfig { look, ..rights.clone() }).unwrap();
        let plane = ControlPlane::start_with(folder.path(), None, rights);
        let mut application = plane.client();
        if look == Viewers::Admin {
            let (code, text) = plane.run(move || refused(&mut application, &ControlRequest::Status));
            assert!(code == ErrorCode::Denied && text.contains("jetd-admin.sock"), "{text}");
        } else {
            plane.run(move || application.status().expect("all may look"));
        }
        let (mut application, request) = (plane.client(), drain.clone());
        let (code, text) = plane.run(move || refused(&mut application, &request));
        assert!(code == ErrorCode::Denied && text.contains("jetd-admin.sock"), "{text}");
        let (mut operator, request) = (plane.client_at(Entrance::Admin), drain.clone());
        plane.run(move || {
            operator.status().expect("who commands may look");
            let answer = operator.request(&request).expect("an answer").0;
            assert!(matches!(answer, ControlResponse::Draining { again: false, .. }), "{answer:?}");
        });
        let mut operator = plane.client_at(Entrance::Admin);
        let (code, text) = plane.run(move || refused(&mut operator, &register(PROTOCOL_VERSION, false)));
        assert!(code == ErrorCode::BadRequest && text.contains("control socket"), "{text}");
    }
}

#[test]
fn who_may_not_register_is_denied_before_the_reactor_or_the_memory_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let rule = |name: &str| RegisterRule { names: vec![name.to_owned()], ..RegisterRule::default() };
    let rules = |name| RightsConfig { register: vec![rule(name)], ..RightsConfig::default() };
    for (name, expected) in [("other", ErrorCode::Denied), ("sto*", ErrorCode::NameTaken)] {
        let rights = accounts::resolve(&rules(name)).unwrap();
        let plane = ControlPlane::start_with(folder.path(), None, rights);
        let mut client = plane.client();
        let (code, text) = plane.run(move || refused(&mut client, &register(PROTOCOL_VERSION, false)));
        assert_eq!(code, expected, "{text}");
        assert!(!text.contains("rights"), "{text}");
    }
    let rights = accounts::resolve(&rules("other")).unwrap();
    let plane = ControlPlane::start_with(folder.path(), None, rights);
    let mut client = plane.client();
    let (code, text) = plane.run(move || refused(&mut client, &register(PROTOCOL_VERSION, true)));
    assert_eq!(code, ErrorCode::Denied, "not what the daemon has: {text}");
}

#[test]
fn who_registers_while_the_daemon_stops_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start(folder.path(), None);
    let mut client = plane.client();
    // The reactor ends, and takes the queue of commands with it.
    plane.inbox = None;
    let (code, text) = plane.run(move || refused(&mut client, &register(PROTOCOL_VERSION, false)));
    assert!(code == ErrorCode::Internal && text.contains("the daemon is stopping"), "{code:?} {text}");
}

#[test]
fn who_finds_no_free_connection_is_told_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let _all = plane.take_all();
    let reserved: Vec<_> = (0..RESERVED / 2)
        .map(|_| {
            let (place, _) = plane.enter(&plane.pair().1).expect("a reserved place");
            plane.heard(place)
        })
        .collect();
    assert!(reserved.iter().all(Place::is_reserved));
    let (mut client, far) = plane.pair();
    assert!(plane.enter(&far).is_none());
    refuse_connection(&far, Source::of(&far));
    drop(far);
    // The daemon has hung up before the client sends its request.
    let (code, text) = refused(&mut client, &ControlRequest::Status);
    assert_eq!(code, ErrorCode::TooManyConnections, "{text}");
    for part in ["all 256 control connections", "the 16 for questions"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn reserved_places_answer_questions_and_register_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let _all = plane.take_all();
    let (mut tool, mut application, mut silent) = (plane.client(), plane.client(), plane.client());
    plane.run(move || {
        tool.status().expect("a status");
        let (code, text) = refused(&mut application, &register(PROTOCOL_VERSION, false));
        assert_eq!(code, ErrorCode::TooManyConnections, "{text}");
        assert!(application.request(&ControlRequest::Status).is_err(), "the daemon has hung up");
        // Who says nothing keeps a reserved place for a second, not for half a minute.
        let begin = Instant::now();
        jet_test_support::waiting::until("a hang-up", || match silent.look() {
            Look::Alive => None,
            Look::Gone => Some(()),
            Look::Ended { message, .. } => panic!("{message}"),
        });
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    });
}

/// Fills the socket at the daemon's end, as answers do that nobody takes.
fn fill(far: &tokio::net::UnixStream) {
    let answers = [0; 4096];
    while rustix::net::send(far, &answers, rustix::net::SendFlags::DONTWAIT).is_ok() {}
}

#[test]
fn who_does_not_take_its_refusal_keeps_no_place_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let of_process = |process, far: &_| Source { process: Some(process), ..Source::of(far) };
    let wrong = jet_control::frame::encode_frame(&register(PROTOCOL_VERSION + 1, false)).unwrap();
    let taken = jet_control::frame::encode_frame(&register(PROTOCOL_VERSION, false)).unwrap();
    // Two processes take all places, and register in vain: with another version's number, or with a name that
    // somebody has.
    let _crowd: Vec<_> = (0..PLACES)
        .map(|at| {
            let (near, far) = plane.pair();
            let source = of_process([-1, -2][at % 2], &far);
            let (place, gone) = plane.enter_from(source, &far).expect("a place");
            assert!(!place.is_reserved() && gone.is_none());
            fill(&far);
            rustix::io::write(&near, [&wrong, &taken][at / 2 % 2]).expect("room");
            plane.serve(far, place, Entrance::Applications);
            near
        })
        .collect();
    let begin = Instant::now();
    let (mut application, place, far) = loop {
        plane.run(|| std::thread::sleep(Duration::from_millis(20)));
        let (near, far) = plane.pair();
        match plane.enter(&far) {
            Some((place, Some(gone))) if !place.is_reserved() => {
                assert!(gone.source.process < Some(0), "{gone:?}");
                break (near, place, far);
            }
            _ => assert!(begin.elapsed() < Duration::from_secs(15), "all places are kept"),
        }
    };
    plane.serve(far, place, Entrance::Applications);
    let (code, text) = plane.run(move || refused(&mut application, &register(PROTOCOL_VERSION, false)));
    assert_eq!(code, ErrorCode::NameTaken, "the reactor was asked: {text}");
}

#[test]
fn whose_question_the_daemon_looks_into_keeps_its_place_until_the_answer_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let mut tool = plane.client();
    rustix::io::write(&tool, &jet_control::frame::encode_frame(&ControlRequest::Status).unwrap()).unwrap();
    // The question reaches a reactor that stands still for longer than an answer may take.
    let snapshot = plane.runtime.block_on(async {
        loop {
            match plane.inbox.as_ref().and_then(CommandInbox::take) {
                Some(command) => break command,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    std::thread::sleep(ANSWER_TAKEN_WITHIN);
    let _others: Vec<_> = (1..PLACES / 2).map(|_| plane.idle()).collect();
    let (_newcomer, gone) = plane.enter(&plane.pair().1).expect("a place");
    assert!(gone.is_some(), "this process has its share");
    answer_command(snapshot);
    plane.run(move || tool.status().expect("an answer"));
}

#[test]
fn whose_place_is_taken_is_told_so_even_with_half_a_question_sent() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let mut first = plane.client();
    let mut tool = plane.client();
    let _others: Vec<_> = (2..PLACES / 2).map(|_| plane.idle()).collect();
    // The task of the first has read half a question once a later question is answered.
    rustix::io::write(&first, &[9, 0, 0, 0, b'{']).expect("room");
    let _tool = plane.run(move || tool.status().map(|_| tool).expect("a status"));
    let (_place, gone) = plane.enter(&plane.pair().1).expect("the place of the first");
    assert!(gone.is_some());
    let (code, text) = plane.run(move || refused(&mut first, &ControlRequest::Status));
    assert!(code == ErrorCode::TooManyConnections && text.contains("idle longest"), "{code:?} {text}");
}

#[test]
fn who_does_not_take_its_answer_keeps_a_reserved_place_for_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let _all = plane.take_all();
    let connect = |says: &[u8]| {
        let (near, far) = plane.pair();
        let (place, _) = plane.enter(&far).expect("a place");
        assert!(place.is_reserved());
        fill(&far);
        rustix::io::write(&near, says).expect("room");
        plane.serve(Arc::clone(&far), place, Entrance::Applications);
        (near, far)
    };
    let (asks, far) = connect(&jet_control::frame::encode_frame(&ControlRequest::Status).unwrap());
    // A frame that is too long is refused.
    let (errs, other) = connect(&[u8::MAX; 64]);
    let begin = Instant::now();
    plane.run(move || {
        jet_test_support::waiting::until("the ends of their tasks", || {
            (Arc::strong_count(&far) == 1 && Arc::strong_count(&other) == 1).then_some(())
        });
    });
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    drop((asks, errs));
}

/// A client that has asked more than once before it reads its first answer, and asks again for each answer.
struct Pipeliner {
    stream: UnixStream,
    decoder: jet_control::frame::FrameDecoder,
    answers: u32,
}

impl Pipeliner {
    const QUESTIONS: usize = 4;

    fn ask(&mut self, question: &[u8]) {
        // The daemon may have hung up, and said why before.
        let _ = rustix::net::send(&self.stream, question, rustix::net::SendFlags::NOSIGNAL);
    }

    /// Reads what has come, and returns the last words of the daemon, if it has hung up.
    fn turn(&mut self, question: &[u8]) -> Option<(ErrorCode, String)> {
        let mut bytes = [0; 65_536];
        while let Ok((got @ 1.., _)) =
            rustix::net::recv(&self.stream, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT)
        {
            self.decoder.push(&bytes[..got]);
        }
        while let Some(answer) = self.decoder.next_frame().expect("a frame") {
            match answer {
                ControlResponse::Status { .. } => self.answers += 1,
                ControlResponse::Error { code, message } => return Some((code, message)),
                other => panic!("{other:?}"),
            }
            self.ask(question);
        }
        None
    }
}

#[test]
fn two_processes_that_ask_without_a_pause_leave_room_to_a_third() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), None);
    let question = jet_control::frame::encode_frame(&ControlRequest::Status).unwrap();
    let from = |process| {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        far.set_nonblocking(true).expect("a socket");
        let _inside = plane.runtime.enter();
        let far = Arc::new(tokio::net::UnixStream::from_std(far).expect("a socket"));
        let source = Source { process: Some(process), ..Source::of(&far) };
        (near, plane.enter_from(source, &far), far)
    };
    let mut crowd: Vec<_> = (0..PLACES)
        .map(|at| {
            let (near, entered, far) = from([-1, -2][at % 2]);
            plane.serve(far, entered.expect("a place").0, Entrance::Applications);
            let mut client = Pipeliner { stream: near, decoder: Default::default(), answers: 0 };
            (0..Pipeliner::QUESTIONS).for_each(|_| client.ask(&question));
            client
        })
        .collect();
    let asks = question.clone();
    let crowd_turns = move |mut crowd: Vec<Pipeliner>, until_gone: usize| {
        let (mut gone, begin) = (Vec::new(), Instant::now());
        while crowd.iter().any(|client| client.answers < 2) || gone.len() < until_gone {
            crowd.retain_mut(|client| match client.turn(&asks) {
                Some(words) => {
                    gone.push((words, client.answers));
                    false
                }
                None => true,
            });
            assert!(begin.elapsed() < Duration::from_secs(60), "{} are gone", gone.len());
        }
        (crowd, gone)
    };
    let (turns, again) = (crowd_turns.clone(), crowd_turns);
    crowd = plane.run(move || turns(crowd, 0)).0;
    // All of them have asked again and are about to be answered, so nobody can go at once.
    let (near, entered, far) = from(-3);
    let (place, gone) = entered.expect("a place");
    assert!(!place.is_reserved() && matches!(gone, Some(Gone { why: Why::HasMost, .. })), "{gone:?}");
    plane.serve(far, place, Entrance::Applications);
    let mut application = ControlConnection::from_stream(near, ANSWER_TIMEOUT).expect("a connection");
    let (gone, (code, text)) = plane.run(move || {
        let refusal = refused(&mut application, &register(PROTOCOL_VERSION, false));
        (again(crowd, 1).1, refusal)
    });
    assert_eq!(code, ErrorCode::NameTaken, "the reactor was asked: {text}");
    let [((code, text), answers)] = &gone[..] else { panic!("one goes: {gone:?}") };
    assert!(*code == ErrorCode::TooManyConnections && text.contains("has most of the 256"), "{text}");
    assert!(*answers >= 2);
}
