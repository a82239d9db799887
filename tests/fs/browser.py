"""Drive Chromium so that a page cannot tell it from somebody at a keyboard.

    with Browser(shots) as b:    # a directory, or "" for no pictures
        page = b.open("file:///.../report.html", dark=True)
        page.key("/")
        page.type("q_proj")
        page.wait("document.querySelectorAll('.row').length == 3")
        page.value("document.title")
        page.shot("search")
    b.complaints    # what the pages said on their console, and what they tried to load

It speaks the DevTools protocol over a pipe, without a port or a package. Chromium resolves no names and can reach only
this machine.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import sys
import time

LIMIT = 120  # seconds that anything may take; the machine may be busy


def start(home):
    """Make the directory home and become a Chromium that is driven through the pipes home/to and home/from."""
    os.mkdir(home)
    for fd, name in ((3, "to"), (4, "from")):  # opened for reading and writing, so that it never sees their end
        path = os.path.join(home, name)
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)
        if pipe == fd:
            os.set_inheritable(fd, True)
        else:
            os.dup2(pipe, fd)
            os.close(pipe)
    os.execvpe(
        "chromium",
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
         "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars", "--force-device-scale-factor=1",
         f"--user-data-dir={home}", "about:blank"],
        {**os.environ, "HOME": home, "DBUS_SESSION_BUS_ADDRESS": "disabled:"})


class Browser:
    """A separate profile in $BROWSER, the Chromium of all suites (check.sh) or of one (start_browser in lib.sh)."""

    def __init__(self, shots):
        self.shots = shots
        self.complaints = []
        self.requests = []
        self.sessions = set()
        self.number = os.getpid() % 100000 * 10000  # differs from those of an earlier test that was killed
        self.left = b""
        end = time.monotonic() + LIMIT
        while not os.path.exists(os.environ["BROWSER"] + "/from"):
            assert time.monotonic() < end, "no Chromium"
            time.sleep(0.02)
        self.turn = os.open(os.environ["BROWSER"] + "/turn", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.turn, fcntl.LOCK_EX)  # the tests of other suites use the same pipes
        self.to, self.from_ = (os.open(os.path.join(os.environ["BROWSER"], name), os.O_RDWR) for name in ("to", "from"))
        self.profile = self.call("Target.createBrowserContext")["browserContextId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, RuntimeError):
            self.call("Target.disposeBrowserContext", browserContextId=self.profile)
        for fd in (self.to, self.from_, self.turn):
            os.close(fd)

    def receive(self):
        while b"\0" not in self.left:
            if not select.select([self.from_], [], [], LIMIT)[0]:
                raise RuntimeError(f"Chromium has not answered for {LIMIT} s")
            self.left += os.read(self.from_, 1 << 20)
        line, self.left = self.left.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, session=None, **params):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        p = event.get("params", {})
        if event.get("sessionId") not in self.sessions:
            return
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(p["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled":
                self.complaints.append(f"{p['type']}: {[a.get('description', a.get('value')) for a in p['args']]}")
            case "Log.entryAdded":
                self.complaints.append(p["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(p["request"]["url"])

    def open(self, url, dark=False, width=1440, height=1000):
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self.profile)["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self.sessions.add(page.session)
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.call("Page.navigate", url=url)
        page.wait("document.documentElement?.dataset.ready == 'yes'")
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, condition):
        end = time.monotonic() + LIMIT
        while not self.value(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"never: {condition}")
            time.sleep(0.02)

    def key(self, key, text=None):
        text = key if text is None and len(key) == 1 else text
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        x, y = self.value(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{ block: 'nearest' }}); "
                          "const b = e.getBoundingClientRect(); "
                          "return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        self.click_at(x, y)

    def click_at(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def shot(self, name, whole=False):
        self.call("Page.bringToFront")  # a page in the background may never be painted
        if not self.browser.shots:
            return
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(os.path.join(self.browser.shots, name + ".png"), "wb") as f:
            f.write(base64.b64decode(picture["data"]))


if __name__ == "__main__":
    start(sys.argv[1])
