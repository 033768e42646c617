"""A headless Chromium for tests, spoken to through chromedriver (WebDriver over HTTP): no library, no network."""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

MISSING = "needs chromium and chromedriver on PATH: apt-get install chromium chromium-driver"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
]  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "ArrowRight": 39}


def there():
    """Whether both programs are installed."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Browser:
    """One window."""

    def __init__(self, port, profile):
        self.base = f"http://127.0.0.1:{port}"
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self.base += f"/session/{self.ask('/session', capabilities=wanted)['sessionId']}"

    def ask(self, path, method="POST", **body):
        data = json.dumps(body).encode() if method == "POST" else None
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, data, head, method=method)  # noqa: S310 - our own driver
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the driver is on this machine
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command, **params):
        return self.ask("/goog/cdp/execute", cmd=command, params=params)

    def show(self, path, width, height, scheme="light", media=""):
        """Open a file in a window of this size, under a colour scheme."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.devtools("Emulation.setEmulatedMedia", media=media,
                      features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        self.ask("/url", url=Path(path).resolve().as_uri())

    def run(self, script, *args):
        """What a function's body returns in the page."""
        return self.ask("/execute/sync", script=script, args=list(args))

    def key(self, name):
        """Press a key, named as the DOM names it."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.devtools("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS[name],
                          **text)  # fmt: skip

    def hover(self, x, y):
        self.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def shoot(self, path, *, whole=True):
        got = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": {**self.run("const r = document.documentElement; return {x: 0, y: 0, width: r.clientWidth,"
                                 "height: r.scrollHeight}"), "scale": 1}} if whole else {}))  # fmt: skip
        Path(path).write_bytes(base64.b64decode(got["data"]))

    def log(self):
        """What the page complained about."""
        return [entry["message"] for entry in self.ask("/se/log", type="browser")]


@contextmanager
def browser(folder):
    """A browser whose profile lies in `folder`; it and its driver end with the block."""
    driver = subprocess.Popen(
        [shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    made = None
    try:
        line = next(line for line in driver.stdout if "successfully on port" in line)
        made = Browser(int(line.rpartition("port ")[2].strip().rstrip(".")), Path(folder) / "profile")
        yield made
    finally:
        if made:
            made.ask("", "DELETE")
        driver.terminate()
        driver.wait()
        driver.stdout.close()


def look(pages, folder):
    """Screenshots of pages, whole, at two widths in both schemes: what a test can't judge is whether they are ugly."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(profile) as window:
        for page in map(Path, pages):
            for width, height in ((1280, 900), (390, 844), (1920, 1080)):
                for scheme in ("light", "dark"):
                    window.show(page, width, height, scheme)
                    window.shoot(Path(folder) / f"{page.stem}-{width}-{scheme}.png")


if __name__ == "__main__":
    *files, out = sys.argv[1:]
    look(files, out)
