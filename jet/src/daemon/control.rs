//! Serving the control socket, where applications register and tools ask for the status, and the admin
//! socket, where operators command the daemon. Messages never pass through these sockets.

pub mod places;
mod registering;
#[cfg(test)]
mod tests;

use super::audit::{self, Who};
use super::cache::CacheControl;
use super::drain::{Asked, Drain};
use super::reactor::{Commands, Ringer};
use super::rights::RightsKeeper;
use super::status::StatusCache;
use bytes::Bytes;
use jet_control::frame::{FrameDecoder, FrameError, encode_frame};
use jet_control::{ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::send_with_fds;
use jet_wire::segment::SegmentShape;
use places::{ANSWER_TAKEN_WITHIN, Gone, PLACES, Place, RESERVED, Source, Why};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;

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
    /// Who may register which applications, and who may look.
    pub rights: RightsKeeper,
    /// Path of the control socket.
    pub control_socket: PathBuf,
    /// Path of the admin socket.
    pub admin_socket: PathBuf,
}

/// The socket by which a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The control socket, for applications and for those who look.
    Applications,
    /// The admin socket, for operators.
    Admin,
}

/// Time that a client has to send a complete request, and to read an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves one control connection until it ends, or its place is another's.
pub async fn serve(
    context: Arc<ControlContext>,
    stream: Arc<UnixStream>,
    mut place: Place,
    entrance: Entrance,
) {
    let who = Who::from(Source::of(&stream));
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
        if let Err((code, message)) = permits(&context, entrance, who, &request) {
            return refuse(&stream, &mut place, code, message).await;
        }
        let frame = match request {
            ControlRequest::Register(_) if place.is_reserved() => {
                return say(&stream, &all_in_use());
            }
            ControlRequest::Register(asked) => {
                return registering::register(&context, &stream, place, who, &asked).await;
            }
            question => place.look_into(answer_to(&context, who, question)).await,
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

/// Checks whether a request may come over the socket that it came over.
fn permits(
    context: &ControlContext,
    entrance: Entrance,
    who: Who,
    request: &ControlRequest,
) -> Result<(), (ErrorCode, String)> {
    let what = match (entrance, request) {
        (Entrance::Admin, ControlRequest::Register(_)) => {
            let path = context.control_socket.display();
            let text =
                format!("this is the admin socket; applications register over the control socket {path}");
            return Err((ErrorCode::BadRequest, text));
        }
        (Entrance::Applications, ControlRequest::Drain { .. }) => "a drain",
        (Entrance::Applications, ControlRequest::Reload) => "a reload",
        (Entrance::Applications, ControlRequest::Status | ControlRequest::StatusRows { .. })
            if !context.rights.now().applications_may_look() =>
        {
            "the status"
        }
        _ => return Ok(()),
    };
    audit::request_denied(who, what);
    let path = context.admin_socket.display();
    let text = format!(
        "denied: {what} is asked for over the daemon's admin socket, {path}, which root and the daemon's own \
         user may open"
    );
    Err((ErrorCode::Denied, text))
}

/// Returns the frame that answers a request that is no registration.
async fn answer_to(context: &ControlContext, who: Who, question: ControlRequest) -> io::Result<Bytes> {
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
            let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            audit::drain(who, deadline_ms);
            ControlResponse::Draining { deadline_ms, again }
        }
        ControlRequest::Reload => {
            let outcome = context.rights.read_again().await;
            audit::reload(who, outcome.as_ref().err());
            match outcome {
                Ok(()) => ControlResponse::Reloaded {},
                Err(error) => {
                    refusal(ErrorCode::BadRequest, format!("{error}; the rights stay as they were"))
                }
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
