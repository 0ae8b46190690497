"""A headless Chromium, spoken to over its debugging pipe: what a page says, asks of the network and looks like."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

FLAGS = ("--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions --no-first-run "
         "--disable-background-networking --disable-component-update --disable-sync --mute-audio "
         "--hide-scrollbars --remote-debugging-pipe").split()


def find():
    """The program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. events: what the page did since open(), as the protocol says it."""

    def __init__(self, timeout_s=120):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.timeout_s, self.number, self.session, self.events, self.rest = timeout_s, 0, None, [], b""
        to_read, self.write_fd = os.pipe()
        self.read_fd, to_write = os.pipe()
        # The program reads commands from 3 and writes answers to 4, wherever our ends are.
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&%d 4>&%d' % (to_read, to_write), "sh", find(), *FLAGS,
             "--user-data-dir=" + self.folder.name],
            pass_fds=(to_read, to_write), env={**os.environ, "TMPDIR": self.folder.name},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self.read_fd, False)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def _message(self, until):
        while b"\0" not in self.rest:
            if time.monotonic() > until:
                raise TimeoutError("the browser does not answer")
            try:
                more = os.read(self.read_fd, 1 << 20)
                if not more:
                    raise EOFError("the browser has ended")
                self.rest += more
            except BlockingIOError:
                time.sleep(0.01)
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + self.timeout_s
        while True:
            message = self._message(until)
            if message.get("id") == self.number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.events.append(message)

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        until = time.monotonic() + self.timeout_s
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message(until))
        self.evaluate("1")

    def evaluate(self, expression):
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def complaints(self):
        """Console messages, exceptions, logged errors."""
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [e for e in self.events if e.get("method") in bad]

    def requests(self):
        """What was asked for beside the file itself."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [u for u in urls[1:] if not u.startswith("data:")]

    def look(self, width, height, dark, path):
        self.size(width, height, dark)
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(path, "wb") as out:
            out.write(base64.b64decode(shot["data"]))

    def size(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def key(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode={"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Enter": 13}.get(key, 0))

    def close(self):
        """Asked to, it ends its own processes first: nothing of it is left in the folder, or in TMPDIR."""
        try:
            os.write(self.write_fd, json.dumps({"id": self.number + 1, "method": "Browser.close"}).encode() + b"\0")
            self.process.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.read_fd)
        os.close(self.write_fd)
        self.folder.cleanup()
