"""Let many threads ask one model for a while: is any answer wrong, does memory grow?

    python bench/soak.py [--model demo] [--seconds 60] [--threads 8]

Calls are of every kind: one state or several, answered or cancelled or timed out. Each answer is compared, bit by bit,
with what the same question got in a call of its own. Exits with 1 for a wrong answer, a failed call, or memory that
grew by more than 64 MB after the first quarter of the time.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from decider_native import Cancelled, Choice, DeadlineExceeded, Decider, Noul, Score
from decider_native.answers import Answer
from decider_native.decider import Questions
from decider_native.questions import Json, Question

STATES: list[Json] = [
    "The parcel arrived, thank you.",
    {"subject": "Duplicate charge", "body": "We were billed twice for March. Refund it today or we cancel."},
    {"messages": [{"from": "customer", "text": f"Line {i} of a longer story about a late train."} for i in range(20)]},
]
QUESTIONS: dict[str, Question] = {
    "refund": Noul("Does the writer ask for a refund?"),
    "team": Choice("Which team should answer?", {"billing": "invoices, refunds", "travel": None, "nobody": None}),
    "urgency": Score("How urgent is it?", ["can wait", "soon", "today"]),
    "month": Choice("Which month is it about?", [f"month {i}" for i in range(1, 13)]),
}
LONG: Json = " ".join(f"entry {i}" for i in range(400))
GROWTH_LIMIT = 64 << 20


def resident() -> int:
    """Bytes of this process that are in memory now (where the system does not say: at most so far)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Soak:
    """One model, what each question gets alone, and what happened so far."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.alone: dict[tuple[int, str], Answer] = {
            (state, name): decider.evaluate(STATES[state], {name: question}).answers[name]
            for state in range(len(STATES))
            for name, question in QUESTIONS.items()
        }
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def run(self, seed: int, until: float) -> None:
        """Call again and again until ``time.monotonic()`` is `until`."""
        rng = random.Random(seed)
        while time.monotonic() < until:
            outcome = self._stopped_call(rng) if rng.random() < 0.1 else self._call(rng)
            with self._lock:
                self.counts[outcome] += 1

    def _call(self, rng: random.Random) -> str:
        states = [rng.randrange(len(STATES)) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        asked: list[tuple[int, Questions]] = []
        for state in states:
            names = rng.sample(list(QUESTIONS), rng.randint(1, len(QUESTIONS)))
            asked.append((state, {name: QUESTIONS[name] for name in names}))
        try:
            results = self.decider.evaluate_many([(STATES[state], questions) for state, questions in asked])
        except Exception as error:  # whatever it is, it is what this script looks for
            return f"failed: {error!r}"
        right = all(
            answer == self.alone[state, name]
            for (state, _), result in zip(asked, results, strict=True)
            for name, answer in result.answers.items()
        )
        return "right" if right else "wrong"

    def _stopped_call(self, rng: random.Random) -> str:
        cancel = threading.Event()
        timer = threading.Timer(rng.random() / 10, cancel.set)
        timer.start()
        try:
            self.decider.evaluate(LONG, QUESTIONS, timeout=rng.choice([0.01, 0.05, 60]), cancel=cancel)
        except (Cancelled, DeadlineExceeded):
            pass
        except Exception as error:
            return f"failed: {error!r}"
        finally:
            timer.cancel()
        return "stopped"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Let many threads ask one model for a while.")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8, help="calling threads")
    arguments = parser.parse_args()
    with Decider(arguments.model, device="cpu", threads=1, context_tokens=4096, mode="exact") as decider:
        soak = Soak(decider)
        start = time.monotonic()
        until = start + arguments.seconds
        with ThreadPoolExecutor(arguments.threads) as pool:
            threads = [pool.submit(soak.run, seed, until) for seed in range(arguments.threads)]
            time.sleep(arguments.seconds / 4)
            before = resident()
            for thread in threads:
                thread.result()
        after = resident()
    failures = {outcome: count for outcome, count in soak.counts.items() if outcome.startswith("failed")}
    print(f"calls: {soak.counts.total()} in {time.monotonic() - start:.0f} s, {soak.counts['stopped']} of them stopped")
    print(f"wrong answers: {soak.counts['wrong']}")
    print(f"failed calls: {failures or 0}")
    print(f"resident memory: {before / 1e6:.0f} MB after a quarter of the time, {after / 1e6:.0f} MB at the end")
    return int(bool(soak.counts["wrong"] or failures or after - before > GROWTH_LIMIT))


if __name__ == "__main__":
    sys.exit(main())
