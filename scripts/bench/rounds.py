"""What the benchmarks share: sides run in turn, medians, a table for people, a file for programs."""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
TARGET = ROOT / "target" / "bench"
FOVEA = os.environ.get("FOVEA_BINARY", "fovea")
QUICK = "--quick" in sys.argv[1:]
# Where Debian and its kin put the allocator; a side that wants it runs without where there is none.
JEMALLOC = next((p for p in pathlib.Path("/usr/lib").glob("*/libjemalloc.so.2")), None)
JEMALLOC_SETTINGS = "background_thread:false,dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto"


def log(text):
    print(text, file=sys.stderr, flush=True)


def machine():
    """Says what the figures were measured on."""
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model or platform.machine(), "cores": os.cpu_count(), "memory_bytes": memory,
            "system": platform.platform(), "load_before": os.getloadavg()[0]}


class Bench:
    """All runs of one benchmark, its table and its goals."""

    def __init__(self, name):
        self.name = name
        self.runs = []
        self.goals = []
        self.tables = []
        self.machine = machine()
        self.started_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")

    def run(self, side, command, allocator=False, read=None, **about):
        """Runs one side once. Its last line on standard output is JSON, or `read` makes a result of all lines. A
        failure is recorded, and the rest goes on."""
        environment = dict(os.environ)
        if allocator and JEMALLOC:
            environment |= {"LD_PRELOAD": str(JEMALLOC), "MALLOC_CONF": JEMALLOC_SETTINGS}
        command = [str(part) for part in command]
        log(f"  {side} {' '.join(str(value) for value in about.values())} …")
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0), errors.seek(0)
            lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
            errors = errors.read().decode(errors="replace")
        run = {"side": side, "command": command, "exit": process.returncode, **about}
        try:
            if process.returncode:
                raise ValueError(f"exit {process.returncode}")
            run["result"] = (read(lines) if read else json.loads(lines[-1])) | {"peak_bytes": usage.ru_maxrss * 1024}
        except (ValueError, IndexError, KeyError) as error:
            run["error"] = f"{error}: {errors[-2000:]}"
            log(f"  {side}: {error}: {errors.strip()[-300:]}")
        self.runs.append(run)
        self.save()
        return run

    def results(self, side, **about):
        """Returns the results of a side's good runs."""
        wanted = about.items()
        return [run["result"] for run in self.runs
                if run["side"] == side and "result" in run and all(run.get(k) == v for k, v in wanted)]

    def median(self, side, key, **about):
        """Returns the median of a number, or of all numbers of a list, over a side's runs."""
        values = []
        for result in self.results(side, **about):
            value = result.get(key)
            values += value if isinstance(value, list) else [] if value is None else [value]
        return statistics.median(values) if values else None

    def goal(self, identity, measured, unit, goal, higher_is_better=True):
        """Records a goal and what was measured for it."""
        self.goals.append({"id": identity, "measured": measured, "unit": unit, "goal": goal,
                           "higher_is_better": higher_is_better})

    def table(self, title, heading, rows):
        """Prints a table and keeps it."""
        cells = [[str(cell) for cell in row] for row in [heading, *rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
        text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)
        print(f"\n{title}\n{text}", flush=True)
        self.tables.append({"title": title, "heading": heading, "rows": rows})

    def finish(self):
        """Prints the goals and writes the file."""
        rows = []
        for goal in self.goals:
            measured, wanted = goal["measured"], goal["goal"]
            if measured is None:
                met = "not measured"
            else:
                met = "met" if (measured >= wanted) == goal["higher_is_better"] or measured == wanted else "missed"
            rows.append([goal["id"], number(measured), goal["unit"], number(wanted), met])
        if rows:
            self.table("Goals", ["goal", "measured", "unit", "wanted", ""], rows)
        path = self.save()
        print(f"\n{path}")

    def save(self):
        """Writes everything so far: a run that is ended early leaves what it had."""
        TARGET.mkdir(parents=True, exist_ok=True)
        path = TARGET / f"{self.name}.json"
        content = {"benchmark": self.name, "quick": QUICK, "started_at": self.started_at, "machine": self.machine,
                   "goals": self.goals, "tables": self.tables, "runs": self.runs}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(path)
        return path


def number(value, digits=3):
    """Writes a number for people; nothing where there is none."""
    return "–" if value is None else f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:.0f}"


def precision(word):
    """Returns the argument that asks our engine for a precision."""
    return [] if word == "f32" else [f"precision={word}"]


def ratio(over, under):
    """Returns a quotient where both sides were measured."""
    return over / under if over and under else None


def dataset(name, folder):
    """Unpacks a data set of the project's own and returns its folder."""
    archive = pathlib.Path(os.environ.get("FOVEA_TEST_DATA", ROOT.parent / "shared" / "data")) / f"{name}.zip"
    target = pathlib.Path(folder) / name
    if not target.exists():
        subprocess.run([sys.executable, "-m", "zipfile", "-e", archive, target], check=True)
    return target
