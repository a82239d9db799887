"""Run scripts for quick_python.c, each in a fork of this process, which has imported what most of them need.

    python_server.py SOCKET
"""

import ast  # noqa: F401 (this and all others for the scripts)
import atexit
import base64
import collections
import contextlib
import ctypes
import errno
import fcntl
import gc
import hashlib
import io
import itertools
import json
import math
import mmap
import os
import pickle
import random
import re
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import traceback
import types
import zipfile
import zlib

HEAD = struct.Struct("=3I")
MOST_FILES = 65
FREE = 256  # descriptors from here on are not in use

# These are imported only for the scripts; mentioning them here satisfies pyflakes.
assert all((ast, base64, collections, contextlib, ctypes, errno, hashlib, itertools, json, math, mmap, pickle, random, re, shutil,
            stat, subprocess, time, zipfile, zlib))

encoding, errors = sys.stdout.encoding, sys.stdout.errors
codes = {}  # file: (identity, code)


def code_of(path, name):
    """The code of a script, which is compiled only once."""
    try:
        st = os.stat(path)
        known = st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns
        if codes.get(path, [None])[0] != known:
            with open(path, "rb") as f:
                codes[path] = known, compile(f.read(), name, "exec")
        return codes[path][1]
    except (OSError, SyntaxError, ValueError):
        return None  # the fork will report the error


def become(fds, numbers, words, environment, code):
    """Make the fork look like a new process."""
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE) for fd in fds]
    os.closerange(0, FREE)
    os.fchdir(fds[-1])
    for fd, number in zip(fds, numbers):
        os.dup2(fd, number, inheritable=True)
    os.closerange(FREE, FREE + 4 * MOST_FILES)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environb.clear()
    os.environb.update(e.split(b"=", 1) for e in environment if b"=" in e)

    def stream(fd, mode):
        if fd not in numbers:
            return None
        raw = open(fd, mode + "b", -1 if fd < 2 else 0, closefd=False)
        return io.TextIOWrapper(raw, encoding, "backslashreplace" if fd == 2 else errors, line_buffering=fd == 2 or raw.isatty(),
                                write_through=fd == 2)

    sys.stdin, sys.stdout, sys.stderr = stream(0, "r"), stream(1, "w"), stream(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    first = os.fsdecode(words[0])
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if first == "-c":
        sys.path[0] = ""
        code = compile(words[1], "<string>", "exec")
        del words[1]
    elif first == "-":
        sys.path[0] = ""
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec")
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        main.__file__ = first
        if not code:
            with open(first, "rb") as f:
                code = compile(f.read(), first, "exec")
    sys.argv = [os.fsdecode(w) for w in words]
    exec(code, main.__dict__)


def status_of(run):
    """The exit status that Python would have for this, after its usual end: exit handlers, flushing, errors."""
    status = 0
    try:
        run()
    except SystemExit as e:
        status = 0 if e.code is None else e.code if isinstance(e.code, int) else 1
        if status == 1 and e.code is not None and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
    except BaseException as e:
        inner = e.__traceback__
        while inner and inner.tb_frame.f_code.co_filename == __file__:
            inner = inner.tb_next
        traceback.print_exception(e.with_traceback(inner))
        if isinstance(e, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        status = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.modules["__main__"].__dict__.clear()  # closes forgotten files
        gc.collect()
        sys.stdout and sys.stdout.flush()
    except BaseException as e:
        traceback.print_exception(e)
        status = 120
    return status & 0xff


class Server:
    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.wanted = selectors.DefaultSelector()
        self.wanted.register(self.listener, selectors.EVENT_READ, self.accept)
        gc.collect()
        gc.freeze()  # otherwise each fork would copy all pages with objects

    def run(self):
        while True:
            for key, _ in self.wanted.select():
                if self.wanted.get_map().get(key.fd) is key and (run := key.data()):
                    return run  # this is a fork

    def accept(self):
        connection = self.listener.accept()[0]
        data, fds, _, _ = socket.recv_fds(connection, 1 << 20, MOST_FILES)
        if len(data) < HEAD.size:
            connection.close()
            return None
        size, n_words, n_fds = HEAD.unpack_from(data)
        while len(data) < HEAD.size + size:
            data += connection.recv(1 << 20) or sys.exit("half a request")
        numbers = struct.unpack_from(f"={n_fds}i", data, HEAD.size)
        texts = data[HEAD.size + 4 * n_fds:].split(b"\0")[:-1]
        words = texts[:n_words]
        code = None if words[0] in (b"-", b"-c") else code_of(os.path.join(f"/proc/self/fd/{fds[-1]}", os.fsdecode(words[0])), os.fsdecode(words[0]))
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            return lambda: become(fds, numbers, words, texts[n_words:], code)
        for fd in fds:
            os.close(fd)
        ended = os.pidfd_open(pid)
        self.wanted.register(ended, selectors.EVENT_READ, lambda: self.bury(pid, ended, connection))
        self.wanted.register(connection, selectors.EVENT_READ, lambda: self.hung_up(pid, connection))
        return None

    def bury(self, pid, ended, connection):
        _, status = os.waitpid(pid, 0)
        self.wanted.unregister(ended)
        os.close(ended)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self.wanted.unregister(connection)
            connection.send(struct.pack("=i", status))
        connection.close()

    def hung_up(self, pid, connection):
        """The client has been killed."""
        self.wanted.unregister(connection)
        for kill in os.killpg, os.kill:
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(status_of(Server(sys.argv[1]).run()))
