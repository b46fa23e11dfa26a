"""A W&B server in the test's own process, which keeps what is sent to it.

    with running() as server:
        ...                                    # with server.environment
        server.runs["0123456789ab"]["summary"]

It knows the requests that wandb 0.31 and wandb-workspaces 0.4 make for runs, views and reports, and
for an agent of the one `sweep`, which gets `trials`; it answers any other with an error. Kept in
memory: `runs` by id, `views` by id, `unknown` requests.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote

KEY = "0123456789" * 4
ENTITY = "me"
Answer = dict[str, Any]
RUN = {"config": "{}", "summaryMetrics": "{}", "tags": [], "group": "", "jobType": ""}
PAGE = {"endCursor": None, "hasNextPage": False}
USER = {"id": "user", "entity": ENTITY, "username": ENTITY, "email": "me@example.org"}
VIEWER = {"viewer": {**USER, "flags": "{}", "teams": {"edges": []}}}
PROJECT = {"id": "p", "name": "ablate", "entityName": ENTITY, "isBenchmark": False,
           "createdAt": "2026-11-20T00:00:00Z", "user": None}  # fmt: skip
# As if it was there already, so that nothing of it is uploaded.
ARTIFACT = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": None}}
# Requests whose answer is always the same.
ANSWERS: dict[str, Answer] = {
    "Viewer": VIEWER,
    "GetDefaultEntity": VIEWER,
    "ServerFeaturesQuery": {"serverInfo": {"features": []}},
    "ProjectInternalId": {"project": {"id": "p", "internalId": "1"}},
    "GetProjects": {"models": {"edges": [{"node": PROJECT, "cursor": "1"}], "pageInfo": PAGE}},
    # Of a table, which is logged as an artifact.
    "OrganizationCoreWeaveOrganizationID": {"entity": {"organization": None}},
    "ArtifactType": {"project": {"artifact": None}},
    "CreateArtifact": {"createArtifact": {"artifact": ARTIFACT}},
    "CreateAgent": {"createAgent": {"agent": {"id": "agent"}}},
}


class Server:
    """`refuse`: the HTTP status of every answer."""

    def __init__(self, refuse: int | None = None) -> None:
        self.refuse = refuse
        self.url = ""
        self.runs: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.sweep: dict[str, Any] = {}
        self.trials: list[dict[str, Any]] = []
        self.unknown: list[str] = []
        self.lock = Lock()

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def run(self, name: str) -> dict[str, Any]:
        fresh = {"id": f"id-{name}", "name": name, **RUN, "history": [], "files": {}}
        return self.runs.setdefault(name, fresh)

    def summary(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.runs[name]["summaryMetrics"])
        return found

    def graphql(self, query: str, variables: dict[str, Any]) -> Answer:
        found = re.search(r"(query|mutation)\s+(\w+)", query)
        kind, name = found.groups() if found else ("query", "?")
        if name in ANSWERS:
            return {"data": ANSWERS[name]}
        answer: Callable[[dict[str, Any]], Answer] | None = getattr(self, f"on_{name}", None)
        if answer is None:
            self.unknown.append(name)
            return {"errors": [{"message": f"this server knows no {kind} {name}"}]}
        with self.lock:
            return {"data": answer(variables)}

    # Runs.

    def on_RunResumeStatus(self, variables: dict[str, Any]) -> Answer:
        run = self.runs.get(variables["name"])
        bucket = run and {
            **{key: run.get(key) for key in ("id", "name", "displayName", *RUN)},
            "historyLineCount": len(run["history"]),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(line) for line in run["history"][-1:]]),
            "eventsTail": "[]",
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"model": {"id": "p", "name": "ablate", "entity": self._entity(), "bucket": bucket}}

    def on_UpsertBucket(self, variables: dict[str, Any]) -> Answer:
        by_id = {run["id"]: name for name, run in self.runs.items()}
        run = self.run(variables.get("name") or by_id[variables["id"]])
        given = {"group": variables.get("groupName"), **variables}
        run |= {k: given[k] for k in ("displayName", *RUN) if given.get(k) is not None}
        project = {"id": "p", "name": "ablate", "entity": self._entity()}
        shown = {key: run.get(key) for key in ("id", "name", "displayName", "config")}
        bucket = {**shown, "historyLineCount": len(run["history"]), "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def on_CreateRunFiles(self, variables: dict[str, Any]) -> Answer:
        run = variables["run"]
        urls = {name: f"{self.url}/upload/{run}/{name}" for name in variables["files"]}
        files = [{"name": name, "uploadUrl": url} for name, url in urls.items()]
        return {"createRunFiles": {"runID": f"id-{run}", "uploadHeaders": [], "files": files}}

    def on_Runs(self, variables: dict[str, Any]) -> Answer:
        wanted = json.loads(variables["filters"])["name"]["$in"]
        found = [run for name, run in self.runs.items() if name in wanted]
        shown = [{k: run.get(k) for k in ("id", "name", "displayName", *RUN)} for run in found]
        more = {"projectId": 1, "state": "finished"}
        edges = [{"node": more | run, "cursor": "1"} for run in shown]
        runs = {"edges": edges, "pageInfo": PAGE}
        return {"project": {"internalId": 1, "runCount": len(edges), "runs": runs}}

    def stream(self, run: str, content: dict[str, Any]) -> None:
        """What wandb sends while a run is open."""
        for name, part in content.get("files", {}).items():
            lines = [json.loads(line) for line in part["content"]] if part.get("content") else []
            if name == "wandb-history.jsonl":
                self.run(run)["history"][part["offset"] :] = lines
            elif name == "wandb-summary.json" and lines:
                self.run(run)["summaryMetrics"] = json.dumps(lines[-1])
        if content.get("complete"):
            self.run(run)["exit_code"] = content["exitcode"]

    # An agent of the sweep.

    def on_SweepWithRuns(self, _: dict[str, Any]) -> Answer:
        held = {"config": json.dumps(self.sweep), "runs": {"edges": []}}
        return {"project": {"sweep": held}}

    def on_Heartbeat(self, variables: dict[str, Any]) -> Answer:
        """Starts a trial when none is running; ends the agent after the last."""
        commands: list[dict[str, Any]] = []
        if not json.loads(variables["runState"]):
            trial = self.trials.pop(0) if self.trials else None
            args = {key: {"value": value} for key, value in (trial or {}).items()}
            run = {"run_id": f"trial{len(self.trials)}", "program": self.sweep.get("program")}
            commands = [{"type": "run", "args": args, **run} if trial else {"type": "exit"}]
        agent = {"agent": {"id": "agent"}, "commands": json.dumps(commands)}
        return {"agentHeartbeat": agent}

    # Views and reports.

    def on_View(self, variables: dict[str, Any]) -> Answer:
        found = [v for v in self.views.values() if v["name"] == variables["viewName"]]
        return {"project": {"allViews": {"edges": [{"node": view} for view in found]}}}

    def on_UpsertView2(self, variables: dict[str, Any]) -> Answer:
        known = variables.get("id") or f"Vmlldzo{len(self.views)}"
        if variables.get("id") and known not in self.views:
            raise KeyError(f"view {known} not found")
        inserted = known not in self.views
        self.views[known] = {
            **{key: variables[key] for key in ("name", "displayName", "description", "spec")},
            "id": known,
            "type": variables["type"],
            "project": {"id": "p", "name": variables["projectName"], "entityName": ENTITY},
            "updatedAt": None,
        }
        return {"upsertView": {"view": self.views[known], "inserted": inserted}}

    on_upsertView = on_UpsertView2

    def _entity(self) -> dict[str, str]:
        return {"id": "e", "name": ENTITY}


@contextmanager
def running(*, refuse: int | None = None) -> Iterator[Server]:
    server = Server(refuse)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def _answer(self, content: Any, status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self._body()
            if server.refuse:
                self._answer({}, server.refuse)
            elif self.path.endswith("/file_stream"):
                with server.lock:
                    server.stream(self.path.split("/")[-2], json.loads(body))
                self._answer({})
            else:
                asked = json.loads(body)
                try:
                    self._answer(server.graphql(asked["query"], asked.get("variables") or {}))
                except Exception as error:
                    self._answer({"errors": [{"message": str(error)}]})

        def do_PUT(self) -> None:
            _, _, run, name = unquote(self.path).split("/", 3)
            server.run(run)["files"][name] = self._body()
            self._answer({})

        def log_message(self, *args: Any) -> None: ...

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that goes away is no news."""

    with Listening(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_port}"
        Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown()
