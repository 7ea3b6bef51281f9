#!/usr/bin/env python3
"""Makes an Alpine package (format 2) of a tree of files, with Python's standard library alone.

    apk.py TREE PKGINFO SCRIPTS OUT [KEY]

TREE is what is installed, PKGINFO the fields that are known before (`name = value` lines), SCRIPTS a directory of scripts named
post-install, pre-deinstall and so on. The package is up to three gzip streams, one after the other: a signature (KEY: an RSA key
in PEM, whose public half is in the machines' /etc/apk/keys under the name KEY.pub), the control files, the data. The first two
are tar archives without their end, so that all three are one archive. The same input gives the same bytes.
"""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def entry(name, mode):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.uname, info.gname = mode, EPOCH, "root", "root"
    return info


def archive(members, has_end):
    """A compressed tar archive of (header, content) pairs."""
    out = io.BytesIO()
    tar = tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT)
    for info, content in members:
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    length = tar.offset
    tar.close()
    text = out.getvalue()
    return gzip.compress(text if has_end else text[:length], 9, mtime=0)


def data(tree):
    """What is installed: each file with its SHA-1, which apk keeps and verifies."""
    for directory, names, files in sorted(os.walk(tree)):
        relative = os.path.relpath(directory, tree)
        if relative != ".":
            info = entry(relative, os.stat(directory).st_mode & 0o7777)
            info.type = tarfile.DIRTYPE
            yield info, b""
        for name in sorted(files):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                content = file.read()
            info = entry(os.path.normpath(os.path.join(relative, name)), os.stat(path).st_mode & 0o7777)
            info.pax_headers = {"APK-TOOLS.checksum.SHA1": hashlib.sha1(content).hexdigest()}
            yield info, content


def main():
    tree, pkginfo, scripts, out = sys.argv[1:5]
    packed = archive(data(tree), True)
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(tree) for f in files)
    with open(pkginfo, encoding="utf-8") as file:
        text = file.read()
    text += f"size = {size}\nbuilddate = {EPOCH}\ndatahash = {hashlib.sha256(packed).hexdigest()}\n"
    control = [(entry(".PKGINFO", 0o644), text.encode())]
    for name in sorted(os.listdir(scripts)):
        with open(os.path.join(scripts, name), "rb") as file:
            control.append((entry("." + name, 0o755), file.read()))
    control = archive(control, False)
    signature = b""
    if len(sys.argv) > 5:
        key = sys.argv[5]
        signed = subprocess.run(["openssl", "dgst", "-sha1", "-sign", key], input=control, capture_output=True, check=True)
        name = f".SIGN.RSA.{os.path.basename(key)}.pub"
        signature = archive([(entry(name, 0o644), signed.stdout)], False)
    with open(out, "wb") as file:
        file.write(signature + control + packed)


main()
