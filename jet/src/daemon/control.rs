//! Serving the control socket, where applications register and tools send requests. Messages never pass
//! through this socket.

pub mod places;
#[cfg(test)]
mod tests;

use super::cache::CacheControl;
use super::drain::{Asked, Drain};
use super::peer_process::{PeerProcess, user_of};
use super::reactor::{Command, Commands, LocalApplication, NewSession, OpenSessionError, Ringer};
use super::status::StatusCache;
use bytes::Bytes;
use jet_control::frame::{FrameDecoder, FrameError, encode_frame};
use jet_control::protocol::{Incarnation, PROTOCOL_VERSION, Register, Registered, version_mismatch};
use jet_control::{ControlRequest, ControlResponse, ErrorCode};
use jet_core::{OpenError, Registration, SessionEnd, Standstill, StandstillStage};
use jet_fabric::advice::advised;
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::{Doorbell, send_with_fds};
use jet_reactor::SessionTicket;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{HeldLimit, SegmentLayout, SegmentShape, daemon_end};
use places::{ANSWER_TAKEN_WITHIN, Gone, PLACES, Place, RESERVED, Source, Why};
use rustix::process::Pid;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

/// Shared state that every control connection needs.
pub struct ControlContext {
    /// Queue of commands to the reactor.
    pub commands: Arc<Commands>,
    /// The pool, which applications map read-only.
    pub pool: Arc<SharedMemory>,
    /// Number of slabs in the pool.
    pub pool_slabs: u32,
    /// Escape memory, which applications map read-only; none where the daemon has none.
    pub escape: Option<Arc<SharedMemory>>,
    /// Whether messages of an application may take escape memory instead of waiting for room in the pool.
    pub gives_memory: bool,
    /// Sizes of each session's segment.
    pub shape: SegmentShape,
    /// Maker of the daemon's ends of doorbells.
    pub ringer: Ringer,
    /// Control of the last-level cache, which threads of applications may join.
    pub cache: Arc<CacheControl>,
    /// Source of answers about the daemon's status.
    pub status: StatusCache,
    /// Random number of this run of the daemon; each start draws another.
    pub incarnation: u64,
    /// The deadline of the daemon's drain, which requests for a drain set.
    pub drain: Arc<Drain>,
}

/// Time that a client has to send a complete request, and to read an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after each 4096 bytes that an application sends whose session has ended.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// Serves one control connection until it ends, or its place is another's.
pub async fn serve(context: Arc<ControlContext>, stream: Arc<UnixStream>, mut place: Place) {
    let mut decoder = FrameDecoder::of_requests();
    let limit = time_limit(&place);
    loop {
        let request = match place.hear(next_request(&stream, &mut decoder, limit)).await {
            Some(Ok(request)) => request,
            Some(Err(RequestError::None)) => return,
            Some(Err(RequestError::Frame(error))) => {
                return refuse(&stream, &mut place, ErrorCode::BadRequest, error.to_string()).await;
            }
            None => return say(&stream, &idle_farewell()),
        };
        let frame = match request {
            ControlRequest::Register(_) if place.is_reserved() => {
                return say(&stream, &all_in_use());
            }
            ControlRequest::Register(asked) => return register(&context, &stream, place, &asked).await,
            question => place.look_into(answer_to(&context, question)).await,
        };
        // The client may have hung up meanwhile.
        let Some(Ok(frame)) = frame else { return };
        place.answer_begins();
        match place.while_kept(write_in_time(&stream, &frame, &[], limit)).await {
            Some(Ok(())) if place.answered() => {}
            Some(Ok(())) => {
                let farewell = share_farewell();
                let _ = place.while_kept(answer(&stream, &farewell, &[], ANSWER_TAKEN_WITHIN)).await;
                return;
            }
            // The client hung up, or does not take its answer and has lost its place meanwhile.
            Some(Err(_)) | None => return,
        }
        // Whoever asks for one thing after the other, and takes each answer at once, never waits.
        tokio::task::yield_now().await;
    }
}

