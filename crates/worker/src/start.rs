//! Starting: lease, session, record, and waiting until it is certain that *this* server answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use b70_client::{Deadlines, Endpoint, Health};
use b70_manifest::workers::Worker;
use b70_procguard::{
    Host, Lease, LeaseKind, LeaseOwner, LeaseRoot, ListenerOwnership, PciAddress, ProcessIdentity,
    SESSION_TOKEN_VARIABLE, Session, Signaller, StopPolicy, UseEvidence, VerifiedProcess, listening_inode_belongs_to,
    redact_arguments, stop,
};
use b70_store::{LockFile, LockGuard, Progress, RelPath, random_token};
use rustix::process::{getpid, getsid, setsid};

use crate::{
    error::WorkerError,
    identity::{self, BinaryDigests, Parts},
    lane::{GpuMode, WorkerPaths},
    logs,
    plan::{ActionOutcome, ActionResult, WorkerPlan, port_text},
    resolve::ResolvedCommand,
    supervisor::Supervisor,
    sys,
    trust::own_directory,
};

/// Between two looks at a starting server.
const PAUSE: Duration = Duration::from_millis(100);
/// A server that did not come up gets this long to end by itself.
const CLEANUP: StopPolicy = StopPolicy { term_wait: Duration::from_secs(15), kill_wait: Some(Duration::from_secs(10)) };

/// How to start.
pub struct StartOptions<'a> {
    /// Wait this long for each server to be ready; zero: do not wait.
    pub wait: Duration,
    /// Raised to give up.
    pub interrupted: &'a AtomicBool,
    /// Told what happens, by worker.
    pub progress: &'a dyn Fn(&str, &str),
    /// Sender of the signals that a failed start needs; its log tells them.
    pub signaller: &'a Signaller,
}

/// A server that was started and is watched until it is ready.
struct Running<'a> {
    worker: &'a Worker,
    paths: WorkerPaths,
    process: VerifiedProcess,
    session: Session,
    exit: mpsc::Receiver<ExitStatus>,
    card: Option<PciAddress>,
    output: PathBuf,
    log: PathBuf,
    started: Instant,
}

