"""Parts of a study side by side, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from trustgp.executors.progress import reporting

from .result import Setting

Part = Callable[..., Any]


def work_ahead(setting: Setting, part: Part, tasks: Sequence[tuple]) -> None:
    """Do parts of a study before they are asked for; what they find lies in the folder of `Setting.once`.

    Does nothing with one job: the study then does each part when it comes to it.

    Args:
        setting: Of the study; its `jobs` processes share the work.
        part: A function of a module, called as `part(setting, *task)`; what it does goes through `once`.
        tasks: Arguments of each part, the longest first.
    """
    jobs = min(setting.jobs, len(tasks))
    if jobs <= 1:
        return
    plain = (setting.out, setting.seeds, setting.quick, setting.device, dict(setting.options))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_do, part, plain, task) for task in tasks]
        with reporting(enabled=not setting.console.quiet) as report:
            for future in report.track(as_completed(futures), stage=setting.out.name, total=len(futures)):
                future.result()


def _do(part: Part, plain: tuple[Path, int, bool, str, dict], task: tuple) -> None:
    out, seeds, quick, device, options = plain
    part(Setting(out, seeds=seeds, quick=quick, device=device, options=options), *task)
