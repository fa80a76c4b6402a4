//! The control socket: applications register here, the tool asks here. Nothing of the message path passes through.

use super::cache::CacheControl;
use super::congestion::CongestionView;
use super::reactor::{Command, Commands, NewSession};
use jet_client::registration::{
    ControlRequest, ControlResponse, ErrorCode, FrameDecoder, FrameError, PROTOCOL_VERSION, encode_frame,
};
use jet_core::{OpenError, SessionEnd};
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::{Doorbell, send_with_fds};
use jet_wire::message::hello::AppName;
use jet_wire::segment::{SegmentLayout, SegmentShape, daemon_end};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

/// What every connection needs.
pub struct ControlContext {
    /// The way to the reactor.
    pub commands: Arc<Commands>,
    /// The pool, mapped read-only by applications.
    pub pool: Arc<SharedMemory>,
    /// Slabs of the pool.
    pub pool_slabs: u32,
    /// Escape memory, mapped read-only by applications; none where it could not be had.
    pub escape: Option<Arc<SharedMemory>>,
    /// Whether applications may take memory instead of waiting.
    pub gives_memory: bool,
    /// How large a session's segment is.
    pub shape: SegmentShape,
    /// What marks congestion.
    pub congestion: CongestionView,
    /// The pool's place in the cache.
    pub cache: Arc<CacheControl>,
    /// Changes with every start.
    pub incarnation: u64,
    /// Rings when the tool asks for a drain: its deadline.
    pub drain: tokio::sync::mpsc::Sender<u64>,
}

/// A client has this long to say what it wants, and to read what it is told.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves one connection to its end.
pub async fn serve(context: Arc<ControlContext>, mut stream: UnixStream) {
    let mut decoder = FrameDecoder::default();
    loop {
        let request =
            match tokio::time::timeout(REQUEST_TIMEOUT, next_request(&mut stream, &mut decoder)).await {
                Ok(Ok(Some(request))) => request,
                // It hung up, or has nothing to say.
                Ok(Ok(None) | Err(RequestError::Io)) | Err(_) => return,
                Ok(Err(RequestError::Frame(error))) => {
                    let _ = answer(&stream, &refusal(ErrorCode::BadRequest, error.to_string()), &[]).await;
                    return;
                }
            };
        let response = match request {
            ControlRequest::Register { protocol, app, class, memory_instead_of_waiting } => {
                register(&context, stream, protocol, &app, class, memory_instead_of_waiting).await;
                return;
            }
            ControlRequest::Status => status(&context).await,
            ControlRequest::Drain { deadline_ms } => {
                // A drain that is under way already is no error.
                let _ = context.drain.try_send(deadline_ms);
                ControlResponse::Draining
            }
        };
        if answer(&stream, &response, &[]).await.is_err() {
            return;
        }
    }
}

enum RequestError {
    Io,
    Frame(FrameError),
}

async fn next_request(
    stream: &mut UnixStream,
    decoder: &mut FrameDecoder,
) -> Result<Option<ControlRequest>, RequestError> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(request) = decoder.next_frame().map_err(RequestError::Frame)? {
            return Ok(Some(request));
        }
        match stream.read(&mut bytes).await {
            Ok(0) => return Ok(None),
            Ok(got) => decoder.push(&bytes[..got]),
            Err(_) => return Err(RequestError::Io),
        }
    }
}

fn refusal(code: ErrorCode, message: String) -> ControlResponse {
    ControlResponse::Error { code, message }
}

/// Writes a whole frame to a client that reads it in time; the descriptors go with its first byte.
async fn answer(stream: &UnixStream, response: &ControlResponse, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    tokio::time::timeout(REQUEST_TIMEOUT, write_frame(stream, response, fds)).await?
}