impl Supervisor<'_> {
    /// Plans and, if nothing stands against any of it, starts the workers: all of them, or none. A worker for which something
    /// changes between plan and start fails by itself.
    pub fn start(&self, names: &[String], options: &StartOptions<'_>) -> Result<WorkerPlan, WorkerError> {
        let mut plan = self.plan_start(names)?;
        if !plan.allowed() {
            return Ok(plan);
        }
        plan.executed = true;
        let mut running = Vec::new();
        for worker in self.lane.select(names)? {
            let began = Instant::now();
            match self.launch(worker) {
                Ok(started) => {
                    (options.progress)(&worker.name, &format!("started as pid {}", started.process.identity().pid));
                    running.push(started);
                }
                Err(error) => plan.results.push(ActionResult {
                    worker: worker.name.clone(),
                    outcome: ActionOutcome::Failed,
                    detail: error.to_string(),
                    pid: None,
                    seconds: began.elapsed().as_secs_f64(),
                    stop: None,
                }),
            }
        }
        for server in running {
            // What fails for one must not hide what became of the others.
            let result = self.await_ready(&server, options).unwrap_or_else(|error| {
                server.result(ActionOutcome::Failed, format!("{error}; it may still run; stop the worker to end it"))
            });
            (options.progress)(&result.worker, &result.detail);
            plan.results.push(result);
        }
        Ok(plan)
    }

    /// Plans the worker again, takes the lease, and starts the process. The new plan is made with the operation lock held and
    /// before the lease is taken: a lease that was taken in between is refused, and nothing else is looked at again.
    fn launch<'w>(&self, worker: &'w Worker) -> Result<Running<'w>, WorkerError> {
        let paths = self.lane.paths(worker);
        let _guard = operation_lock(&paths)?;
        let view = self.view()?;
        let pci = view.cards.resolve(worker.gpu).map_err(|why| blocked(worker, vec![why]))?;
        let digests = BinaryDigests::read(&self.lane.path(&self.lane.document.binary))?;
        let owner = LeaseOwner::this_process(format!("b70-worker start {}", worker.name)).map_err(WorkerError::Proc)?;
        let build = self.build(&digests)?;
        let (action, command) = self.plan_one(worker, &view, &BTreeSet::new())?;
        let lease = match self.mode {
            GpuMode::Absent => None,
            GpuMode::Required => {
                Some(LeaseRoot::open(&self.lease_root)?.acquire(pci, LeaseKind::Card, &owner, Duration::ZERO)?)
            }
        };
        let Some(command) = command.filter(|_| action.allowed) else {
            return Err(blocked(worker, action.reasons));
        };
        for log in [&command.log, &command.output] {
            logs::rotate(log)?;
        }
        let token = random_token()?;
        let mut process = prepare(&command, &token, &worker.name);
        let output = logs::create(&command.output)?;
        let error = output.try_clone().map_err(|e| WorkerError::io(&command.output, "open", e))?;
        process.stdin(Stdio::null()).stdout(output).stderr(error).current_dir("/");
        sys::in_own_session(&mut process, lease.as_ref().map(|l| l.as_fd()));
        let executable = PathBuf::from(&command.argv[0]);
        let start_error = |e| WorkerError::io(&executable, "start", e);
        // Before there is a child: without a thread that waits for it nobody would know when it ends.
        let (sender, exit) = mpsc::channel();
        let (hand_over, started) = mpsc::channel::<Child>();
        let wait = move || {
            if let Some(status) = started.recv().ok().and_then(|mut child| child.wait().ok()) {
                let _ = sender.send(status);
            }
        };
        thread::Builder::new().name("b70-wait".into()).spawn(wait).map_err(start_error)?;
        let held_back = sys::HeldBack::fork(process).map_err(start_error)?;
        let pid = held_back.pid();
        let identity = ProcessIdentity::of(&Host::real(), pid).map_err(WorkerError::Proc)?;
        let (Some(identity), Ok(process)) = (identity, VerifiedProcess::of_child(pid)) else {
            held_back.give_up();
            return Err(blocked(worker, vec!["it was ended before it had become the server".into()]));
        };
        let session = Session { leader: identity.clone(), token: Some(token.clone()) };
        let lease_path = lease.as_ref().map(|l| l.path().to_owned());
        let parts = Parts {
            worker,
            command: &command,
            process: &identity,
            token: &token,
            digests: &digests,
            build: &build,
            lease: lease_path,
            leads_session: true,
        };
        // Recorded before it runs: without a record nobody could stop it later.
        if let Err(error) = identity::write(&paths, &identity::record(&parts)) {
            held_back.give_up();
            return Err(error);
        }
        let child = match held_back.release() {
            Ok(child) => child,
            Err(error) => {
                // The record names a process that has become no server.
                let _ = fs::remove_file(&paths.identity);
                let _ = fs::remove_file(&paths.pid);
                return Err(start_error(error));
            }
        };
        let _ = hand_over.send(child);
        if let Some(lease) = lease {
            let label = LeaseOwner::of(&identity, redact_arguments(&command.argv).join(" "));
            // The label is for people; the lock holds without it.
            let _ = lease.set_owner(&label);
            lease.leave();
        }
        Ok(Running {
            worker,
            paths,
            process,
            session,
            exit,
            card: (self.mode == GpuMode::Required).then_some(pci),
            output: command.output.clone(),
            log: command.log.clone(),
            started: Instant::now(),
        })
    }

    fn await_ready(&self, server: &Running<'_>, options: &StartOptions<'_>) -> Result<ActionResult, WorkerError> {
        if options.wait.is_zero() {
            return Ok(server.result(ActionOutcome::Started, "started, not waited for".into()));
        }
        let url = self.lane.url(server.worker);
        let mut endpoint = Endpoint::new(&url)?.with_deadlines(Deadlines::within(Duration::from_secs(2)));
        let until = server.started + options.wait;
        let mut last = String::new();
        loop {
            if options.interrupted.load(Ordering::SeqCst) {
                let left = server.clean_up(options.signaller)?;
                return Ok(
                    server.result(ActionOutcome::Interrupted, format!("interrupted before it was ready; {left}"))
                );
            }
            if server.process.exited().map_err(WorkerError::Proc)? {
                return server.fell(options.signaller);
            }
            let now = match endpoint.health() {
                Ok(Health::Ready) => match self.confirm(server)? {
                    Confirmed::Yes(text) => return Ok(server.result(ActionOutcome::Ready, text)),
                    Confirmed::NotYet => "something answers, and the server's own socket is not there yet".to_owned(),
                    Confirmed::No(why) => {
                        let left = server.clean_up(options.signaller)?;
                        return Ok(server.result(ActionOutcome::Failed, format!("{why}; {left}")));
                    }
                },
                Ok(Health::Loading(words)) => format!("loading: {words}"),
                Err(_) => "waiting for its port".to_owned(),
            };
            if now != last {
                (options.progress)(&server.worker.name, &now);
                last = now;
            }
            if Instant::now() >= until {
                let end = log_end(&server.log);
                let left = server.clean_up(options.signaller)?;
                let waited = options.wait.as_secs_f64();
                return Ok(server
                    .result(ActionOutcome::Deadline, format!("not ready within {waited:.0} s ({last}); {left}{end}")));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Is it our process that answers, and is it on the asked card?
    fn confirm(&self, server: &Running<'_>) -> Result<Confirmed, WorkerError> {
        let host = Host::real();
        let members = server.session.members().map_err(WorkerError::Proc)?.verified;
        let pids: BTreeSet<u32> = members.iter().map(|m| m.identity().pid).collect();
        let mut text = format!("ready after {:.1} s", server.started.elapsed().as_secs_f64());
        if let Some(address) = self.lane.address(server.worker) {
            match listening_inode_belongs_to(&host, address, &pids) {
                ListenerOwnership::Ours { .. } => {}
                ListenerOwnership::NotListening => return Ok(Confirmed::NotYet),
                ListenerOwnership::Foreign { owners } => {
                    return Ok(Confirmed::No(format!(
                        "port {} is answered for by another process: it is in use {}",
                        server.worker.port,
                        port_text(&owners)
                    )));
                }
                ListenerOwnership::Unknown { reason } => {
                    return Ok(Confirmed::No(format!("it cannot be told whose server answers: {reason}")));
                }
            }
        } else {
            text.push_str(", whose socket it is was not checked (the host is not an address)");
        }
        let Some(pci) = server.card else {
            text.push_str("; its card is unchecked (--no-gpu)");
            return Ok(Confirmed::Yes(text));
        };
        let view = self.view()?;
        let holds = |card: PciAddress| {
            let owners = view.usage.card(card).map(|c| c.owners.as_slice()).unwrap_or_default();
            owners.iter().any(|o| pids.contains(&o.pid) && o.evidence.contains(&UseEvidence::FdinfoVram))
        };
        let others: Vec<String> =
            view.usage.cards.iter().filter(|c| c.pci != pci && holds(c.pci)).map(|c| c.pci.to_string()).collect();
        if !others.is_empty() {
            return Ok(Confirmed::No(format!(
                "it holds memory of {} too, and was asked onto {pci}",
                others.join(", ")
            )));
        }
        if !holds(pci) {
            return Ok(Confirmed::No(format!(
                "it answers and holds no memory of {pci}: the model is not on that card"
            )));
        }
        Ok(Confirmed::Yes(format!("{text}, with memory on {pci}")))
    }

    /// Becomes the server of one worker: takes the lease, writes the record, and replaces this process. Returns only what
    /// kept it from that.
    pub fn run(&self, name: &str) -> WorkerError {
        self.try_run(name).unwrap_or_else(|error| error)
    }

    fn try_run(&self, name: &str) -> Result<WorkerError, WorkerError> {
        let worker = self.lane.worker(name)?;
        let paths = self.lane.paths(worker);
        let guard = operation_lock(&paths)?;
        let view = self.view()?;
        let Some((action, command)) = self.start_actions(&[name.to_owned()], &BTreeSet::new())?.pop() else {
            return Err(blocked(worker, vec!["nothing was planned".into()]));
        };
        let Some(command) = command.filter(|_| action.allowed) else {
            return Err(blocked(worker, action.reasons));
        };
        let digests = BinaryDigests::read(&self.lane.path(&self.lane.document.binary))?;
        let build = self.build(&digests)?;
        // A session of its own makes its helpers findable; the leader of a terminal's job cannot have one.
        let leads = setsid().is_ok() || getsid(None).ok() == Some(getpid());
        let process = ProcessIdentity::of_self().map_err(WorkerError::Proc)?;
        let lease = match (self.mode, view.cards.resolve(worker.gpu)) {
            (GpuMode::Required, Ok(pci)) => {
                let owner = LeaseOwner::of(&process, redact_arguments(&command.argv).join(" "));
                Some(LeaseRoot::open(&self.lease_root)?.acquire(pci, LeaseKind::Card, &owner, Duration::ZERO)?)
            }
            _ => None,
        };
        let token = random_token()?;
        let parts = Parts {
            worker,
            command: &command,
            process: &process,
            token: &token,
            digests: &digests,
            build: &build,
            lease: lease.as_ref().map(|l| l.path().to_owned()),
            leads_session: leads,
        };
        let mut record = identity::record(&parts);
        if command.output == command.log {
            // The output goes where this process's goes: to the terminal or the journal.
            record.log = None;
        }
        identity::write(&paths, &record)?;
        drop(guard);
        let mut server = prepare(&command, &token, &worker.name);
        let error = if let Some(lease) = lease {
            Lease::exec(lease, &mut server)
        } else {
            use std::os::unix::process::CommandExt as _;
            server.exec()
        };
        // The record names this process, which is not a server after all.
        let _ = fs::remove_file(&paths.identity);
        let _ = fs::remove_file(&paths.pid);
        Ok(WorkerError::io(Path::new(&command.argv[0]), "become the server", error))
    }
}

enum Confirmed {
    Yes(String),
    NotYet,
    No(String),
}

impl Running<'_> {
    fn result(&self, outcome: ActionOutcome, detail: String) -> ActionResult {
        ActionResult {
            worker: self.worker.name.clone(),
            outcome,
            detail,
            pid: Some(self.process.identity().pid),
            seconds: self.started.elapsed().as_secs_f64(),
            stop: None,
        }
    }

    /// Ends what was started, and says what is left.
    fn clean_up(&self, signaller: &Signaller) -> Result<String, WorkerError> {
        let outcome = stop(signaller, &self.session, CLEANUP).map_err(WorkerError::Proc)?;
        Ok(if outcome.ended && outcome.leftovers_alive.is_empty() {
            let _ = fs::remove_file(&self.paths.pid);
            "it was stopped and nothing of it is left".into()
        } else {
            format!(
                "it could not be ended (state {}); {} of its processes are left",
                outcome.stuck_state.unwrap_or('?'),
                outcome.leftovers_alive.len() + usize::from(!outcome.ended)
            )
        })
    }

    /// The started process ended before it was ready.
    fn fell(&self, signaller: &Signaller) -> Result<ActionResult, WorkerError> {
        let status = self.exit.recv_timeout(Duration::from_secs(2)).map_or_else(|_| "?".into(), |s| s.to_string());
        let members = self.session.members().map_err(WorkerError::Proc)?.verified;
        let what = if members.is_empty() {
            format!("it ended before it was ready ({status})")
        } else {
            format!(
                "the launcher ended ({status}) and left {} process(es) behind: it must become the server by exec",
                members.len()
            )
        };
        let end = log_end(if self.log.exists() { &self.log } else { &self.output });
        let left = self.clean_up(signaller)?;
        Ok(self.result(ActionOutcome::Failed, format!("{what}; {left}{end}")))
    }
}

/// The last lines of a log, as the end of a message.
fn log_end(path: &Path) -> String {
    match logs::tail(path, 5, 16 << 10) {
        Ok(text) if !text.trim().is_empty() => format!("; its log ends:\n{text}"),
        _ => String::new(),
    }
}

fn blocked(worker: &Worker, reasons: Vec<String>) -> WorkerError {
    WorkerError::Blocked { worker: worker.name.clone(), reasons }
}

/// The command with its environment; what it inherits beside that is the caller's own.
fn prepare(command: &ResolvedCommand, token: &str, name: &str) -> Command {
    let mut process = Command::new(&command.argv[0]);
    process.args(&command.argv[1..]);
    for name in &command.unset {
        process.env_remove(name);
    }
    process.envs(command.set.iter().map(|(k, v)| (k, v)).collect::<BTreeMap<_, _>>());
    process.env(SESSION_TOKEN_VARIABLE, token).env("B70_WORKER", name);
    process
}

/// Two operations on one worker do not run at the same time.
pub(crate) fn operation_lock(paths: &WorkerPaths) -> Result<LockGuard, WorkerError> {
    let folder = own_directory(paths)?;
    let name = RelPath::new(".lock").expect("a plain name");
    match LockFile::wait(&folder, &name, 0o644, Duration::ZERO, &Progress::NONE)? {
        Ok(guard) => Ok(guard),
        Err(_) => Err(WorkerError::io(
            &folder.join(&name),
            "lock",
            io::Error::new(io::ErrorKind::WouldBlock, "another start or stop of this worker is at work"),
        )),
    }
}
