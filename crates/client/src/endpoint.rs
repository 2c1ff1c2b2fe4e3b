//! The calls.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::address::BaseUrl;
use crate::cancel::CancelToken;
use crate::completion::{CompletionRequest, Message};
use crate::connection::{Connection, Flow};
use crate::decoder::{ResponseDecoder, ResponseHead};
use crate::error::{ClientError, ErrorKind, StreamFailure, excerpt};
use crate::limits::{CallClock, Deadlines, Limits};
use crate::payload::Payload;
use crate::reader::{StreamReader, status_error};
use crate::record::{Completion, SentRequest, StreamEvent, StreamRecord};
use crate::request::{ApiKey, RequestLine};
use crate::server::{Health, ModelEntry, Props, ServerIdentity, Slot};

/// One server, one request at a time.
///
/// Calls take `&mut self`, so that a second request on the same endpoint cannot start before the first has ended. To look
/// at a server while it generates (`/slots`, `/health`), make another endpoint for the same address. Every call opens a
/// connection of its own and closes it. Redirects are not followed and proxy variables are not read.
#[derive(Debug)]
pub struct Endpoint {
    base: BaseUrl,
    api_key: Option<ApiKey>,
    deadlines: Deadlines,
    limits: Limits,
    cancel: CancelToken,
}

/// A plain response.
struct Answer {
    head: ResponseHead,
    body: Vec<u8>,
    first_byte_s: f64,
    ended_s: f64,
}

