#!/usr/bin/env python3
"""Writes what the program of one target is made of, as CycloneDX 1.5 in JSON: its crates with licence, sum and dependencies, and
what is linked beside them.

    sbom.py TARGET VERSION-OF-RUSTC >FILE
    sbom.py --validate FILE...       against CycloneDX's own schema, with its library (tests/env/setup.sh sbom)

From cargo's own metadata. SOURCE_DATE_EPOCH is its time; the same source gives the same bytes.
"""

import json
import os
import subprocess
import sys
import time
import uuid

# One that cargo does not know of, and that is in every program of a static target.
BESIDE = [
    ("musl", "MIT", "the C library"),
    ("compiler-rt", "MIT", "the compiler's routines, of Zig"),
]


def cargo(*words):
    run = subprocess.run(["cargo", *words, "--locked", "--offline"], capture_output=True, check=True, text=True)
    return run.stdout


def checksums():
    """Of each crate of Cargo.lock the sum of its archive."""
    import tomllib

    with open("Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(p["name"], p["version"]): p.get("checksum") for p in packages}


def component(package, sums):
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    out = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl}
    if package.get("description"):
        out["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # Cargo's older form of OR.
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if package.get("repository"):
        out["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    if sums.get((package["name"], package["version"])):
        out["hashes"] = [{"alg": "SHA-256", "content": sums[package["name"], package["version"]]}]
    return out


def document(target, rustc):
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", target))
    packages = {package["id"]: package for package in metadata["packages"]}
    # What only the build has (build scripts, proc macros) is not in the program.
    tree = cargo("tree", "--edges", "normal,no-proc-macro", "--target", target, "--prefix", "none", "--no-dedupe", "--format", "{p}")
    inside = {tuple(line.replace(" v", " ", 1).split(" ")[:2]) for line in tree.splitlines() if line}
    named = {id: package for id, package in packages.items() if (package["name"], package["version"]) in inside}
    root = metadata["resolve"]["root"]
    sums = checksums()
    ref = {id: f"pkg:cargo/{package['name']}@{package['version']}" for id, package in named.items()}
    components = [component(package, sums) for id, package in named.items() if id != root]
    components.append({"type": "library", "bom-ref": "rust-std", "name": "std", "version": rustc,
                       "description": "Rust's standard library", "licenses": [{"expression": "MIT OR Apache-2.0"}]})
    for name, license, what in BESIDE:
        components.append({"type": "library", "bom-ref": name, "name": name, "description": what,
                           "licenses": [{"license": {"id": license}}]})
    dependencies = []
    for node in metadata["resolve"]["nodes"]:
        if node["id"] not in named:
            continue
        on = {ref[d["pkg"]] for d in node["deps"] if d["pkg"] in ref and any(k["kind"] is None for k in d["dep_kinds"])}
        if node["id"] == root:
            on |= {"rust-std"} | {name for name, _, _ in BESIDE}
        dependencies.append({"ref": ref[node["id"]], "dependsOn": sorted(on)})
    dependencies += [{"ref": name, "dependsOn": []} for name in ["rust-std", *(name for name, _, _ in BESIDE)]]
    own = component(packages[root], sums)
    own["type"] = "application"
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    out = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": own,
            "properties": [{"name": "cargo:target", "value": target}],
        },
        "components": sorted(components, key=lambda c: c["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda d: d["ref"]),
    }
    text = json.dumps(out, sort_keys=True)
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}", **out}


def validate(paths):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    for path in paths:
        with open(path, encoding="utf-8") as file:
            wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(file.read())
        if wrong is not None:
            sys.exit(f"{path}: {wrong}")


if sys.argv[1:2] == ["--validate"]:
    validate(sys.argv[2:])
else:
    json.dump(document(sys.argv[1], sys.argv[2]), sys.stdout, indent=1, ensure_ascii=False)
    print()
