"""Asks a headless Chromium about pages: a module runs in it and tells what it found."""

import functools
import http.server
import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

__all__ = ["ask", "framed"]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, one page more, and an ear for answers."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

    def __init__(self, *arguments: Any, page: bytes, answers: "queue.Queue[Any]", directory: str) -> None:
        self.page, self.answers = page, answers
        super().__init__(*arguments, directory=directory)

    def do_GET(self) -> None:
        if self.path != "/ask.html":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page)
        return None

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    """Keeps quiet about a browser that is gone."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def ask(folder: Path, script: str, *, body: str = "", width: int = 1280, timeout_s: float = 120) -> Any:
    """What `script` tells: the value, as JSON, that it returns.

    Args:
        folder: that is served at `/`.
        script: the inside of an asynchronous function; an error in it is raised here.
        body: of the page that it runs in.
        width: of the window, in pixels; Chromium has none narrower than 500 (see `framed`).
        timeout_s: for everything.

    Raises:
        RuntimeError: the script failed, or told nothing in time.
    """
    page = f"""<!doctype html><html><head><meta charset="utf-8"></head><body style="margin:0">{body}
<script type="module">
const failed = (error) => ({{ error: `${{error.stack}}` }});
const told = await (async () => {{ {script} }})().then((value) => ({{ value }}), failed);
await fetch("/told", {{ method: "POST", body: JSON.stringify(told) }});
</script></body></html>"""
    answers: queue.Queue[Any] = queue.Queue()
    handler = functools.partial(_Handler, page=page.encode(), answers=answers, directory=str(folder))
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},900"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["chromium", *options, "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{server.server_port}/ask.html"
        browser = subprocess.Popen([*command, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            told = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise RuntimeError(f"the browser told nothing within {timeout_s} s") from None
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
            server.server_close()
    if "error" in told:
        raise RuntimeError(f"the script failed in the browser: {told['error']}")
    return told.get("value")


def framed(address: str, width: int, height: int = 900) -> str:
    """A body with a page of the folder in a frame of a width, however narrow; scripts find it as `page`.

    Args:
        address: of the page, from `/`.
        width: in pixels.
        height: in pixels.
    """
    return f'<iframe id="page" src="{address}" style="border:0;width:{width}px;height:{height}px"></iframe>'
