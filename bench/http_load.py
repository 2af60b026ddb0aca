"""Load on a server of one's own: every answer is checked against the one in this process, bit for bit.

    python bench/http_load.py MODEL.gguf [--clients 64] [--requests 200]

Starts `decider-native serve` on a free loopback port, prints percentiles, throughput, memory before and after, and what
a call costs over HTTP beyond `evaluate` in process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from decider_native import Decider

OPTIONS = ("--device", "cpu", "--threads", "1", "--context-tokens", "4096")


def requests(count: int) -> list[dict[str, Any]]:
    """Return bodies of mixed size, the same ones for the same count."""
    rng = random.Random(count)
    kinds: list[dict[str, Any]] = [
        {"type": "noul", "instructions": "Is it urgent?"},
        {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "technical": None}},
        {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad"]},
    ]
    return [
        {
            "state": f"Ticket {i}: " + "the invoice is wrong " * rng.choice((1, 5, 20)),
            "questions": {f"q{i}-{j}": rng.choice(kinds) for j in range(rng.choice((1, 1, 2)))},
        }
        for i in range(count)
    ]


class Client:
    """One keep-alive connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=300)

    def ask(self, body: dict[str, Any]) -> tuple[float, int, Any]:
        """Return seconds, status and answer of one request."""
        data = json.dumps(body)
        started = time.perf_counter()
        self._connection.request("POST", "/v1/systemone", data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        text = response.read()
        return time.perf_counter() - started, response.status, json.loads(text)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "decider_native", "serve", "--model", arguments.model, "--port", "0", *OPTIONS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"running on http://(\S+)", line)))
            threading.Thread(target=server.stderr.read).start()  # until the server ends
            return measure(arguments, address, server.pid)
        finally:
            server.terminate()
            server.wait()


def measure(arguments: argparse.Namespace, address: str, pid: int) -> int:
    """Compare, load, and report; the number of wrong answers, at most 1."""
    bodies = requests(50)
    with Decider(arguments.model, device="cpu", threads=1, context_tokens=4096) as decider:
        expected = [decider.evaluate(body["state"], body["questions"]).to_dict() for body in bodies]
        client = Client(address)
        for body, wanted in zip(bodies, expected, strict=True):
            assert client.ask(body)[1:] == (200, wanted)
        over, direct = [], []
        for body in bodies * 4:
            over.append(client.ask(body)[0])
            started = time.perf_counter()
            decider.evaluate(body["state"], body["questions"])
            direct.append(time.perf_counter() - started)
    cost = 1000 * statistics.median(a - b for a, b in zip(over, direct, strict=True))
    print(f"HTTP costs {cost:.2f} ms more at the median ({1000 * statistics.median(direct):.2f} ms in process)")

    def run(number: int) -> list[tuple[float, bool]]:
        rng, one = random.Random(number), Client(address)
        outcomes = []
        for _ in range(arguments.requests):
            i = rng.randrange(len(bodies))
            seconds, status, answer = one.ask(bodies[i])
            outcomes.append((seconds, status == 200 and answer == expected[i]))
        return outcomes

    before, started = memory_mib(pid), time.perf_counter()
    with ThreadPoolExecutor(arguments.clients) as pool:
        outcomes = [outcome for client in pool.map(run, range(arguments.clients)) for outcome in client]
    elapsed = time.perf_counter() - started
    wrong = sum(not right for _, right in outcomes)
    cuts = statistics.quantiles((seconds for seconds, _ in outcomes), n=100)
    print(f"{len(outcomes)} requests of {arguments.clients} clients, {wrong} wrong, {len(outcomes) / elapsed:.0f}/s")
    print("p50 {:.0f} ms, p95 {:.0f} ms, p99 {:.0f} ms".format(*(1000 * cuts[i] for i in (49, 94, 98))))
    print(f"memory {before:.0f} MiB before, {memory_mib(pid):.0f} MiB after")
    return min(1, wrong)


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
