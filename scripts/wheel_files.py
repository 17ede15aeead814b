#!/usr/bin/env python3
"""Takes files out of a wheel of Python's package index without downloading the rest of it.

    scripts/wheel_files.py PACKAGE==VERSION FOLDER NAME=SHA256…

pip says where the wheel is, so its settings (index, mirrors) hold. A wheel is a zip archive: the list of its files is at
its end, and each file is one range of bytes. A wheel of cuDNN has 366 MB; the three files that plan attention take 17.
A file appears in FOLDER whole, with the stated hash, or not at all; files that are there already are left alone.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

TIMEOUT = 30  # seconds without a byte
TAIL = 1 << 16  # bytes that hold the list of files of any wheel we take


class Remote(io.RawIOBase):
    """A file behind an address, read by ranges of bytes."""

    def __init__(self, url):
        self.url = url
        self.at = 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT) as answer:
            self.length = int(answer.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        return self.at

    def readinto(self, buffer):
        count = min(len(buffer), self.length - self.at)
        if count <= 0:
            return 0
        wanted = {"Range": f"bytes={self.at}-{self.at + count - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=wanted), timeout=TIMEOUT) as answer:
            if answer.status != 206:
                raise OSError("the server of the wheel does not send parts of files")
            read = answer.readinto(memoryview(buffer)[:count])
        self.at += read
        return read


def opened(url, buffer):
    """The archive, read in pieces of `buffer` bytes."""
    if url.startswith("file:"):
        return zipfile.ZipFile(urllib.request.url2pathname(url[len("file://") :]))
    return zipfile.ZipFile(io.BufferedReader(Remote(url), buffer))


def address(requirement):
    """Where pip would take the wheel from."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--only-binary", ":all:", "--quiet", "--report", "-", requirement]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        said = answer.stderr.strip().splitlines()
        raise OSError(f"pip does not find {requirement}: {said[-1] if said else 'no reason given'}")
    return json.loads(answer.stdout)["install"][0]["download_info"]["url"]


def take(url, member, target, wanted):
    """Writes one file of the archive, in one request."""
    content = opened(url, member.compress_size + TAIL).read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise OSError(f"{member.filename} has the hash {found} instead of {wanted}")
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(target), delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, target)


def main(requirement, folder, *files):
    wanted = dict(file.split("=") for file in files)
    missing = [name for name in wanted if not os.path.exists(os.path.join(folder, name))]
    if not missing:
        return
    os.makedirs(folder, exist_ok=True)
    url = address(requirement)
    members = {os.path.basename(member.filename): member for member in opened(url, TAIL).infolist()}
    for name in missing:
        if name not in members:
            raise OSError(f"the wheel of {requirement} has no {name}")
        take(url, members[name], os.path.join(folder, name), wanted[name])


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"{sys.argv[1]} was not fetched: {error}")
