"""Lets plimsoll download a model from a hub on loopback and finds it with Python's huggingface_hub. Writes nothing that stays.

    python reference/hub_cache.py target/release/plimsoll FOLDER

FOLDER holds a model: config.json, tokenizer.json, model.safetensors. A small server shows it as `owner/model`, with git's hash as
the tag of small files and SHA-256 as that of the weights, which it sends after a redirect, as the hub does. Checked are

    found       snapshot_download(local_files_only=True) returns the folder, every file the same
    whole       scan_cache_dir finds one model, one revision called `main`, and nothing to warn of
    shared      huggingface_hub, asked online, downloads none of the files again
    resumed     a download that Python began under `<tag>.incomplete` is gone on with
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BINARY, FOLDER = sys.argv[1], Path(sys.argv[2])
FILES = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}
asked = []


def tag(name: str) -> str:
    content = FILES[name]
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        asked.append((self.command, self.path, self.headers.get("Range")))
        name = self.path.rsplit("/", 1)[-1].split("?")[0]
        if self.path.startswith("/api/models/owner/model"):
            import json
            siblings = [{"rfilename": name} for name in FILES]
            return self.answer(200, json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": siblings}).encode())
        if name not in FILES:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        content, headers = FILES[name], {"ETag": f'"{tag(name)}"', "X-Repo-Commit": COMMIT}
        if name.endswith(".safetensors") and not self.path.startswith("/storage"):
            headers |= {"X-Linked-ETag": f'"{tag(name)}"', "X-Linked-Size": str(len(content))}
            headers |= {"Location": f"http://localhost:{self.server.server_port}/storage/{name}"}
            return self.answer(302, b"", headers)
        first = int(self.headers["Range"][len("bytes="):].split("-")[0]) if self.headers.get("Range") else None
        if first is None:
            return self.answer(200, content, headers)
        headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        return self.answer(206, content[first:], headers)

    def answer(self, status: int, body: bytes, headers: dict | None = None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def check(what: str, holds: bool):
    print(f"{what:10} {'ok' if holds else 'WRONG'}")
    if not holds:
        raise SystemExit(1)


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        os.environ |= {"HF_HOME": home, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
        weights = "model.safetensors"
        blobs = Path(home, "hub/models--owner--model/blobs")
        blobs.mkdir(parents=True)
        (blobs / f"{tag(weights)}.incomplete").write_bytes(FILES[weights][:1000])
        command = [BINARY, "generate", "--model", "owner/model", "--prompt", "a", "--max-new-tokens", "1"]
        done = subprocess.run(command, capture_output=True, env={**os.environ})
        if done.returncode != 0:
            raise SystemExit(done.stderr.decode())

        import huggingface_hub
        needed = [name for name in FILES if Path(home, "hub/models--owner--model/snapshots", COMMIT, name).exists()]
        print(f"huggingface_hub {huggingface_hub.__version__}, files: {', '.join(sorted(needed))}")
        check("resumed", any(asked_for == "bytes=1000-" for _, _, asked_for in asked))
        folder = Path(huggingface_hub.snapshot_download("owner/model", local_files_only=True, allow_patterns=needed))
        check("found", all((folder / name).read_bytes() == FILES[name] for name in needed) and weights in needed)
        cache = huggingface_hub.scan_cache_dir()
        revisions = [revision for repo in cache.repos for revision in repo.revisions]
        check("whole", not cache.warnings and len(revisions) == 1 and revisions[0].refs == {"main"})
        asked.clear()
        for name in needed:
            huggingface_hub.hf_hub_download("owner/model", name)
        check("shared", all(method == "HEAD" for method, path, _ in asked if not path.startswith("/api/")))


main()
