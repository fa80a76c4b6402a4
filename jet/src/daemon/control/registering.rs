//! Registration of an application, and its control connection from then on.

use super::places::Place;
use super::{ControlContext, REQUEST_TIMEOUT, STOPPING, answer, refusal, refuse};
use crate::daemon::audit::{self, Who};
use crate::daemon::peer_process::{PeerProcess, user_of};
use crate::daemon::reactor::{Command, Commands, LocalApplication, NewSession, OpenSessionError};
use crate::daemon::rights::{FileIdentity, RegisterDenied, Rights, Subject};
use jet_control::protocol::{Incarnation, PROTOCOL_VERSION, Register, Registered, version_mismatch};
use jet_control::{ControlResponse, ErrorCode};
use jet_core::{OpenError, Registration, SessionEnd, Standstill, StandstillStage};
use jet_fabric::advice::advised;
use jet_fabric::memory::SharedMemory;
use jet_fabric::unix::Doorbell;
use jet_reactor::SessionTicket;
use jet_wire::message::hello::AppName;
use jet_wire::segment::{HeldLimit, SegmentLayout, daemon_end};
use rustix::process::Pid;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

/// Pause after each 4096 bytes that an application sends whose session has ended.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// Registers an application, and serves its connection until the application or the daemon is gone.
pub(super) async fn register(
    context: &ControlContext,
    stream: &UnixStream,
    mut place: Place,
    who: Who,
    asked: &Register,
) {
    // From before the decision on, so that no change of the rights is missed.
    let mut rights = context.rights.watch();
    // Without a pidfd, only the closed connection shows that the application is gone.
    let process = PeerProcess::of(stream);
    let applicant = Applicant { stream, process: process.as_ref() };
    let prepared = match prepare(context, &applicant, &mut rights, who, asked) {
        Ok(prepared) => prepared,
        Err((code, message)) => {
            if code != ErrorCode::Denied {
                audit::register_refused(who, &asked.app, &message);
            }
            return refuse(stream, &mut place, code, message).await;
        }
    };
    let Prepared { new, name, memory, bell, reports } = prepared;
    let (reply, hears) = oneshot::channel();
    context.commands.send(Command::Open { new, reply }).await;
    let ticket = match hears.await {
        Ok(Ok(ticket)) => ticket,
        Ok(Err(error)) => {
            let code = match error {
                OpenSessionError::Receiver(
                    OpenError::NameTaken | OpenError::NameOfOtherUser | OpenError::NameKept { .. },
                ) => ErrorCode::NameTaken,
                OpenSessionError::Receiver(OpenError::TooMany { .. } | OpenError::ProcessShare { .. }) => {
                    ErrorCode::TooManySessions
                }
                OpenSessionError::Receiver(OpenError::Quarantined { .. }) => ErrorCode::Quarantined,
                OpenSessionError::Receiver(OpenError::Class { .. }) => ErrorCode::BadRequest,
                OpenSessionError::Receiver(OpenError::Draining) => ErrorCode::Draining,
                OpenSessionError::System(_) => ErrorCode::Internal,
            };
            let reason = error.to_string();
            audit::register_refused(who, &asked.app, &reason);
            return refuse(stream, &mut place, code, reason).await;
        }
        Err(_) => {
            return refuse(stream, &mut place, ErrorCode::Internal, STOPPING.to_owned()).await;
        }
    };
    audit::registered(who, &asked.app, asked.class);
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
        let application = Application { name: &asked.app, process_id, user: who.user, stream };
        let denied = applicant.right_is_lost(&mut rights, &name, asked.class);
        tokio::select! {
            () = died(process.as_ref()) => {}
            () = serve_registered(&context.commands, ticket, &application, reports, denied) => {}
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
    user: u32,
    stream: &'a UnixStream,
}

/// Returns when the application has closed its connection, or the reactor is gone. A session may end before:
/// the application may still read what it held, so this function waits on.
async fn serve_registered(
    commands: &Commands,
    ticket: SessionTicket,
    application: &Application<'_>,
    reports: SessionReports,
    denied: impl Future<Output = RegisterDenied>,
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
    let mut lost = None;
    let end = tokio::select! {
        denied = denied => {
            lost = Some(denied);
            commands.send(Command::End { ticket }).await;
            ended.await
        }
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
        Ok(SessionEnd::Ended { held_slabs }) => match lost {
            Some(denied) => (format!("it has no right to its name any more: {denied}"), held_slabs),
            None => ("it spoke on its control connection after it registered".to_owned(), held_slabs),
        },
        // Nobody else ends it as gone, or the reactor has ended.
        Ok(SessionEnd::Gone) | Err(_) => return,
    };
    application.log_fault(&what, held_slabs);
    let refusal = match lost {
        Some(_) => refusal(ErrorCode::Denied, DENIED.to_owned()),
        None => refusal(ErrorCode::BadRequest, what),
    };
    let _ = answer(application.stream, &refusal, &[], REQUEST_TIMEOUT).await;
    // Where it held nothing, its number is free for others, and bounds this connection no longer. Otherwise
    // the number is its own until it closes the connection or ends.
    if held_slabs > 0 {
        application.closed().await;
    }
}

/// Returns when the process has ended. If there is no descriptor of the process, this function never returns.
async fn died(process: Option<&PeerProcess>) {
    let pidfd = process.map(|process| process.pidfd.as_fd());
    // SAFETY: the descriptor is borrowed for as long as the `AsyncFd` is, so it stays open.
    let process =
        pidfd.and_then(|fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok());
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
        let Self { name: application, process_id: process, user, .. } = *self;
        let bytes = u64::from(held_slabs) * jet_wire::SLAB_BYTES as u64;
        if held_slabs == 0 {
            tracing::warn!(
                audit = "ended",
                application,
                process,
                user,
                "a session is ended: {what}. It held nothing"
            );
            return;
        }
        tracing::warn!(
            audit = "ended",
            application,
            process,
            user,
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
    name: AppName,
    memory: Arc<SharedMemory>,
    bell: Doorbell,
    reports: SessionReports,
}

/// What an application hears that may not register as it asked. The log says why.
const DENIED: &str = "denied; the operator of the daemon finds the reason in its log";

/// The process that registers, and is registered later.
struct Applicant<'a> {
    stream: &'a UnixStream,
    process: Option<&'a PeerProcess>,
}

impl Applicant<'_> {
    /// Decides by these rights.
    fn decide(&self, rights: &Rights, name: &AppName, class: u8) -> Result<(), RegisterDenied> {
        if !rights.asks_who() {
            return Ok(());
        }
        let subject = Subject::of(self.stream, self.process, rights.asks_for_program(name));
        rights.may_register(&subject, name, class, FileIdentity::of)
    }

    /// Returns once changed rights do not allow the session any more.
    async fn right_is_lost(
        &self,
        rights: &mut watch::Receiver<Arc<Rights>>,
        name: &AppName,
        class: u8,
    ) -> RegisterDenied {
        while rights.changed().await.is_ok() {
            let now = Arc::clone(&rights.borrow_and_update());
            if let Err(denied) = self.decide(&now, name, class) {
                return denied;
            }
        }
        std::future::pending().await
    }
}

