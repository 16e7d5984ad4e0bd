"""`--profile`: a trace of a few steps, to be opened in ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_STEPS = 2  # that are traced, after a first one in which everything is slower


class Profile:
    """A callback that traces the steps after the first of this process (the only one where there is one), once."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.left = self.steps = 0
        self.trace: Path | None = None  # where the trace was written

    def on_begin(self, loop: Any, before: Any) -> None:
        if loop.config.steps == 1:
            self._start(1)

    def on_phase(self, loop: Any) -> None:
        self.on_begin(loop, None)

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        if self.profiler is None and self.trace is None:
            left = loop.config.steps - step - 1
            if left:
                self._start(min(_STEPS, left))
        elif self.profiler is not None:
            self.left -= 1
            if self.left == 0:
                self._stop(loop.run.folder / "profile" / f"{loop.phase}-{step:06d}.json.gz")

    def _start(self, steps: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self.profiler, self.left, self.steps = profile(activities=kinds), steps, steps
        self.profiler.start()

    def _stop(self, path: Path) -> None:
        """Write the trace; a disk that is full costs the trace, not the run."""
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        try:
            path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(path))
            self.trace = path
            print(f"a trace of {self.steps} steps is in {path}; open it at https://ui.perfetto.dev", file=sys.stderr)
        except (OSError, RuntimeError) as error:
            print(f"warning: the trace could not be written ({error}); the run goes on", file=sys.stderr)

    def close(self) -> None:
        """End a trace that a stopped run has begun."""
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None