impl Endpoint {
    /// An endpoint with default deadlines and limits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`].
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let base = BaseUrl::parse(url).map_err(|kind| ClientError::new("the endpoint's address", kind))?;
        Ok(Self::at(base))
    }

    /// An endpoint at a checked address.
    pub fn at(base: BaseUrl) -> Self {
        Self {
            base,
            api_key: None,
            deadlines: Deadlines::default(),
            limits: Limits::default(),
            cancel: CancelToken::new(),
        }
    }

    /// Sends this key with every request.
    #[must_use]
    pub fn with_api_key(mut self, key: ApiKey) -> Self {
        self.api_key = Some(key);
        self
    }

    /// Uses these deadlines from now on.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Uses these limits from now on.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Calls end when this token is cancelled.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// The address.
    pub fn base_url(&self) -> &BaseUrl {
        &self.base
    }

    /// Changes the deadlines of the calls that follow.
    pub fn set_deadlines(&mut self, deadlines: Deadlines) {
        self.deadlines = deadlines;
    }

    /// `GET /health`.
    ///
    /// # Errors
    /// Everything but success and "loading model".
    pub fn health(&mut self) -> Result<Health, ClientError> {
        match self.get("/health") {
            Ok(_) => Ok(Health::Ready),
            Err(error) => match error.server_error() {
                Some(server) if server.is_loading() => Ok(Health::Loading(server.message.clone())),
                _ => Err(error),
            },
        }
    }

    /// `GET /props`.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn props(&mut self) -> Result<Props, ClientError> {
        let raw = self.get_json("/props")?;
        if raw.is_object() { Ok(Props::from_value(raw)) } else { Err(self.shape("/props", "an object", &raw)) }
    }

    /// `GET /slots`. It passes through the server's task queue and hangs with it: use a short deadline.
    ///
    /// # Errors
    /// See [`ErrorKind`]; status 501 when the server runs with `--no-slots`.
    pub fn slots(&mut self) -> Result<Vec<Slot>, ClientError> {
        let raw = self.get_json("/slots")?;
        let slots = raw.as_array().and_then(|entries| entries.iter().map(Slot::from_value).collect());
        slots.ok_or_else(|| self.shape("/slots", "a list of slots with is_processing", &raw))
    }

    /// `GET /v1/models`.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn models(&mut self) -> Result<Vec<ModelEntry>, ClientError> {
        let raw = self.get_json("/v1/models")?;
        model_entries(&raw).ok_or_else(|| self.shape("/v1/models", "data[] of models with ids", &raw))
    }

    /// `POST /tokenize`: the token ids of a text, special tokens not added.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn tokenize(&mut self, text: &str) -> Result<Vec<i64>, ClientError> {
        let raw = self.post_json("/tokenize", &json!({ "content": text }))?;
        let ids = raw.get("tokens").and_then(Value::as_array);
        ids.and_then(|ids| ids.iter().map(Value::as_i64).collect())
            .ok_or_else(|| self.shape("/tokenize", "tokens[] of integers", &raw))
    }

    /// `POST /apply-template`: the prompt that the server's chat template makes of the messages.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn apply_template(&mut self, messages: &[Message]) -> Result<String, ClientError> {
        let raw = self.post_json("/apply-template", &json!({ "messages": messages }))?;
        let prompt = raw.get("prompt").and_then(Value::as_str).map(str::to_owned);
        prompt.ok_or_else(|| self.shape("/apply-template", "a prompt", &raw))
    }

    /// Asks `/v1/models` and `/props` who answers here. A server that lacks one of them, or is still loading, is described
    /// by what it gave; only a failed connection is an error.
    ///
    /// # Errors
    /// See [`ErrorKind`]: connection, deadline, not HTTP.
    pub fn identify(&mut self) -> Result<ServerIdentity, ClientError> {
        let mut identity = ServerIdentity::default();
        for path in ["/v1/models", "/props"] {
            let answer = self.call(&get_line(path)).map_err(|kind| self.error("GET", path, kind))?;
            if let Some(server) = answer.head.header("server") {
                identity.server = Some(server.to_owned());
            }
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if !answer.head.is_success() {
                let error = status_error(answer.head.status, &answer.body);
                identity.loading |= error.code() == "loading";
                continue;
            }
            if path == "/props" && body.is_object() {
                let props = Props::from_value(body);
                identity.model_path = props.model_path;
                identity.model_alias = props.model_alias;
                identity.build_info = props.build_info;
                identity.total_slots = props.total_slots;
                identity.n_ctx = props.n_ctx;
            } else if path == "/v1/models" {
                for model in model_entries(&body).unwrap_or_default() {
                    if let Some(owner) = model.owned_by.filter(|owner| !identity.owned_by.contains(owner)) {
                        identity.owned_by.push(owner);
                    }
                    identity.models.push(model.id);
                }
            }
        }
        identity.gather_evidence();
        Ok(identity)
    }

    /// Generates in one piece.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn complete(&mut self, request: &CompletionRequest) -> Result<Completion, ClientError> {
        let sent = SentRequest::new(request, false);
        let fail = |this: &Self, kind| this.error("POST", &sent.path, kind);
        let line = post_line(&sent.path, &sent.body, request.request_id.as_deref());
        let answer = self.call(&line).and_then(success).map_err(|kind| fail(self, kind))?;
        let value = parse_json(&answer.body).map_err(|kind| fail(self, kind))?;
        let payload = Payload::read(request.api, &value);
        if let Some(error) = payload.error {
            return Err(fail(self, ErrorKind::Server { error }));
        }
        if !payload.recognised {
            return Err(self.shape(&sent.path, "a completion", &value));
        }
        Ok(Completion {
            text: payload.content,
            reasoning: payload.reasoning,
            tokens: payload.tokens,
            finish_reason: payload.finish_reasons.into_iter().next(),
            usage: payload.usage,
            timings: payload.timings,
            id: payload.id,
            server: answer.head.header("server").map(str::to_owned),
            first_byte_s: answer.first_byte_s,
            ended_s: answer.ended_s,
            request: sent,
        })
    }

    /// Generates as a stream and returns when it has ended.
    ///
    /// # Errors
    /// [`StreamFailure`], which keeps everything that had arrived.
    pub fn stream(&mut self, request: &CompletionRequest) -> Result<StreamRecord, StreamFailure> {
        self.stream_with(request, &mut |_| {})
    }

    /// As [`Endpoint::stream`]; `observe` sees the events of each read after that read was stamped. What `observe` takes in
    /// time delays later reads: keep it short in a measurement.
    ///
    /// # Errors
    /// [`StreamFailure`], which keeps everything that had arrived.
    pub fn stream_with(
        &mut self,
        request: &CompletionRequest,
        observe: &mut dyn FnMut(&StreamEvent),
    ) -> Result<StreamRecord, StreamFailure> {
        let sent = SentRequest::new(request, true);
        let line = RequestLine {
            accept: "text/event-stream",
            ..post_line(&sent.path, &sent.body, request.request_id.as_deref())
        };
        let mut clock = CallClock::start(self.deadlines);
        let mut reader = StreamReader::new(sent.clone(), &self.limits);
        let result = self.run_stream(&line, &mut clock, &mut reader, observe);
        match result {
            Ok(()) => Ok(reader.into_record()),
            Err(kind) => {
                let mut record = reader.into_record();
                record.ended_s = record.ended_s.max(clock.offset(Instant::now()));
                Err(StreamFailure { error: self.error("POST", &sent.path, kind), record: Box::new(record) })
            }
        }
    }

    fn run_stream(
        &self,
        line: &RequestLine<'_>,
        clock: &mut CallClock,
        reader: &mut StreamReader,
        observe: &mut dyn FnMut(&StreamEvent),
    ) -> Result<(), ErrorKind> {
        let bytes = line.encode(&self.base, self.api_key.as_ref())?;
        let mut connection = Connection::open(&self.base, &self.cancel, clock)?;
        reader.record_mut().started_unix_s = unix_seconds();
        let mut seen = 0;
        let result = connection.exchange(&bytes, clock, &mut |clock, at, bytes| {
            let offset_s = clock.offset(at);
            if bytes.is_empty() {
                return reader.finish(offset_s).map(|()| Flow::Done);
            }
            let pushed = reader.push(offset_s, bytes);
            let events = &reader.record().events;
            events[seen..].iter().for_each(&mut *observe);
            seen = events.len();
            let progress = pushed? > 0;
            if reader.is_finished() {
                return reader.finish(offset_s).map(|()| Flow::Done);
            }
            Ok(Flow::More { progress, streaming: reader.may_stream() })
        });
        reader.record_mut().connect_s = clock.connect_seconds();
        result
    }

    fn get(&mut self, path: &str) -> Result<Answer, ClientError> {
        self.call(&get_line(path)).and_then(success).map_err(|kind| self.error("GET", path, kind))
    }

    fn get_json(&mut self, path: &str) -> Result<Value, ClientError> {
        let answer = self.get(path)?;
        parse_json(&answer.body).map_err(|kind| self.error("GET", path, kind))
    }

    fn post_json(&mut self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let answer = self.call(&post_line(path, body, None)).and_then(success);
        answer.and_then(|answer| parse_json(&answer.body)).map_err(|kind| self.error("POST", path, kind))
    }

    fn call(&mut self, line: &RequestLine<'_>) -> Result<Answer, ErrorKind> {
        let bytes = line.encode(&self.base, self.api_key.as_ref())?;
        let mut clock = CallClock::start(self.deadlines);
        let mut connection = Connection::open(&self.base, &self.cancel, &clock)?;
        let mut decoder = ResponseDecoder::new(&self.limits, self.limits.body);
        let mut body = Vec::new();
        let mut received = 0;
        let (mut first_byte_s, mut ended_s) = (None, 0.0);
        connection.exchange(&bytes, &mut clock, &mut |clock, at, bytes| {
            ended_s = clock.offset(at);
            first_byte_s.get_or_insert(ended_s);
            received += bytes.len() as u64;
            if bytes.is_empty() {
                // A status other than success tells more than the cut of its body does.
                let refused = decoder.head().is_some_and(|head| !head.is_success());
                let ended = decoder.finish(received);
                return if refused { Ok(Flow::Done) } else { ended.map(|()| Flow::Done) };
            }
            decoder.push(bytes, &mut body)?;
            Ok(if decoder.is_complete() { Flow::Done } else { Flow::More { progress: false, streaming: false } })
        })?;
        let head = decoder.head().cloned().expect("a complete response has a head");
        Ok(Answer { head, body, first_byte_s: first_byte_s.unwrap_or(ended_s), ended_s })
    }

    fn error(&self, method: &str, path: &str, kind: ErrorKind) -> ClientError {
        let kind = match &self.api_key {
            Some(key) => kind.redact(key.secret()),
            None => kind,
        };
        ClientError::new(format!("{method} {}{path}", self.base), kind)
    }

    fn shape(&self, path: &str, expected: &'static str, found: &Value) -> ClientError {
        self.error("call", path, ErrorKind::UnexpectedShape { expected, found: excerpt(&found.to_string()) })
    }
}

fn get_line(path: &str) -> RequestLine<'_> {
    RequestLine { method: "GET", path, accept: "application/json", body: None, request_id: None }
}

fn post_line<'a>(path: &'a str, body: &Value, request_id: Option<&'a str>) -> RequestLine<'a> {
    RequestLine {
        method: "POST",
        accept: "application/json",
        body: Some(body.to_string().into_bytes()),
        request_id,
        path,
    }
}

fn success(answer: Answer) -> Result<Answer, ErrorKind> {
    if answer.head.is_success() { Ok(answer) } else { Err(status_error(answer.head.status, &answer.body)) }
}

fn parse_json(body: &[u8]) -> Result<Value, ErrorKind> {
    serde_json::from_slice(body).map_err(|error| ErrorKind::NotJson {
        reason: error.to_string(),
        excerpt: excerpt(&String::from_utf8_lossy(body)),
    })
}

fn model_entries(raw: &Value) -> Option<Vec<ModelEntry>> {
    raw.get("data")?.as_array()?.iter().map(ModelEntry::from_value).collect()
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
