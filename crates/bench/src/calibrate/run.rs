//! Carrying a calibration out: one thread an endpoint, one request at a time on each.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use b70_client::{Api, BaseUrl, CancelToken, CompletionRequest, Deadlines, Endpoint, ServerIdentity, request_id};
use b70_manifest::calibration::{CalibrationRow, CalibrationRun, EndpointIdentity, Measured, RunEndpoint};
use b70_manifest::gate::{Judged, judge};
use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex, UnixTime};
use b70_procguard::{Lease, LeaseError, LeaseKind, LeaseOwner, LeaseRoot};
use b70_store::spawn_scoped;
use serde_json::{Map, Value, json};

use super::publish::{ResultFile, open, text};
use super::{CalibrateError, Calibration, CalibrationEvent, CalibrationReport, RunStatus, Target};
use crate::identity::{Collected, collect, empty, servers_on_host};
use crate::row::{Asked, bare_row, complete_row, fail, failed_row};
use crate::summary::summarise;
use crate::telemetry::sample_sensors;

/// How often the interrupt flag and the deadline are looked at.
const TICK: Duration = Duration::from_millis(20);
/// A prompt of no suite, for warm-ups.
const WARM_UP: &str = "Count from one to twenty in words.";

/// Why everything was told to stop.
const RUNNING: u8 = 0;
const INTERRUPTED: u8 = 1;
const DEADLINE: u8 = 2;

/// What all endpoints of a run share.
struct Shared<'a> {
    token: CancelToken,
    stop: AtomicU8,
    observe: Mutex<&'a mut (dyn FnMut(CalibrationEvent<'_>) + Send)>,
    started_unix: UnixTime,
    workers_at_once: u64,
}

impl Shared<'_> {
    fn stopped(&self) -> Option<&'static str> {
        match self.stop.load(Ordering::SeqCst) {
            INTERRUPTED => Some("interrupted"),
            DEADLINE => Some("deadline-passed"),
            _ => None,
        }
    }

    fn tell(&self, event: CalibrationEvent<'_>) {
        let mut observe = self.observe.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        observe(event);
    }
}

/// What one endpoint came to.
struct Ended {
    judged: Judged,
    error: Option<String>,
    notes: Vec<String>,
}

