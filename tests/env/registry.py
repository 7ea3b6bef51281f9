#!/usr/bin/env python3
"""registry.py ARCHIVE PORT: serves the images of a docker archive as a registry on loopback, to be read only."""

import hashlib
import http.server
import json
import re
import sys
import tarfile

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"

blobs, manifests = {}, {}


def blob(data):
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return digest


def descriptor(kind, data):
    return {"mediaType": kind, "digest": blob(data), "size": len(data)}


def load(archive):
    with tarfile.open(archive) as tar:
        # Names may begin with `./`.
        files = {file.name.removeprefix("./"): tar.extractfile(file).read() for file in tar if file.isfile()}
    for image in json.loads(files["manifest.json"]):
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, files[image["Config"]]),
            "layers": [descriptor(LAYER, files[layer]) for layer in image["Layers"]],
        }
        digest = blob(json.dumps(manifest).encode())
        for tagged in image["RepoTags"]:
            name, tag = tagged.split("/", 1)[1].rsplit(":", 1)
            manifests[name, tag] = manifests[name, digest] = digest


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/?]+)", self.path)
        if self.path == "/v2/":
            self.answer(200, b"{}", "application/json")
        elif found and found[2] == "manifests" and (found[1], found[3]) in manifests:
            digest = manifests[found[1], found[3]]
            self.answer(200, blobs[digest], MANIFEST, digest)
        elif found and found[2] == "blobs" and found[3] in blobs:
            self.answer(200, blobs[found[3]], "application/octet-stream", found[3])
        else:
            self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', "application/json")

    do_HEAD = do_GET

    def answer(self, code, data, kind, digest=None):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


load(sys.argv[1])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
