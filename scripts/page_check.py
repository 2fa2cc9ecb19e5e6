#!/usr/bin/env python3
"""Drives the gateway's page in a headless Chromium and says what holds: scripts/test-page.sh calls it.

Python's standard library only: a small client of the Chrome DevTools protocol is below.
"""

import argparse
import base64
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

PATIENCE_S = 30        # for what must appear on the page
START_S = 60           # for the browser on a busy machine
RUN_S = 180            # for a training of seconds
POLL_S = 0.1
MESSAGE_BYTES_MAX = 64 << 20
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-port=0",
]
DESKTOP = {"width": 1280, "height": 860, "deviceScaleFactor": 1, "mobile": False}
NO_RUN = f"run_{'0' * 26}"
# Chromium writes every refusal to the console; these are what the checks provoke.
REFUSALS = [
    r"status of 401 .*/v1/(self|session)$",
    rf"status of 404 .*/v1/runs/{NO_RUN}(/live)?$",
    r"status of 40\d .*/sign-in\?token=\w+$",
]
# Short names inside the page: elements by their data-testid, and what one says.
PRELUDE = """
    window.all = (id, within = "") => [...document.querySelectorAll(`${within} [data-testid='${id}']`)];
    window.one = (id, within = "") => all(id, within)[0];
    window.said = (id, within = "") => {
        const text = one(id, within)?.innerText.trim();
        return text === "–" ? "" : text ?? "";
    };
    window.lines = (id) => [...document.querySelectorAll(`[data-testid='${id}'] path.series`)];
"""
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


class WebSocket:
    """The client's half of RFC 6455, as far as DevTools uses it: text messages, no extensions."""

    def __init__(self, url):
        host, port, path = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self._fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(f"the browser refused the connection: {head[:200]!r}")

    def _fill(self):
        part = self.socket.recv(1 << 16)
        if not part:
            raise ConnectionError("the browser closed the connection")
        self.buffer += part

    def _take(self, size):
        while len(self.buffer) < size:
            self._fill()
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def _send_frame(self, opcode, payload):
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self.socket.sendall(head + mask + masked)

    def send(self, text):
        self._send_frame(1, text.encode())

    def receive(self, patience):
        """Returns the next message, or None when none begins in time."""
        message = b""
        while True:
            self.socket.settimeout(PATIENCE_S if message or self.buffer else patience)
            try:
                while len(self.buffer) < 2:
                    self._fill()
            except TimeoutError:
                return None
            self.socket.settimeout(PATIENCE_S)
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack("!H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self._take(8))[0]
            if size > MESSAGE_BYTES_MAX:
                raise ConnectionError(f"a message of {size} bytes")
            payload = self._take(size)
            opcode = first & 0x0F
            if opcode == 8:
                raise ConnectionError("the browser closed the connection")
            if opcode == 9:
                self._send_frame(10, payload)
            elif opcode in (0, 1, 2):
                message += payload
                if first & 0x80:
                    return message.decode()


class Page:
    """One page of a browser of its own, with everything it complained about."""

    def __init__(self, browser):
        self.profile = tempfile.mkdtemp(prefix="fovea-browser-")
        self.said = open(os.path.join(self.profile, "stderr"), "wb")
        self.process = subprocess.Popen(
            [browser, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said, start_new_session=True,
            env={**os.environ, "TMPDIR": self.profile})
        self.number = 0
        self.problems = []
        self.origins = set()
        try:
            self.devtools = WebSocket(self._address())
        except BaseException:
            self.close()
            raise
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=PRELUDE)

    def _address(self):
        port_file = pathlib.Path(self.profile, "DevToolsActivePort")
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            lines = port_file.read_text().splitlines() if port_file.exists() else []
            if lines:
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=PATIENCE_S) as answer:
                    for target in json.load(answer):
                        if target["type"] == "page":
                            return target["webSocketDebuggerUrl"]
            time.sleep(POLL_S)
        self.said.flush()
        tail = pathlib.Path(self.said.name).read_text(errors="replace")[-2000:]
        raise ConnectionError(f"the browser didn't start:\n{tail}")

    def close(self):
        # The browser's own children are of its process group.
        for signal in (15, 9):
            try:
                os.killpg(self.process.pid, signal)
                self.process.wait(timeout=5)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.said.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        self.number += 1
        number = self.number
        self.devtools.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = self.devtools.receive(PATIENCE_S)
            if text is None:
                raise TimeoutError(f"the browser didn't answer {method}")
            message = json.loads(text)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._heard(message)

    def _heard(self, message):
        method, event = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description", ""))) for one in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent" and event["request"]["url"].startswith("http"):
            self.origins.add("/".join(event["request"]["url"].split("/")[:3]))

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, what, expression, patience=PATIENCE_S):
        """Waits until an expression is true and returns its value."""
        end = time.monotonic() + patience
        while True:
            try:
                value = self.evaluate(expression)
            except RuntimeError as error:
                # A navigation may be under way.
                value, what = None, f"{what.split(' [')[0]} [{error}]"
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {patience} s in vain: {what}")
            time.sleep(POLL_S)

    def text(self, testid, within=""):
        """Waits for an element that says something and returns its text."""
        return self.wait(f"{testid} says something", f"said({json.dumps(testid)}, {json.dumps(within)})")

    def see(self, testid, patience=PATIENCE_S):
        return self.wait(f"{testid} is there", f"!!one({json.dumps(testid)})", patience)

    def click(self, selector):
        self.wait(f"{selector} is there", f"!!document.querySelector({json.dumps(selector)})")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type_into(self, selector, text):
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def picture(self, path, size, scheme="dark"):
        """Saves the whole page as a PNG; returns whether it fits the width."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", **size)
        # Charts draw at most four times a second.
        self.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 600))")
        fits = self.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))
        return fits


class Checks:
    """Runs checks one after another and counts."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def __call__(self, name, check):
        try:
            found = check()
        except (AssertionError, RuntimeError, OSError, KeyError) as error:
            self.failed += 1
            print(f"FAILED  {name}: {error}", flush=True)
            return False
        self.passed += 1
        print(f"ok      {name}{f': {found}' if found else ''}", flush=True)
        return True


