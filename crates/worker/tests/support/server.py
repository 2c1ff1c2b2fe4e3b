#!/usr/bin/env python3
"""A stand-in for llama-server that misbehaves on command.

Reads --host and --port as llama-server does. STUB_MODE in the environment is a comma-separated list of:
  ignore-term    TERM is ignored
  no-listen      the port is bound and never listened on
  hang-health    connections are accepted and never answered
  die            ends at once with status 3
  slow-load      answers "loading" for the first second
  child          a helper process of the same session is left behind
  busy           its slot works and progresses
  hang-slots     /health answers, everything behind the task queue hangs
"""
import http.server
import json
import os
import signal
import socket
import socketserver
import sys
import time

MODE = set(filter(None, os.environ.get("STUB_MODE", "").split(",")))
BEGUN = time.monotonic()

HELP = "----- common params -----\n\n" + "".join(
    f"{flag} N                                     text\n"
    for flag in (
        "--help --host --port --model --alias --ctx-size --batch-size --ubatch-size --parallel --flash-attn "
        "--cache-type-k --cache-type-v --spec-type --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min "
        "--spec-draft-model --spec-draft-type-k --spec-draft-type-v --spec-draft-ngl --spec-draft-device "
        "--n-gpu-layers --ctx-checkpoints --cache-ram --threads --metrics --props --load-mode --device --api-key --hf-token"
    ).split()
)


def value(flag, default):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


class Handler(http.server.BaseHTTPRequestHandler):
    server_version = "llama.cpp"
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        body = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if "hang-health" in MODE or ("hang-slots" in MODE and self.path == "/slots"):
            time.sleep(3600)
        loading = "slow-load" in MODE and time.monotonic() - BEGUN < 1
        if loading:
            error = {"message": "Loading model", "type": "unavailable_error", "code": 503}
            return self.answer(503, json.dumps({"error": error}))
        if self.path == "/health":
            return self.answer(200, '{"status": "ok"}')
        if self.path == "/props":
            return self.answer(200, json.dumps({"model_path": "stub", "is_sleeping": "asleep" in MODE}))
        if self.path == "/slots":
            slot = {"id": 0, "is_processing": "busy" in MODE, "id_task": 1}
            slot["next_token"] = [{"n_decoded": int((time.monotonic() - BEGUN) * 100)}]
            return self.answer(200, json.dumps([slot]))
        return self.answer(404, "{}")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "hang-slots" in MODE:
            time.sleep(3600)
        event = {"content": "x", "tokens": [1], "stop": False}
        last = {"content": "", "stop": True, "stop_type": "limit", "tokens_evaluated": 1, "tokens_predicted": 1}
        body = "".join(f"data: {json.dumps(e)}\n\n" for e in (event, last))
        return self.answer(200, body, "text/event-stream")


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def main():
    if "--help" in sys.argv:
        print(HELP)
        return
    if "die" in MODE:
        print("error: couldn't bind", flush=True)
        sys.exit(3)
    if "ignore-term" in MODE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in MODE and os.fork() == 0:
        time.sleep(3600)
    address = (value("--host", "127.0.0.1"), int(value("--port", "8080")))
    if "no-listen" in MODE:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(address)
        time.sleep(3600)
    print("[SYCL-GRAPH] requested", flush=True)
    Server(address, Handler).serve_forever()


main()
