"""Run in network and mount namespaces of their own: servers on public and private addresses, which redirect to each other.

    redirects.py CKPTFS FILE.safetensors
"""

import fcntl
import http.server
import os
import re
import socket
import struct
import subprocess
import sys
import threading

program, path = sys.argv[1:]
PUBLIC, OTHER, PRIVATE, LINK_LOCAL = "198.51.100.7", "203.0.113.8", "10.1.2.3", "169.254.169.254"
NAMES = {"public.example": OTHER, "private.example": PRIVATE, "link-local.example": LINK_LOCAL, "localhost": "127.0.0.1"}

# The server that the user names, the one that it redirects to, and whether that is right.
CASES = [
    (PUBLIC, OTHER, True),
    (PUBLIC, "public.example", True),
    (PUBLIC, PUBLIC, True),
    ("public.example", PUBLIC, True),
    (PUBLIC, PRIVATE, False),
    (PUBLIC, "private.example", False),
    (PUBLIC, "127.0.0.1", False),
    (PUBLIC, "0x7f.1", False),
    (PUBLIC, "localhost", False),
    (PUBLIC, "[::ffff:10.1.2.3]", False),
    (PUBLIC, LINK_LOCAL, False),
    (PUBLIC, "0.0.0.0", False),
    (PRIVATE, OTHER, True),
    (PRIVATE, "127.0.0.1", True),
    ("127.0.0.1", "private.example", True),
    ("localhost", PRIVATE, True),
    ("127.0.0.1", LINK_LOCAL, False),
    ("private.example", "link-local.example", False),
    # Back to where there is a connection.
    (PUBLIC, f"public.example/to/{PUBLIC}", True),
    ("private.example", f"{PUBLIC}/to/private.example", False),
    ("private.example", f"{PUBLIC}/to/private.example:80", False),
    ("private.example", f"{PUBLIC}/to/PRIVATE.example:080", False),
]

# With a proxy at PUBLIC, which reaches all: no_proxy, and as above.
PROXY_CASES = [
    ("", OTHER, "public.example", True),
    ("", OTHER, "private.example", True),
    ("", OTHER, PRIVATE, False),
    ("", "private.example", PRIVATE, False),
    ("private.example", "private.example", PRIVATE, True),
    ("private.example", "private.example", "127.0.0.1", True),
    (".example, x", "private.example", "localhost", True),
    ("10.0.0.0/8", "private.example", PRIVATE, False),
    ("10.0.0.0/8", PRIVATE, "private.example", True),
    ("private.example", "public.example", "private.example", False),
    ("example", OTHER, "private.example:80", False),
    ("*", "public.example", "private.example", False),
    ("link-local.example", "private.example", "link-local.example", False),
]

with open(path, "rb") as f:
    content = f.read()
asked = []


class Handler(http.server.BaseHTTPRequestHandler):
    """/to/HOST/NAME is on that host, as /NAME. As a proxy, it answers itself."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.path = re.sub(r"^http://[^/]+", "", self.path)
        to = re.fullmatch(r"/to/([^/]+)(/.*)", self.path)
        if to:
            self.answer(302, b"", {"Location": f"http://{to[1]}{to[2]}"})
            return
        asked.append(self.path)
        at = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.path != "/model.safetensors":
            self.answer(404, b"", {})
        elif at:
            first, last = int(at[1]), min(int(at[2]), len(content) - 1)
            self.answer(206, content[first:last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}", "ETag": '"1"'})
        else:
            self.answer(200, content, {"ETag": '"1"'})

    do_HEAD = do_GET

    def answer(self, status, body, fields):
        self.send_response(status)
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


def add_address(s, name, address):
    """The loopback interface gets another address."""
    SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 1
    fcntl.ioctl(s, SIOCSIFADDR, struct.pack("16sH2x4s8x", name, socket.AF_INET, socket.inet_aton(address)))
    fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", name, IFF_UP))


with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for i, address in enumerate(["127.0.0.1", PUBLIC, OTHER, PRIVATE, LINK_LOCAL]):
        add_address(s, b"lo:%d" % i if i else b"lo", address)
with open("hosts", "w") as f:
    f.writelines(f"{address} {name}\n" for name, address in NAMES.items())
subprocess.run(["mount", "--bind", "hosts", "/etc/hosts"], check=True)
server = http.server.ThreadingHTTPServer(("", 80), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()

failed = 0
for no_proxy, named, to, right in [(None, *case) for case in CASES] + PROXY_CASES:
    asked.clear()
    proxy = {} if no_proxy is None else {"http_proxy": f"http://{PUBLIC}:80", "no_proxy": no_proxy}
    r = subprocess.run([program, "ls", f"http://{named}/to/{to}/model.safetensors", "--index=:memory:", "-o", "cache_dir=none"],
                       capture_output=True, text=True, env={**os.environ, **proxy})
    is_right = r.returncode == 0 and bool(asked) if right else \
        r.returncode != 0 and not asked and "private or link-local" in r.stderr
    if not is_right:
        print(f"{named} -> {to} (no_proxy {no_proxy}): {r.returncode} {asked} {r.stderr}")
        failed = 1
os._exit(failed)
