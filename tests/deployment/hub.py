"""A stand-in for a model hub: what its official client asks for when it pushes and pulls models."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

TOKEN = "hf_stand_in"


class Hub(BaseHTTPRequestHandler):
    """Models are files by path, in memory; whoever writes needs the token."""

    models: ClassVar[dict[str, dict[str, bytes]]] = {}
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        _, api, *path = self.path.partition("?")[0].split("/")
        assert api == "api"
        if path == ["validate-yaml"]:
            return self._answer(200, {"errors": [], "warnings": []})
        if path == ["repos", "create"]:
            made = json.loads(body)
            name = f"{made['organization']}/{made['name']}"
            self.models.setdefault(name, {".gitattributes": b"*.safetensors filter=lfs\n"})
            return self._answer(200, {"url": f"{self._endpoint}/{name}"})
        _, owner, model, verb, _ = path
        if verb == "preupload":
            asked = json.loads(body)["files"]
            entries = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            return self._answer(200, {"files": entries})
        assert verb == "commit"
        for line in [json.loads(line) for line in body.splitlines()]:  # all of it, or nothing
            if line["key"] == "file":
                self.models[f"{owner}/{model}"][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del self.models[f"{owner}/{model}"][line["value"]["path"]]
        return self._answer(
            200, {"commitUrl": f"{self._endpoint}/{owner}/{model}/commit/{'0' * 40}", "commitOid": "0" * 40}
        )

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        if path[0] == "api":
            files = self.models.get("/".join(path[2:4]))
            if files is None:
                return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return self._answer(200, entries)
        data = self.models["/".join(path[:2])]["/".join(path[4:])]
        etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "0" * 40}
        return self._answer(200, data, etag)

    def do_HEAD(self) -> None:
        self.do_GET()

    @property
    def _endpoint(self) -> str:
        return f"http://{self.headers['Host']}"

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@contextmanager
def hub() -> Iterator[tuple[str, dict[str, dict[str, bytes]]]]:
    """Its address, and its models: files by name of the model."""
    models: dict[str, dict[str, bytes]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), {"models": models}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", models
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