def expect(holds, otherwise):
    if not holds:
        raise AssertionError(otherwise)


def api(arguments, path):
    request = urllib.request.Request(arguments.url + path, headers={"authorization": f"Bearer {arguments.key}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def drive(page, check, arguments):
    out = pathlib.Path(arguments.output)
    run = api(arguments, f"/v1/runs/{arguments.run}")["run"]
    row = f"[data-run='{arguments.run}']"

    def sign_in_asked():
        page.open(arguments.url)
        page.see("sign-in-form")

    def wrong_key():
        page.type_into("[data-testid=key-input]", "fv_wrong")
        page.click("[data-testid=sign-in-button]")
        return page.text("sign-in-error")

    def key_signs_in():
        page.type_into("[data-testid=key-input]", arguments.key)
        page.click("[data-testid=sign-in-button]")
        page.see("runs-table")

    def row_shows():
        state = page.text("run-state", row)
        expect(state == "completed", f"the state is {state!r}")
        shown, measured = page.text("run-map", row), run["metrics"]["metrics/mAP50-95(B)"]
        number = float(re.search(r"[\d.]+(e-?\d+)?$", shown).group())
        expect(abs(number - measured) < 6e-4, f"mAP {shown!r}, the API says {measured}")
        cost = page.text("run-cost", row)
        return f"{state}, mAP {shown}, {cost}"

    def live():
        page.wait("the stream is open", "one('connection-state').dataset.state === 'on'")

    def run_opens():
        page.click(f"{row} a.name")
        page.wait("its title", f"said('run-title') === {json.dumps(run['name'])}")
        return page.text("progress-epoch")

    def chart(testid):
        marks = page.wait(f"{testid} has a line", f"lines('{testid}').length")
        return f"{marks} lines"

    def log():
        page.wait("the log has lines", "all('log-line').length > 2")
        return page.evaluate("all('log-line').at(-1).innerText").replace("\n", " ")

    def cost():
        so_far, estimate = page.text("cost-so-far"), page.text("cost-estimate")
        for amount in [so_far, estimate]:
            expect(re.fullmatch(r"[\d.,]+ cr", amount), f"{amount!r} is no amount")
        page.wait("the charge is settled", "one('cost-so-far').parentElement.innerText.includes('settled')")
        return f"{so_far}, estimated {estimate}"

    def pictures():
        missing = [name for name, size, scheme in [
            ("run-dark.png", DESKTOP, "dark"),
            ("run-light.png", DESKTOP, "light"),
            ("run-phone.png", PHONE, "dark"),
        ] if not page.picture(out / name, size, scheme)]
        page.open(f"{arguments.url}/#/runs")
        page.see("run-row")
        missing += [name for name, size, scheme in [
            ("runs-phone.png", PHONE, "dark"), ("runs-dark.png", DESKTOP, "dark"),
        ] if not page.picture(out / name, size, scheme)]
        expect(not missing, f"wider than the screen: {', '.join(missing)}")
        return str(out)

    def new_run_appears():
        # Nobody reloads: the row and its states come by the stream.
        page.evaluate("window.stayed = true")
        command = (f"--json train --dataset {arguments.dataset} --name live --epochs 3 --imgsz 64 --batch 8 --gpu cpu "
                   "--detach")
        done = subprocess.run([arguments.fovea, *command.split()], capture_output=True, text=True, timeout=PATIENCE_S,
                              check=False)
        expect(done.returncode == 0, f"fovea train: {done.stderr or done.stdout}")
        started = json.loads(done.stdout)
        page.click(f"[data-run='{(started.get('run') or started)['id']}'] a.name")
        rate = page.wait("a speed", "said('progress-rate')", RUN_S)
        page.wait("the run's end", "one('run-state', 'main')?.dataset.state === 'completed'", RUN_S)
        page.wait("the last epoch", "said('progress-epoch') === '3 / 3'")
        for testid in ["chart-loss", "chart-map"]:
            # Three epochs make three points, and those two strokes or more.
            page.wait(f"three points in {testid}", f"lines('{testid}').length && lines('{testid}')"
                      ".every((path) => path.getAttribute('d').split('L').length > 2)")
        expect(page.evaluate("window.stayed"), "the page was loaded again")
        page.picture(out / "live-dark.png", DESKTOP)
        return rate

    def host():
        page.see("host-cpu")
        return page.text("host-cpu")

    def no_such_run():
        page.open(f"{arguments.url}/#/runs/{NO_RUN}")
        page.see("not-found")

    def sign_out():
        page.open(f"{arguments.url}/#/runs")
        page.see("run-row")
        page.click("[data-testid=sign-out]")
        page.see("sign-in-form")

    def link_signs_in():
        page.open(arguments.link)
        page.see("runs-table")
        expect("token=" not in page.evaluate("location.href"), "the token stays in the address")

    def link_works_once():
        page.open(arguments.link)
        page.see("link-refused")
        return page.text("link-refused").split("\n")[0]

    def quiet():
        provoked = re.compile("|".join(REFUSALS))
        problems = [one for one in page.problems if not provoked.search(one)]
        expect(not problems, "; ".join(problems))

    def nothing_from_elsewhere():
        others = page.origins - {arguments.url}
        expect(not others, f"asked {', '.join(sorted(others))}")

    page.call("Emulation.setDeviceMetricsOverride", **DESKTOP)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    check("a stranger is asked for a key", sign_in_asked)
    check("a wrong key is refused with a reason", wrong_key)
    page.picture(out / "sign-in-dark.png", DESKTOP)
    if not check("the admin key signs in", key_signs_in):
        return
    check("the runs table shows the run", row_shows)
    check("the runs table is live", live)
    if check("a run's page opens", run_opens):
        check("the loss chart has lines", lambda: chart("chart-loss"))
        check("the validation chart has lines", lambda: chart("chart-map"))
        check("the log shows lines", log)
        check("the cost is shown, settled, beside the estimate", cost)
        check("the host's samples are shown", host)
    check("pages fit a desktop and a phone", pictures)
    check("a new run appears and is followed live", new_run_appears)
    check("an unknown run is said to be unknown", no_such_run)
    check("signing out asks for a key again", sign_out)
    check("the one-time link signs in", link_signs_in)
    check("the one-time link works once", link_works_once)
    check("nothing is loaded from elsewhere", nothing_from_elsewhere)
    check("the console has no errors", quiet)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["browser", "fovea", "url", "key", "link", "run", "dataset", "output"]:
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    check = Checks()
    page = Page(arguments.browser)
    try:
        drive(page, check, arguments)
    except (ConnectionError, TimeoutError) as error:
        check.failed += 1
        print(f"FAILED  the browser stays: {error}")
    finally:
        page.close()
    print(f"the page: {check.passed} checks passed, {check.failed} failed")
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
