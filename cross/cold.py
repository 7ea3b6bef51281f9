#!/usr/bin/env python3
"""Finds out which functions no process runs, or only in a cluster, or only as the container runtime: writes cross/cold.txt,
cross/cluster.txt and cross/embedded.txt for build.rs.

    cold.py MAP alone=TRACE cluster=TRACE embedded=TRACE ...

MAP is the linker's map of a release binary of x86-64, each TRACE what qemu has translated of that very binary:

    ZIG_LINK="--pack-dyn-relocs=relr --icf=all -Map=MAP" cargo build ...      (with the exports of cross/arm.sh env)
    qemu-x86_64-static -d in_asm,page -D TRACE smolet run ...

Those of the files: alone= an agent with the ten examples and idle pods on containerd; cluster= 500 Jobs of tests/attack/burst.rs, with a
script for SMOLET_BIN; embedded= an agent with pods that are probed and restarted, and a monitor; some minutes each. A processor has
instructions that qemu has not (SHA): `perf record -e page-faults -c 1 -d -a` shows what is cold and runs all the same, and a line
`0xADDRESS:  90 ` in a further trace, BASE added, says so. Nor does qemu let monitors adopt processes (`PR_SET_CHILD_SUBREAPER`): theirs are
such traces, of single steps (ptrace).

A pattern has as few parts of a name as tell what is cold from the rest. Less than BYTES_MIN have none: such functions come and go with
what the compiler inlines. What is in the embedded runtime's segment is apart already. A pattern of before stays while it names something
and nothing that is warmer: what this run has not done (commands, pulls, the CRI) is no warmer for it.
"""

import collections
import fnmatch
import os
import re
import sys

BYTES_MIN = 128
# Where qemu loads it.
BASE = 0x4000000000


def functions(path):
    """(name, address, size, is_apart, is_alias) of each function; an alias is one that was the same as another."""
    is_apart = False
    for line in open(path, errors="replace"):
        found = re.match(r"\s*([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)\s+\d+( +)(.*)$", line)
        if not found or not int(found[2], 16):
            continue
        at, size, what = int(found[1], 16), int(found[2], 16), found[4]
        if what.startswith("."):
            is_apart = what == ".text.embedded"
        elif section := re.search(r":\(\.text\.(?:unlikely\.|hot\.)?(_[ZR].*)\)$", what):
            yield section[1], at, size, is_apart, False
        elif re.search(r"::h[0-9a-f]{16}$", what):
            # The map has it without the lengths.
            parts = "".join(f"{len(part)}{part}" for part in what.split("::")[:-1])
            yield f"_ZN{parts}17h{what[-16:]}E", at, size, is_apart, True


def executed(path, ran):
    for line in open(path, errors="replace"):
        found = re.match(r"0x([0-9a-f]+):\s+((?:[0-9a-f]{2} )+)", line)
        if found and 0 <= (at := int(found[1], 16) - BASE) < len(ran):
            length = len(found[2].split())
            ran[at : at + length] = b"\1" * length


def plain(name):
    """The name without hashes and lengths of types, which each compiler makes anew."""
    name = re.sub(r"17h[0-9a-f]{16}E.*$|\.\d+$", "", name)
    name = re.sub(r"Cs[0-9a-zA-Z]+_", "Cs*_", name)
    return re.sub(r"^(_ZN(?:4core3ptr)?)\d+(?=_?\$LT\$|drop_in_place)", r"\1*", re.sub(r"^_ZN\d+_", "_ZN*_", name))


def patterns(name):
    """From the widest to the name itself: up to each part of its path, and of a type in it."""
    name, at, ends = plain(name), 3, []
    if name.startswith("_ZN*"):
        ends = [found.end() for found in re.finditer(r"\.\.|\$GT\$", name)]
    elif name.startswith("_ZN"):
        while number := re.match(r"\d+|\*", name[at:]):
            if number[0] == "*":
                ends += [at + found.end() for found in re.finditer(r"\.\.|\$GT\$", name[at:])]
                break
            at += len(number[0]) + int(number[0])
            ends.append(at)
    return [name[:end] + "*" for end in ends if end < len(name)] + [name + "*"]


def former(path, functions_of, warmer):
    """The patterns of the file that still hold."""
    for line in open(path).read().splitlines()[1:]:
        fits = re.compile(fnmatch.translate(line)).match
        kinds = {of for name, of, is_alias in functions_of if fits(name) and not (is_alias and of == "cold")}
        if kinds and not kinds & warmer:
            yield line


def write(path, patterns):
    with open(path, "w") as file:
        print("# Made by cross/cold.py, which says how.", *sorted(patterns), sep="\n", file=file)


def main():
    all_functions = list(functions(sys.argv[1]))
    ran = {kind: bytearray(16 << 20) for kind in ("alone", "cluster", "embedded")}
    for argument in sys.argv[2:]:
        kind, trace = argument.split("=", 1)
        executed(trace, ran[kind])
    # Bytes by pattern: each function is of the first kind that runs it.
    kinds = [*ran, "cold"]
    bytes_of = {kind: collections.Counter() for kind in kinds}
    functions_of = []
    for name, at, size, is_apart, is_alias in all_functions:
        kind = next((kind for kind in ran if any(ran[kind][at : at + size])), "cold")
        functions_of.append((name, kind, is_apart, is_alias))
        for one in patterns(name):
            bytes_of[kind][one] += 0 if is_alias and kind == "cold" else size
    for index, kind in enumerate(kinds[1:], 1):
        chosen = set()
        warmer = [bytes_of[other] for other in kinds[:index]]
        for name, of, is_apart, is_alias in functions_of:
            if of == kind and not is_apart and not is_alias:
                fit = (one for one in patterns(name) if not any(warm[one] for warm in warmer))
                chosen.update([one for one in fit if bytes_of[kind][one] >= BYTES_MIN][:1])
        path = f"{os.path.dirname(__file__)}/{kind}.txt"
        all_of = [(name, of, is_alias) for name, of, _, is_alias in functions_of]
        write(path, chosen.union(former(path, all_of, set(kinds[:index]))))


if __name__ == "__main__":
    main()
