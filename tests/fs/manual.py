#!/usr/bin/env python3
"""Run the commands that a page shows, and compare what they print with what it shows:

    manual.py PAGE WORLD

PAGE is a manual page (mdoc) or Markdown. A command is a line "$ COMMAND" of a literal block, with the lines that the
shell needs to complete it; the lines after it, up to the next command, are its output. "..." in an output stands for
anything, and a line that ends in a backslash continues on the next one. If no output is shown, any output will do. A
command must exit with 0, or with 1 if its output is shown.

Each block runs in a copy of the directory WORLD, in one shell: later commands see what earlier ones did.
"""

import os
import re
import shutil
import subprocess
import sys


def mdoc_blocks(text):
    """The literal blocks of a page, as readers see them."""
    for block in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed$|^\.Dl (\$ [^\n]*)$", text, re.S | re.M):
        lines = "".join(block).splitlines()
        yield [re.sub(r"\\(&|e|\(dq)", lambda m: {"&": "", "e": "\\", "(dq": '"'}[m[1]], s) for s in lines]


def markdown_blocks(text):
    for block in re.findall(r"^```[a-z]*\n(.*?)^```$", text, re.S | re.M):
        yield block.splitlines()


def is_complete(command):
    if command.endswith("\\"):
        return False
    return not subprocess.run(["bash", "-nc", command], stderr=subprocess.DEVNULL).returncode


def commands(lines):
    """Pairs of a command and the lines of its output; none for a block without commands."""
    found = []
    open_command = False
    for line in lines:
        if open_command:
            found[-1][0] += "\n" + line
        elif line.startswith("$ "):
            found.append([line[2:], []])
        elif found:
            found[-1][1].append(line)
        else:
            return []
        open_command = not is_complete(found[-1][0])
    if open_command:
        sys.exit(f"not complete: {found[-1][0]}")
    for pair in found:
        while pair[1] and not pair[1][-1]:
            pair[1].pop()
    return found


def same(shown, printed):
    shown = re.sub(r" *\\\n *", " ... ", shown)
    pattern = ".*".join(re.escape(part) for part in re.split(r" *\.\.\. *", shown))
    return re.fullmatch(pattern, printed, re.S)


def run(block, where):
    """Runs a block of commands; returns (status, output) of each."""
    script = "".join(f'{{ {command}\n}} >"$OUT.{i}" 2>&1 </dev/null; echo $? >"$OUT.{i}.status"\n'
                     for i, (command, _) in enumerate(block))
    out = where + ".out"
    subprocess.run(["bash", "-c", script], cwd=where, env=os.environ | {"OUT": out}, timeout=240)
    # What the block leaves mounted.
    subprocess.run(["umount", "-l", where + "/mnt"], stderr=subprocess.DEVNULL)
    ended = []
    for i in range(len(block)):
        with open(f"{out}.{i}", errors="replace") as f, open(f"{out}.{i}.status") as status:
            ended.append((int(status.read()), f.read()))
    return ended


def main(page, world):
    with open(page) as f:
        text = f.read()
    blocks = markdown_blocks(text) if page.endswith(".md") else mdoc_blocks(text)
    count = 0
    bad = []
    for n, lines in enumerate(blocks):
        block = commands(lines)
        if not block:
            continue
        where = os.path.abspath(f"block-{n}")
        shutil.copytree(world, where, symlinks=True)
        for (command, shown), (status, printed) in zip(block, run(block, where)):
            count += 1
            if status != 0 and not (status == 1 and shown):
                bad.append(f"$ {command}\nexit status {status}: {printed}")
            elif shown and not same("\n".join(shown), printed.rstrip("\n")):
                bad.append(f"$ {command}\nprinted:\n{printed}not:\n" + "\n".join(shown))
    print(f"{count} commands")
    sys.exit("\n".join(bad) or (0 if count else "no commands"))


if __name__ == "__main__":
    main(*sys.argv[1:])