async fn write_frame(
    stream: &UnixStream,
    response: &ControlResponse,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = encode_frame(response).map_err(io::Error::other)?;
    let mut left = &frame[..];
    let mut fds = fds;
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

async fn status(context: &ControlContext) -> ControlResponse {
    let (reply, hears) = oneshot::channel();
    context.commands.send(Command::Status { reply }).await;
    let status = hears.await.map(|mut status| {
        status.congestion = context.congestion.rows();
        status.cache = Some(context.cache.status());
        serde_json::to_value(status)
    });
    match status {
        Ok(Ok(status)) => ControlResponse::Status { status },
        _ => refusal(ErrorCode::Internal, "the daemon is stopping".into()),
    }
}

/// Registers an application and stays with it until one of the two is gone.
async fn register(
    context: &ControlContext,
    stream: UnixStream,
    protocol: u32,
    app: &str,
    class: u8,
    takes_memory: bool,
) {
    if takes_memory && !context.gives_memory {
        let text = "this daemon has no memory to give instead of waiting (escape.memory_bytes = 0, \
                    escape.enabled = false, or it could not be had); register without";
        let _ = answer(&stream, &refusal(ErrorCode::BadRequest, text.into()), &[]).await;
        return;
    }
    let prepared = match prepare(context, &stream, protocol, app, class, takes_memory) {
        Ok(prepared) => prepared,
        Err((code, message)) => {
            let _ = answer(&stream, &refusal(code, message), &[]).await;
            return;
        }
    };
    let Prepared { new, memory, bell, process, ended } = prepared;
    let (reply, hears) = oneshot::channel();
    context.commands.send(Command::Open { new, reply }).await;
    let ticket = match hears.await {
        Ok(Ok(ticket)) => ticket,
        Ok(Err(error)) => {
            let code = match error {
                OpenError::NameTaken => ErrorCode::NameTaken,
                OpenError::TooMany { .. } => ErrorCode::TooManySessions,
                OpenError::Class { .. } => ErrorCode::BadRequest,
                OpenError::Draining => ErrorCode::Draining,
            };
            let _ = answer(&stream, &refusal(code, error.to_string()), &[]).await;
            return;
        }
        Err(_) => return,
    };
    let registered = ControlResponse::Registered {
        session: ticket.session.0,
        slab_bytes: jet_wire::SLAB_BYTES_U32,
        pool_bytes: context.pool.bytes() as u64,
        pool_slabs: context.pool_slabs,
        escape_bytes: context.escape.as_ref().map_or(0, |memory| memory.bytes() as u64),
        segment_bytes: memory.bytes() as u64,
        incarnation: context.incarnation,
    };
    let mut fds = vec![context.pool.as_fd(), memory.as_fd(), bell.as_fd()];
    fds.extend(context.escape.as_ref().map(|memory| memory.as_fd()));
    let told = answer(&stream, &registered, &fds).await;
    drop(bell);
    if told.is_ok() {
        // With the descriptor this is the process that asked, and no later one of its number.
        let process_id = process.as_ref().and_then(|_| stream.peer_cred().ok()?.pid());
        let _application = process_id.and_then(|id| context.cache.application(id));
        accompany(&stream, process, ended).await;
    }
    context.commands.send(Command::Close { ticket }).await;
}

/// Returns when the application's connection or process is gone, or after telling it that its session was ended.
async fn accompany(stream: &UnixStream, process: Option<OwnedFd>, ended: oneshot::Receiver<SessionEnd>) {
    // SAFETY: the `AsyncFd` owns the descriptor, which therefore stays open while it is registered.
    let process =
        process.and_then(|fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok());
    let died = async {
        match &process {
            // A pidfd is readable once its process has ended, whoever else holds its descriptors.
            Some(fd) => drop(fd.readable().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = hung_up(stream) => {}
        () = died => {}
        end = ended => {
            if let Ok(SessionEnd::Release(error)) = end {
                let _ = answer(stream, &refusal(ErrorCode::BadRequest, error.to_string()), &[]).await;
            }
        }
    }
}

/// Waits for the other end to close. What it says meanwhile is not understood here, and ends the session as well.
async fn hung_up(stream: &UnixStream) {
    let _ = stream.readable().await;
}

struct Prepared {
    new: Box<NewSession>,
    memory: Arc<SharedMemory>,
    bell: Doorbell,
    process: Option<OwnedFd>,
    ended: oneshot::Receiver<SessionEnd>,
}

fn prepare(
    context: &ControlContext,
    stream: &UnixStream,
    protocol: u32,
    app: &str,
    class: u8,
    takes_memory: bool,
) -> Result<Prepared, (ErrorCode, String)> {
    if protocol != PROTOCOL_VERSION {
        let text =
            format!("protocol {protocol}, this daemon speaks {PROTOCOL_VERSION}; use the same build of Jet");
        return Err((ErrorCode::Version, text));
    }
    let app = AppName::new(app).map_err(|error| (ErrorCode::BadRequest, error.to_string()))?;
    let internal = |error: io::Error| (ErrorCode::Internal, format!("cannot make a session: {error}"));
    let bytes = SegmentLayout::new(context.shape).total_bytes();
    let memory = Arc::new(SharedMemory::new("jet-session", bytes, false).map_err(internal)?);
    // SAFETY: the mapping is zeroed, page-aligned and kept by the session as long as its end; this is the only end.
    let segment = unsafe { daemon_end(memory.base(), memory.bytes(), context.shape) };
    let segment = segment.map_err(|error| (ErrorCode::Internal, error.to_string()))?;
    let (doorbell, bell) = Doorbell::pair().map_err(internal)?;
    let (ends, ended) = oneshot::channel();
    // Without the process's descriptor (an old kernel, or a process that died already) the connection alone tells.
    let process = stream
        .peer_cred()
        .ok()
        .and_then(|credentials| Pid::from_raw(credentials.pid()?))
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let new = Box::new(NewSession {
        app,
        class,
        takes_memory,
        segment,
        memory: Arc::clone(&memory),
        doorbell,
        ended: ends,
    });
    Ok(Prepared { new, memory, bell, process, ended })
}