/// Returns the time that a connection has to send a complete request, and to take an answer.
fn time_limit(place: &Place) -> Duration {
    if place.is_reserved() { ANSWER_TAKEN_WITHIN } else { REQUEST_TIMEOUT }
}

/// Returns the frame that answers a request that is no registration.
async fn answer_to(context: &ControlContext, question: ControlRequest) -> io::Result<Bytes> {
    let response = match question {
        ControlRequest::Register(_) => unreachable!("a registration is no question"),
        ControlRequest::Status => match context.status.encoded().await {
            // The status is a ready frame: it is encoded once for all clients that ask at the same time.
            Some(frame) => return Ok(frame),
            None => stopping(),
        },
        ControlRequest::StatusRows { from } => {
            context.status.rows(from).await.map_or_else(stopping, ControlResponse::StatusRows)
        }
        ControlRequest::Drain { deadline_ms } => {
            let Asked { left, again } = context.drain.ask(deadline_ms.map(Duration::from_millis));
            ControlResponse::Draining {
                deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                again,
            }
        }
    };
    encode_frame(&response).map_err(io::Error::other)
}

enum RequestError {
    /// The client hung up, or sent no complete request in time.
    None,
    /// The client sent something else.
    Frame(FrameError),
}

async fn next_request(
    stream: &UnixStream,
    decoder: &mut FrameDecoder,
    limit: Duration,
) -> Result<ControlRequest, RequestError> {
    let read = async {
        let mut bytes = [0; 4096];
        loop {
            if let Some(request) = decoder.next_frame().map_err(RequestError::Frame)? {
                return Ok(request);
            }
            stream.readable().await.map_err(|_| RequestError::None)?;
            match stream.try_read(&mut bytes) {
                Ok(0) => return Err(RequestError::None),
                Ok(got) => decoder.push(&bytes[..got]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return Err(RequestError::None),
            }
        }
    };
    tokio::time::timeout(limit, read).await.unwrap_or(Err(RequestError::None))
}

fn refusal(code: ErrorCode, message: String) -> ControlResponse {
    ControlResponse::Error { code, message }
}

/// Writes a whole frame to a client within `limit`. The descriptors are sent with the frame's first byte.
async fn answer(
    stream: &UnixStream,
    response: &ControlResponse,
    fds: &[BorrowedFd<'_>],
    limit: Duration,
) -> io::Result<()> {
    let frame = encode_frame(response).map_err(io::Error::other)?;
    write_in_time(stream, &frame, fds, limit).await
}

async fn write_in_time(
    stream: &UnixStream,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
    limit: Duration,
) -> io::Result<()> {
    tokio::time::timeout(limit, write(stream, frame, fds)).await?
}

async fn write(stream: &UnixStream, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let (mut left, mut fds) = (frame, fds);
    while !left.is_empty() {
        stream.writable().await?;
        match stream.try_io(Interest::WRITABLE, || send_with_fds(stream.as_fd(), left, fds)) {
            Ok(taken) => {
                left = &left[taken..];
                fds = &[];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Refuses a request, and with it the connection. It keeps its place for the answer only as long as others
/// for theirs.
async fn refuse(stream: &UnixStream, place: &mut Place, code: ErrorCode, message: String) {
    place.answer_begins();
    let (refusal, limit) = (refusal(code, message), time_limit(place));
    let _ = place.while_kept(answer(stream, &refusal, &[], limit)).await;
}

/// Sends a client its last words. Never waits: what does not fit the socket's buffer is left out.
fn say(stream: &UnixStream, last: &ControlResponse) {
    if let Ok(frame) = encode_frame(last) {
        // The client may have hung up.
        let _ = send_with_fds(stream.as_fd(), &frame, &[]);
    }
}

fn all_in_use() -> ControlResponse {
    let text = format!(
        "all {PLACES} control connections beside those of applications are in use, and so are those of the \
         {RESERVED} for questions that your process may have; end some of the programs that hold them, or \
         try again"
    );
    refusal(ErrorCode::TooManyConnections, text)
}

/// Tells a client that it has no place, because everybody who has one is being answered.
pub fn refuse_connection(stream: &UnixStream, source: Source) {
    tracing::warn!(process = source.process, "a control connection is refused: all {PLACES} are in use");
    say(stream, &all_in_use());
}

/// Logs that a connection is closed for another.
pub fn log_made_room(gone: Gone) {
    let process = gone.source.process;
    match gone.why {
        Why::Idle(time) => tracing::warn!(
            process,
            "a control connection that was idle for {:.1} s is closed, since another needs its place: there \
             are {PLACES} beside those of applications, and a process has at most half of them",
            time.as_secs_f64()
        ),
        Why::HasMost => tracing::warn!(
            process,
            "a control connection is closed after its answer, since another process needs a place, nobody \
             is idle, and this process has most of the {PLACES}"
        ),
    }
}

/// Returns the last words to a client whose connection was idle.
fn idle_farewell() -> ControlResponse {
    let text = format!(
        "this control connection was idle longest, and another needs its place (there are {PLACES} beside \
         those of applications, and a process has at most half of them); connect again"
    );
    refusal(ErrorCode::TooManyConnections, text)
}

/// Returns the last words to a client whose process has most connections.
fn share_farewell() -> ControlResponse {
    let text = format!(
        "your process has most of the {PLACES} control connections, all of which are in use, and another \
         process needs one; use fewer connections, or connect again"
    );
    refusal(ErrorCode::TooManyConnections, text)
}

const STOPPING: &str = "the daemon is stopping";

fn stopping() -> ControlResponse {
    refusal(ErrorCode::Internal, STOPPING.to_owned())
}

/// Registers an application, and serves its connection until the application or the daemon is gone.
async fn register(context: &ControlContext, stream: &UnixStream, mut place: Place, asked: &Register) {
    let prepared = match prepare(context, stream, asked) {
        Ok(prepared) => prepared,
        Err((code, message)) => return refuse(stream, &mut place, code, message).await,
    };
    let Prepared { new, memory, bell, process, reports } = prepared;
    let (reply, hears) = oneshot::channel();
    context.commands.send(Command::Open { new, reply }).await;
    let ticket = match hears.await {
        Ok(Ok(ticket)) => ticket,
        Ok(Err(error)) => {
            let code = match error {
                OpenSessionError::Receiver(OpenError::NameTaken | OpenError::NameOfOtherUser) => {
                    ErrorCode::NameTaken
                }
                OpenSessionError::Receiver(OpenError::TooMany { .. } | OpenError::ProcessShare { .. }) => {
                    ErrorCode::TooManySessions
                }
                OpenSessionError::Receiver(OpenError::Quarantined { .. }) => ErrorCode::Quarantined,
                OpenSessionError::Receiver(OpenError::Class { .. }) => ErrorCode::BadRequest,
                OpenSessionError::Receiver(OpenError::Draining) => ErrorCode::Draining,
                OpenSessionError::System(_) => ErrorCode::Internal,
            };
            return refuse(stream, &mut place, code, error.to_string()).await;
        }
        Err(_) => {
            return refuse(stream, &mut place, ErrorCode::Internal, STOPPING.to_owned()).await;
        }
    };
    // The session's number bounds these connections from here on.
    drop(place);
    let registered = ControlResponse::Registered(Registered {
        session: ticket.session.0,
        slab_bytes: jet_wire::SLAB_BYTES_U32,
        pool_bytes: context.pool.bytes() as u64,
        pool_slabs: context.pool_slabs,
        escape_bytes: context.escape.as_ref().map_or(0, |memory| memory.bytes() as u64),
        segment_bytes: memory.bytes() as u64,
        incarnation: Incarnation(context.incarnation),
        class: asked.class,
        memory_instead_of_waiting: asked.memory_instead_of_waiting,
        shares_name: asked.shares_name,
    });
    let mut fds = vec![context.pool.as_fd(), memory.as_fd(), bell.as_fd()];
    fds.extend(context.escape.as_ref().map(|memory| memory.as_fd()));
    let told = answer(stream, &registered, &fds, REQUEST_TIMEOUT).await;
    drop((bell, memory));
    if told.is_ok() {
        let process_id = process.as_ref().and_then(|process| process.id).map(Pid::as_raw_pid);
        let _application = process_id.and_then(|id| context.cache.application(id));
        let application = Application { name: &asked.app, process_id, stream };
        tokio::select! {
            () = died(process.map(|process| process.pidfd)) => {}
            () = serve_registered(&context.commands, ticket, &application, reports) => {}
        }
    }
    context.commands.send(Command::Gone { ticket }).await;
}

/// Channels by which the reactor reports on a session.
struct SessionReports {
    ended: oneshot::Receiver<SessionEnd>,
    standstill: watch::Receiver<Option<Standstill>>,
}

/// The application of a session that is registered, or was registered and has ended.
struct Application<'a> {
    name: &'a str,
    process_id: Option<i32>,
    stream: &'a UnixStream,
}

/// Returns when the application has closed its connection, or the reactor is gone. A session may end before:
/// the application may still read what it held, so this function waits on.
async fn serve_registered(
    commands: &Commands,
    ticket: SessionTicket,
    application: &Application<'_>,
    reports: SessionReports,
) {
    let SessionReports { mut ended, mut standstill } = reports;
    let tell = async {
        while standstill.changed().await.is_ok() {
            let standing = *standstill.borrow_and_update();
            // The application itself was told at the first stage. The log line is for a standstill that
            // lasts.
            if let Some(Standstill { limit, stage: StandstillStage::Lasting }) = standing {
                application.log_standstill(limit);
            }
        }
        std::future::pending().await
    };
    let end = tokio::select! {
        closed = application.closed_or_sent() => {
            if closed {
                return;
            }
            // A registered application must send nothing on this connection.
            commands.send(Command::End { ticket }).await;
            ended.await
        }
        end = &mut ended => end,
        () = tell => return,
    };
    let (what, held_slabs) = match end {
        Ok(SessionEnd::Release { error, held_slabs }) => (error.to_string(), held_slabs),
        Ok(SessionEnd::Ended { held_slabs }) => {
            ("it spoke on its control connection after it registered".to_owned(), held_slabs)
        }
        // Nobody else ends it as gone, or the reactor has ended.
        Ok(SessionEnd::Gone) | Err(_) => return,
    };
    application.log_fault(&what, held_slabs);
    let refusal = refusal(ErrorCode::BadRequest, what);
    let _ = answer(application.stream, &refusal, &[], REQUEST_TIMEOUT).await;
    // Where it held nothing, its number is free for others, and bounds this connection no longer. Otherwise
    // the number is its own until it closes the connection or ends.
    if held_slabs > 0 {
        application.closed().await;
    }
}

/// Returns when the process has ended. If there is no descriptor of the process, this function never returns.
async fn died(process: Option<OwnedFd>) {
    // SAFETY: the `AsyncFd` owns the descriptor, which therefore stays open while it is registered.
    let process =
        process.and_then(|fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok());
    match &process {
        // A pidfd becomes readable when its process ends, even if other processes hold descriptors of that
        // process.
        Some(fd) => drop(fd.readable().await),
        None => std::future::pending().await,
    }
}

impl Application<'_> {
    /// Waits until the application sends something (returns `false`) or closes its end of the connection
    /// (returns `true`). Bytes that the application sends are dropped.
    async fn closed_or_sent(&self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            if self.stream.readable().await.is_err() {
                return true;
            }
            match self.stream.try_read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => return false,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return true,
            }
        }
    }

    /// Waits until the application closes its end of the connection. Who goes on talking is heard a little at
    /// a time, so that it does not keep the thread of the control plane to itself.
    async fn closed(&self) {
        while !self.closed_or_sent().await {
            tokio::time::sleep(TALK_PAUSE).await;
        }
    }

    /// Logs that the session was ended for a fault of its application. The application may live on, and its
    /// slabs stay unavailable for all other sessions.
    fn log_fault(&self, what: &str, held_slabs: u32) {
        let (application, process) = (self.name, self.process_id);
        let bytes = u64::from(held_slabs) * jet_wire::SLAB_BYTES as u64;
        if held_slabs == 0 {
            tracing::warn!(application, process, "a session is ended: {what}. It held nothing");
            return;
        }
        tracing::warn!(
            application,
            process,
            "a session is ended: {what}. It held {bytes} bytes, which it may still read: nobody else gets \
             them before it closes its connection or ends. End that process; `jet status` shows it until then"
        );
    }

    fn log_standstill(&self, limit: HeldLimit) {
        tracing::warn!(
            application = self.name,
            process = self.process_id,
            "more waits for an application, and it gave nothing back for 10 s: {limit}. Nothing more \
             comes to it before it gives slices back. If it waits for all of a large message: it is to use \
             slices as they come, or to copy them out (docs/architecture.md, \"A message larger than the \
             pool\")"
        );
    }
}

struct Prepared {
    new: Box<NewSession>,
    memory: Arc<SharedMemory>,
    bell: Doorbell,
    process: Option<PeerProcess>,
    reports: SessionReports,
}

fn prepare(
    context: &ControlContext,
    stream: &UnixStream,
    asked: &Register,
) -> Result<Prepared, (ErrorCode, String)> {
    let Register { protocol, ref app, class, memory_instead_of_waiting: takes_memory, shares_name } = *asked;
    if protocol != PROTOCOL_VERSION {
        // Checked before everything else: a client of another version may mean something else by its other
        // fields.
        return Err((ErrorCode::Version, version_mismatch(protocol, Some(PROTOCOL_VERSION))));
    }
    if takes_memory && !context.gives_memory {
        let text = "this daemon has no memory to give instead of waiting (escape.memory_bytes = 0, \
                    escape.enabled = false, or it could not be had); register without";
        return Err((ErrorCode::BadRequest, text.to_owned()));
    }
    let app = AppName::new(app).map_err(|error| (ErrorCode::BadRequest, error.to_string()))?;
    // Others may not take senders' messages by a name that is not theirs to share.
    let shares_with = if shares_name { user_of(stream) } else { None };
    if shares_name && shares_with.is_none() {
        let text = "the daemon cannot tell your process's user from others, so that you cannot share a name: \
                    it is nobody's, or one of another user namespace; run as a user of the daemon's own, or \
                    register a name of your own";
        return Err((ErrorCode::BadRequest, text.to_owned()));
    }
    let internal = |error: io::Error| {
        (ErrorCode::Internal, format!("the daemon cannot make a session: {}", advised(&error)))
    };
    let layout = SegmentLayout::new(context.shape);
    let memory = Arc::new(SharedMemory::lazy("jet-session", layout.total_bytes()).map_err(internal)?);
    // The reactor must meet no page that is not there. Reply cells have pages where the application writes
    // them; the reactor is ready for one that has none, and cannot get one.
    memory.prepare(0, layout.used_bytes()).map_err(internal)?;
    // SAFETY: the mapping is zeroed and page-aligned, and the session keeps it as long as this end. This is
    // the only daemon's end of the segment.
    let segment = unsafe { daemon_end(memory.base(), memory.bytes(), context.shape) };
    let segment = segment.map_err(|error| (ErrorCode::Internal, error.to_string()))?;
    let (doorbell, bell) = Doorbell::pair().map_err(internal)?;
    let (ends, ended) = oneshot::channel();
    let (tells, standstill) = watch::channel(None);
    // Without a pidfd, only the closed connection shows that the application is gone.
    let process = PeerProcess::of(stream);
    let new = Box::new(NewSession {
        registration: Registration {
            name: app,
            class,
            takes_memory,
            process: process.as_ref().and_then(PeerProcess::identity),
            shares_with,
        },
        segment,
        memory: Arc::clone(&memory),
        application: LocalApplication {
            bell: context.ringer.bell(doorbell, app.as_str()),
            ended: ends,
            standstill: tells,
        },
    });
    Ok(Prepared { new, memory, bell, process, reports: SessionReports { ended, standstill } })
}