fn prepare(
    context: &ControlContext,
    applicant: &Applicant<'_>,
    rights: &mut watch::Receiver<Arc<Rights>>,
    who: Who,
    asked: &Register,
) -> Result<Prepared, (ErrorCode, String)> {
    let Register { protocol, ref app, class, memory_instead_of_waiting: takes_memory, shares_name } = *asked;
    if protocol != PROTOCOL_VERSION {
        // Checked before everything else: a client of another version may mean something else by its other
        // fields.
        return Err((ErrorCode::Version, version_mismatch(protocol, Some(PROTOCOL_VERSION))));
    }
    let app = AppName::new(app).map_err(|error| (ErrorCode::BadRequest, error.to_string()))?;
    let now = Arc::clone(&rights.borrow_and_update());
    if let Err(denied) = applicant.decide(&now, &app, class) {
        audit::register_denied(who, app.as_str(), class, denied);
        return Err((ErrorCode::Denied, DENIED.to_owned()));
    }
    if takes_memory && !context.gives_memory {
        let text = "this daemon has no memory to give instead of waiting (escape.memory_bytes = 0, \
                    escape.enabled = false, or it could not be had); register without";
        return Err((ErrorCode::BadRequest, text.to_owned()));
    }
    // Others may not take senders' messages by a name that is not theirs to share.
    let user = user_of(applicant.stream);
    if shares_name && user.is_none() {
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
    let new = Box::new(NewSession {
        registration: Registration {
            name: app,
            class,
            takes_memory,
            process: applicant.process.and_then(PeerProcess::identity),
            user,
            shares_name,
        },
        segment,
        memory: Arc::clone(&memory),
        application: LocalApplication {
            bell: context.ringer.bell(doorbell, app.as_str()),
            ended: ends,
            standstill: tells,
        },
    });
    Ok(Prepared { new, name: app, memory, bell, reports: SessionReports { ended, standstill } })
}
