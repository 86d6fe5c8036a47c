"""Many facts in one test: all are checked, and the failures are listed together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest


class Many:
    """Collects the failures of `with check(name):` blocks.

    with Many() as check:
        for name in NETWORKS:
            with check(name):
                assert ...
    """

    def __enter__(self) -> Many:
        self.failures: list[str] = []
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None and self.failures:
            raise AssertionError(f"{len(self.failures)} failed:\n" + "\n".join(self.failures))

    @contextmanager
    def __call__(self, *names: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self.failures.append(f"{', '.join(map(str, names))}: {type(error).__name__}: {error}")


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable], Callable]:
    """As `pytest.mark.parametrize`, in one test: the cases share their fixtures, so none may change them."""
    single = isinstance(names, str)
    keys = (names,) if single else names

    def decorate(test: Callable) -> Callable:
        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{test.__name__} takes no {keys}"

        @wraps(test)
        def run(**fixtures: Any) -> None:
            with Many() as check:
                for number, case in enumerate(cases):
                    given = dict(zip(keys, (case,) if single else case, strict=True))
                    with check(f"case {number}", given):
                        test(**fixtures, **given)

        left = [one for name, one in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