impl Calibration {
    /// Plans, and if nothing blocks it, measures all endpoints. `cancel` is looked at all the time; `observe` hears of every
    /// row after it was written.
    ///
    /// Every endpoint's file is there from the start and holds the rows taken so far, marked as unfinished (`status` is
    /// `running`, no `ended_unix`) until the endpoint is done. A failed row ends its endpoint; the others go on.
    ///
    /// # Errors
    /// [`CalibrateError`]; an endpoint's failure is not an error but part of the report.
    pub fn execute(
        &self,
        cancel: &AtomicBool,
        observe: &mut (dyn FnMut(CalibrationEvent<'_>) + Send),
    ) -> Result<CalibrationReport, CalibrateError> {
        let plan = self.plan(cancel)?;
        if cancel.load(Ordering::SeqCst) {
            return Err(CalibrateError::Interrupted);
        }
        if !plan.allowed {
            // Waiting helps a server that does not answer or still loads, and nothing else.
            let waited = !self.options.wait.is_zero() && plan.reasons.is_empty();
            let timed_out = waited && plan.endpoints.iter().all(|one| one.allowed || one.server.is_none());
            let mut reasons = plan.reasons;
            for endpoint in &plan.endpoints {
                reasons.extend(endpoint.reasons.iter().map(|why| format!("{}: {why}", endpoint.name)));
            }
            return Err(CalibrateError::Blocked { reasons, timed_out });
        }
        // Held until the end of the run.
        let _leases = self.measuring_leases()?;
        let root = open(&self.out)?;
        let shared = Shared {
            token: CancelToken::new(),
            stop: AtomicU8::new(RUNNING),
            observe: Mutex::new(observe),
            started_unix: UnixTime::now(),
            workers_at_once: servers_on_host(&self.host).max(self.settings().endpoints_at_once as usize) as u64,
        };
        let first: Vec<Measured> = self.targets.iter().map(|target| self.blank(target, &shared)).collect();
        let mut files = Vec::new();
        for (target, measured) in self.targets.iter().zip(&first) {
            let name = format!("{}.json", target.name);
            files.push(ResultFile::reserve(&root, &name, &judge(measured.clone()))?);
        }
        let servers: BTreeMap<&str, ServerIdentity> = plan
            .endpoints
            .iter()
            .map(|endpoint| (endpoint.name.as_str(), endpoint.server.clone().unwrap_or_default()))
            .collect();
        let pending: Vec<Ended> = first
            .iter()
            .map(|measured| Ended { judged: judge(measured.clone()), error: None, notes: Vec::new() })
            .collect();
        let run_file = ResultFile::reserve(&root, "result.json", &self.run_document(&shared, &pending, false))?;

        let done = AtomicBool::new(false);
        let deadline = self.options.total.map(|total| Instant::now() + total.min(Deadlines::LONGEST));
        let work: Vec<_> = self.targets.iter().zip(first).zip(&files).collect();
        let measure = |((target, measured), file): ((&Target, Measured), &ResultFile<'_>)| {
            self.measure(target, measured, &servers[target.name.as_str()], file, &shared)
        };
        let measure = &measure;
        let ended: Result<Vec<Ended>, b70_store::Error> = thread::scope(|scope| {
            spawn_scoped(scope, "the deadline", || watch(&shared, cancel, deadline, &done))?;
            let ended = if self.options.sequential {
                work.into_iter().map(measure).collect()
            } else {
                let begin = |work| spawn_scoped(scope, "an endpoint", move || measure(work));
                let threads: Vec<_> = work.into_iter().map(begin).collect();
                if threads.iter().any(Result::is_err) {
                    shared.stop.store(INTERRUPTED, Ordering::SeqCst);
                    shared.token.cancel();
                }
                threads.into_iter().map(|thread| thread?.join().expect("measuring does not panic")).collect()
            };
            done.store(true, Ordering::SeqCst);
            ended
        });
        let ended = ended?;
        let status = match shared.stop.load(Ordering::SeqCst) {
            // A stop that came after the last row stopped nothing.
            INTERRUPTED if ended.iter().any(|one| one.error.is_some()) => RunStatus::Interrupted,
            DEADLINE if ended.iter().any(|one| one.error.is_some()) => RunStatus::DeadlinePassed,
            _ if ended.iter().all(|one| one.error.is_none() && one.judged.gates()["screening"].passed) => {
                RunStatus::Passed
            }
            _ => RunStatus::Failed,
        };
        let finished = matches!(status, RunStatus::Passed | RunStatus::Failed);
        let mut run = self.run_document(&shared, &ended, finished);
        run.extra.insert("status".to_owned(), json!(status));
        run_file.write(&run)?;
        let mut files: BTreeMap<String, std::path::PathBuf> = self
            .targets
            .iter()
            .map(|target| (target.name.clone(), self.out.join(format!("{}.json", target.name))))
            .collect();
        files.insert("run".to_owned(), self.out.join("result.json"));
        let notes = self.targets.iter().zip(&ended).map(|(target, one)| (target.name.clone(), one.notes.clone()));
        Ok(CalibrationReport {
            schema_version: 1,
            executed: true,
            status,
            out: self.out.clone(),
            files,
            run,
            notes: notes.collect(),
        })
    }

    /// The second lock of every named card that this host shows.
    fn measuring_leases(&self) -> Result<Vec<Lease>, CalibrateError> {
        let Some(path) = self.lease_root.as_ref().filter(|_| self.host.is_real()) else { return Ok(Vec::new()) };
        let cards: Vec<_> = self.targets.iter().filter_map(|target| target.card).collect();
        if cards.is_empty() {
            return Ok(Vec::new());
        }
        let blocked = |error: LeaseError| CalibrateError::Blocked {
            timed_out: !self.options.wait.is_zero() && matches!(error, LeaseError::Held { .. }),
            reasons: vec![error.to_string()],
        };
        let root = LeaseRoot::open(path).map_err(blocked)?;
        let owner = LeaseOwner::this_process("b70-bench calibrate")
            .map_err(|source| blocked(LeaseError::Io { path: path.clone(), source }))?;
        let take = |card| root.acquire(card, LeaseKind::Measuring, &owner, self.options.wait).map_err(blocked);
        cards.into_iter().map(take).collect()
    }

    /// A document in which nothing was measured yet.
    fn blank(&self, target: &Target, shared: &Shared<'_>) -> Measured {
        Measured {
            schema_version: 1,
            format: "b70-calibration-result-v1".to_owned(),
            endpoint: EndpointIdentity {
                name: target.name.clone(),
                url: target.url.clone(),
                card: target.card,
                extra: Map::new(),
            },
            arm: target.arm,
            period: target.period,
            suite: self.suite.identity(self.options.selected.clone()),
            settings: self.settings(),
            identity: empty(),
            rows: Vec::new(),
            summary: BTreeMap::new(),
            started_unix: shared.started_unix,
            ended_unix: None,
            created_utc: Some(UnixTime::now().rfc3339()),
            extra: Map::from_iter([("status".to_owned(), json!("pending"))]),
        }
    }

    fn measure(
        &self,
        target: &Target,
        mut measured: Measured,
        server: &ServerIdentity,
        file: &ResultFile<'_>,
        shared: &Shared<'_>,
    ) -> Result<Ended, b70_store::Error> {
        let rows = self.rows_per_endpoint();
        let mut notes = Vec::new();
        let mut samples: Vec<Value> = Vec::new();
        let error = if let Some(why) = shared.stopped() {
            Some(format!("{why} before the first request"))
        } else {
            shared.tell(CalibrationEvent::Begins { endpoint: &target.name, rows });
            self.identify(target, server, &mut measured, &mut notes, shared);
            measured.extra.insert("status".to_owned(), json!("running"));
            self.ask_all(target, &mut measured, &mut samples, file, shared)?
        };
        let status = match (&error, shared.stopped()) {
            (None, _) => "complete",
            (Some(_), Some(why)) => why,
            (Some(_), None) => "failed",
        };
        measured.summary = summarise(&measured.rows);
        measured.extra.insert("status".to_owned(), json!(status));
        if let Some(error) = &error {
            measured.extra.insert("error".to_owned(), json!(error));
        }
        if !notes.is_empty() {
            measured.extra.insert("notes".to_owned(), json!(notes));
        }
        // A document that was cut short has no end.
        measured.ended_unix = matches!(status, "complete" | "failed").then(UnixTime::now);
        measured.created_utc = Some(UnixTime::now().rfc3339());
        let judged = judge(measured);
        file.write(&judged)?;
        shared.tell(CalibrationEvent::Ends { endpoint: &target.name, error: error.as_deref() });
        Ok(Ended { judged, error, notes })
    }

    fn identify(
        &self,
        target: &Target,
        server: &ServerIdentity,
        measured: &mut Measured,
        notes: &mut Vec<String>,
        shared: &Shared<'_>,
    ) {
        let Ok(url) = BaseUrl::parse(&target.url) else { return };
        let props = self
            .endpoint(target, Deadlines::within(Duration::from_secs(5)))
            .ok()
            .and_then(|endpoint| endpoint.with_cancel(shared.token.clone()).props().ok());
        let Collected { identity, notes: found } =
            collect(&self.host, &url, target.card, &target.inputs, server, props.as_ref());
        measured.identity = identity;
        measured.identity.workers_at_once = Some(shared.workers_at_once);
        notes.extend(found);
    }

    /// Asks prompt after prompt; the reason if that ended early.
    fn ask_all(
        &self,
        target: &Target,
        measured: &mut Measured,
        samples: &mut Vec<Value>,
        file: &ResultFile<'_>,
        shared: &Shared<'_>,
    ) -> Result<Option<String>, b70_store::Error> {
        let rows = self.rows_per_endpoint();
        let endpoint = match self.endpoint(target, self.options.deadlines) {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let mut endpoint = endpoint.with_cancel(shared.token.clone());
        let begun = Instant::now();
        self.sense(target, measured, samples, begun, 0);
        for _ in 0..self.options.warm_up_requests {
            if let Err(failure) = endpoint.stream(&self.request(WARM_UP.to_owned(), "warm-up")) {
                return Ok(Some(format!("the warm-up failed: {}", failure.error)));
            }
        }
        for repeat in 0..self.options.repeats {
            for index in self.asked_prompts() {
                let asked = Asked {
                    prompt: &self.suite.prompts[index],
                    index,
                    repeat,
                    max_tokens: u64::from(self.options.max_tokens),
                    window: self.options.window,
                };
                let row = self.ask(&mut endpoint, asked);
                let failure = row.error.clone();
                measured.rows.push(row);
                measured.summary = summarise(&measured.rows);
                self.sense(target, measured, samples, begun, measured.rows.len());
                file.write(&judge(measured.clone()))?;
                shared.tell(CalibrationEvent::Row {
                    endpoint: &target.name,
                    taken: measured.rows.len(),
                    rows,
                    row: &measured.rows[measured.rows.len() - 1],
                });
                let taken = measured.rows.len();
                if let Some(why) = shared.stopped().filter(|_| failure.is_some() || taken < rows) {
                    return Ok(Some(format!("{why} after {taken} of {rows} rows")));
                }
                if let Some(failure) = failure {
                    return Ok(Some(format!("row {taken} of {rows} failed, the rest was not asked: {failure}")));
                }
            }
        }
        Ok(None)
    }

    fn ask(&self, endpoint: &mut Endpoint, asked: Asked<'_>) -> CalibrationRow {
        let id = format!("bench-{}-{:02}-{}", self.suite.suite_id, asked.index, asked.prompt.id);
        let mut request = self.request(asked.prompt.prompt.clone(), &id);
        if self.options.api == Api::Native {
            match endpoint.apply_template(&request.messages()) {
                Ok(rendered) => request.prompt = rendered,
                Err(error) => {
                    let mut row = bare_row(asked);
                    fail(&mut row, error.code(), error.to_string());
                    return row;
                }
            }
        }
        match endpoint.stream(&request) {
            Ok(record) => complete_row(asked, &record),
            Err(failure) => failed_row(asked, &failure),
        }
    }

    fn request(&self, prompt: String, id: &str) -> CompletionRequest {
        let mut request = CompletionRequest::cold(self.options.api, prompt, self.options.max_tokens);
        request.system.clone_from(&self.suite.system_prompt);
        request.seed = Some(self.options.seed);
        if self.options.ignore_eos {
            request.extra.insert("ignore_eos".to_owned(), json!(true));
        }
        request.extra.extend(self.options.request_extra.clone());
        request.request_id = Some(request_id(id));
        request
    }

    /// Reads the card's sensors between two requests.
    fn sense(&self, target: &Target, measured: &mut Measured, samples: &mut Vec<Value>, begun: Instant, rows: usize) {
        let Some(mut sample) = target.card.and_then(|card| sample_sensors(&self.host, card)) else { return };
        sample.insert("after_rows".to_owned(), json!(rows));
        sample.insert("offset_s".to_owned(), json!(begun.elapsed().as_secs_f64()));
        samples.push(Value::Object(sample));
        measured.identity.telemetry = Some(json!({"source": "sysfs, between requests", "samples": samples}));
    }

    fn run_document(&self, shared: &Shared<'_>, ended: &[Ended], finished: bool) -> CalibrationRun {
        let lowest = [
            EvidenceClass::InvalidOrIncomplete,
            EvidenceClass::FreshResponseScreening,
            EvidenceClass::PromotionGradeFreshResponse,
        ]
        .into_iter()
        .find(|class| ended.iter().any(|one| one.judged.evidence_class() == *class));
        let endpoints = self.targets.iter().zip(ended).map(|(target, one)| RunEndpoint {
            name: target.name.clone(),
            file: format!("{}.json", target.name),
            sha256: finished.then(|| Sha256Hex::of(&text(&one.judged))),
            evidence_class: one.judged.evidence_class(),
            gates: one.judged.gates().clone(),
            summary: one.judged.measured().summary.clone(),
            error: one.error.clone(),
            extra: Map::from_iter([("rows".to_owned(), json!(one.judged.measured().rows.len()))]),
        });
        CalibrationRun {
            schema_version: 1,
            format: "b70-calibration-run-v1".to_owned(),
            evidence_class: lowest.unwrap_or(EvidenceClass::InvalidOrIncomplete),
            promotion_eligible: NeverEligible,
            suite: self.suite.identity(self.options.selected.clone()),
            settings: self.settings(),
            endpoints: endpoints.collect(),
            started_unix: shared.started_unix,
            ended_unix: finished.then(UnixTime::now),
            created_utc: Some(UnixTime::now().rfc3339()),
            extra: Map::from_iter([
                ("status".to_owned(), json!("running")),
                ("output_variants".to_owned(), output_variants(ended)),
                ("note".to_owned(), json!(crate::compare::ONE_RUN_NOTE)),
            ]),
        }
    }
}

/// Whether the endpoints answered each prompt with the same text: `equal`, or the number of different texts.
fn output_variants(ended: &[Ended]) -> Value {
    let mut texts: BTreeMap<&str, std::collections::BTreeSet<Sha256Hex>> = BTreeMap::new();
    for row in ended.iter().flat_map(|one| &one.judged.measured().rows).filter(|row| row.error.is_none()) {
        texts.entry(&row.prompt_id).or_default().extend(row.sha256);
    }
    let variants: BTreeMap<&str, usize> =
        texts.iter().filter(|(_, texts)| texts.len() > 1).map(|(id, texts)| (*id, texts.len())).collect();
    json!({"prompts": texts.len(), "equal": texts.len() - variants.len(), "variants": variants})
}

/// Stops everything when told so or when the time is over.
fn watch(shared: &Shared<'_>, cancel: &AtomicBool, deadline: Option<Instant>, done: &AtomicBool) {
    while !done.load(Ordering::SeqCst) {
        let stop = if cancel.load(Ordering::SeqCst) {
            INTERRUPTED
        } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            DEADLINE
        } else {
            thread::sleep(TICK);
            continue;
        };
        shared.stop.store(stop, Ordering::SeqCst);
        shared.token.cancel();
        return;
    }
}
