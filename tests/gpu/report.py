"""The report of tests/gpu_checklist: rewritten whole after every stage, valid however it ends."""

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

NOT_MEASURED = "not measured"


class Figure(NamedTuple):
    name: str
    unit: str
    goal: str
    best_known: str


# As docs/benchmarks/gpu/README.md lists them.
FIGURES = (
    Figure("copy_bandwidth", "GB/s", "the limit", "-"),
    Figure("decode_1b_ms", "ms", "<= 0.70", "0.76 (a megakernel)"),
    Figure("decode_8b_ms", "ms", "-", "-"),
    Figure("decode_8b_of_copy", "share", ">= 0.93", "0.82 (gpt-fast), 0.95 (calm, another card)"),
    Figure("rows5_over_1_1b", "ratio", "<= 1.05", "1.06 to 1.075 (llama.cpp)"),
    Figure("rows5_over_1_8b", "ratio", "<= 1.05", "1.06 to 1.075 (llama.cpp)"),
    Figure("rows8_over_1_8b", "ratio", "<= 1.07", "-"),
    Figure("speculative_over_ideal", "ratio", ">= 0.92", "0.84 (vLLM)"),
    Figure("verify_8x128k_us", "us", "<= 15", "58 to 170 (FlashInfer)"),
    Figure("serving_tokens_per_second", "tokens/s", "-", "-"),
    Figure("serving_ttft_p50_ms", "ms", "-", "-"),
    Figure("serving_ttft_p99_ms", "ms", "-", "-"),
    Figure("serving_tpot_p50_ms", "ms", "-", "-"),
    Figure("serving_tpot_p99_ms", "ms", "-", "-"),
    Figure("serving_tpot_p99_over_p50", "ratio", "<= 1.02", "-"),
    Figure("parity_failures", "tests", "0", "-"),
    Figure("cuda_test_failures", "tests", "0", "-"),
    Figure("answers_compared", "answers", "-", "-"),
    Figure("answers_that_differ", "answers", "0", "-"),
    Figure("memcheck_errors", "errors", "0", "-"),
    Figure("racecheck_hazards", "hazards", "0", "-"),
    Figure("peer_torch_graph_1b_ms", "ms", "-", "-"),
    Figure("peer_torch_compile_1b_ms", "ms", "-", "-"),
    Figure("peer_torch_graph_8b_ms", "ms", "-", "-"),
    Figure("peer_assisted_tokens_per_second", "tokens/s", "-", "-"),
)


class Report:
    """stages: (name, budget in seconds) in their order."""

    def __init__(self, directory: Path, stages, device: str):
        self.directory = directory
        self.started = time.time()
        self.content = {
            "format": 1,
            "status": "partial",
            "reason": None,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": 0.0,
            "device": device,
            "program": None,
            "commit": None,
            "gpus": [],
            "num_gpus": 0,
            "stages": [{"name": name, "budget_seconds": budget, "status": "not run",
                        "reason": None, "seconds": None, "results": {}}
                       for name, budget in stages],
            "figures": [{**figure._asdict(), "value": NOT_MEASURED} for figure in FIGURES],
        }

    def stage(self, name: str) -> dict:
        return next(stage for stage in self.content["stages"] if stage["name"] == name)

    def set_figure(self, name: str, value: float) -> None:
        """Only what a GPU did is a figure."""
        if self.content["device"] != "cuda":
            return
        next(f for f in self.content["figures"] if f["name"] == name)["value"] = value

    def finish(self, status: str, reason: str | None = None) -> None:
        self.content["status"], self.content["reason"] = status, reason
        self.write()

    def write(self) -> None:
        self.content["seconds"] = round(time.time() - self.started, 1)
        self.directory.mkdir(parents=True, exist_ok=True)
        replace(self.directory / "gpu_report.json", json.dumps(self.content, indent=1) + "\n")
        replace(self.directory / "gpu_report.md", self.markdown())

    def markdown(self) -> str:
        content = self.content
        gpus = ", ".join(f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})"
                         for gpu in content["gpus"]) or "no GPU"
        lines = [f"# GPU checklist: {content['status']}", ""]
        if content["device"] != "cuda":
            lines += ["A rehearsal without a GPU: nothing below was seen on one.", ""]
        if content["reason"]:
            lines += [content["reason"], ""]
        lines += [f"{gpus}. {content['program'] or 'no program'}, commit "
                  f"{content['commit'] or 'unknown'}, {content['started']}, "
                  f"{content['seconds']} s.", "",
                  "| figure | value | unit | goal | best known |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {f['name']} | {shown(f['value'])} | {f['unit']} | {f['goal']} | "
                  f"{f['best_known']} |" for f in content["figures"]]
        lines += ["", "| stage | status | seconds | of | |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {s['name']} | {s['status']} | {shown(s['seconds'])} | {s['budget_seconds']} | "
                  f"{s['reason'] or ''} |" for s in content["stages"]]
        return "\n".join(lines) + "\n"


def shown(value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def replace(path: Path, text: str) -> None:
    """The old file or the new one, never a part."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text)
    os.replace(partial, path)
