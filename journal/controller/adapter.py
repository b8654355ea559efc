"""The order in which a controller resumes from an application's checkpoint, and who is asked when.

    step            calls                                       then
    build_samplers  the builder                                 nothing was consumed yet
    select          adapter.discover(), where resume is auto    a path, or none: a fresh start
                    adapter.load_metadata(path), once           typed metadata, or the start fails
                    -- checks --                                type, owner, identity; the path is pinned
    restore         set_epoch(metadata.epoch)                   on every sampler that has it
                    adapter.restore(effective, metadata), once  the effective sampler is at the safe boundary
    build_loader    the builder, with the samplers              the loader; its iterator does not exist yet
    iterate         iter(loader), once

1. Each step is taken once, in this order. Another step, or the same one again, is `Refused` and changes nothing.
2. A step that failed ends the resume: every further step is `Refused`. Nothing falls back to a fresh start or to an
   older checkpoint once something was selected; an automatic pick that turns out to be corrupt fails as an explicit
   one does.
3. `resume` says what is selected: `off` a fresh start, and no method of the adapter is called; `auto` what the
   adapter discovers, and a fresh start where that is None; anything else is the path, and never a fresh start.
4. A fresh start with an adapter begins with epoch 1, so that the first epoch has the same order after a restart.
   Without an adapter nothing is set and nothing is asked. A path without one is refused.
5. The effective sampler is the batch sampler where there is one. The metadata names which one it is of, and the other
   one is refused.

Source: the specification of application checkpoints, "restore ordering".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from attrs import field, frozen

from milepost.journal.controller.metadata import ResumeMetadata, SamplingOwner
from milepost.transitions.errors import MilepostError, NotResumable, Refused

L = TypeVar("L", bound=Iterable[Any])

Step = Literal["build_samplers", "select", "restore", "build_loader", "iterate"]

ORDER: tuple[Step, ...] = ("build_samplers", "select", "restore", "build_loader", "iterate")
FIRST_EPOCH = 1


class ControllerAdapter(Protocol):
    """What an application implements: where its checkpoints are, what they say, and how its sampler goes on."""

    def discover(self) -> str | os.PathLike[str] | None:
        """The checkpoint that an automatic resume takes, or None where there is none. Not called for a path."""
        ...

    def load_metadata(self, path: str) -> ResumeMetadata:
        """The metadata of the checkpoint at `path`, once it is found to be whole; called once.

        Whatever is wrong with it is raised: a checkpoint that was selected is never passed over.
        """
        ...

    def restore(self, sampler: Any, metadata: ResumeMetadata) -> None:
        """Put `metadata.sampler_state` into the effective sampler, whose epoch is set; called once."""
        ...


@frozen(kw_only=True)
class Samplers:
    """What the loader draws from. `sampler` may be left out where the batch sampler holds it."""

    sampler: Any = field(default=None)
    batch_sampler: Any = field(default=None)

    @property
    def owner(self) -> SamplingOwner:
        """Which of the two is restored."""
        return "sampler" if self.batch_sampler is None else "batch_sampler"

    @property
    def effective(self) -> Any:
        """The one that is restored."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler


class ControllerResume:
    """One start of a controller, step by step; see the table at the top of this module.

    `identity` is the checkpoint's identity where it was agreed upon already; another one is `NotResumable`.
    """

    def __init__(
        self,
        adapter: ControllerAdapter | None,
        *,
        resume: str | os.PathLike[str] = "auto",
        identity: str | None = None,
    ) -> None:
        self._resume = os.fspath(resume)
        if type(self._resume) is not str or not self._resume:
            raise Refused(f"resume: expected off, auto or a path, found {resume!r}")
        if adapter is None and self._resume not in ("off", "auto"):
            raise Refused(f"resume={self._resume}: a path is restored by an adapter, and there is none; give one")
        self._adapter = adapter
        self._identity = identity
        self._left = list(ORDER)
        self._samplers: Samplers | None = None
        self._loader: Iterable[Any] | None = None
        self._path: str | None = None
        self._metadata: ResumeMetadata | None = None

    @property
    def path(self) -> str | None:
        """The checkpoint that was selected, pinned by `select`; None for a fresh start."""
        return self._path

    @property
    def metadata(self) -> ResumeMetadata | None:
        """What the selected checkpoint says; None for a fresh start."""
        return self._metadata

    def build_samplers(self, build: Callable[[], Samplers]) -> Samplers:
        """Step 1: the samplers that `build` makes, from which nothing was drawn."""
        with self._step("build_samplers"):
            samplers = build()
            if not isinstance(samplers, Samplers) or samplers.effective is None:
                raise Refused(f"expected Samplers with a sampler or a batch sampler, found {samplers!r}")
            self._samplers = samplers
            return samplers

    def select(self) -> ResumeMetadata | None:
        """Step 2: what to resume from, its path pinned and its metadata checked; None for a fresh start.

        `NotResumable` where the metadata is of another owner or identity, or the adapter failed in its own way; a
        `MilepostError` of the adapter as it is.
        """
        with self._step("select"):
            selected = self._selected()
            if selected is None:
                return None
            assert self._adapter is not None
            with self._asking("load_metadata"):
                metadata = self._adapter.load_metadata(selected)
            self._check(metadata, selected)
            self._path, self._metadata = selected, metadata
            return metadata

    def restore(self) -> None:
        """Step 3: set the epoch of what was built, then restore the effective sampler. A fresh start sets epoch 1."""
        with self._step("restore"):
            if self._adapter is None:
                return
            assert self._samplers is not None
            epoch = FIRST_EPOCH if self._metadata is None else self._metadata.epoch
            for sampler in (self._samplers.sampler, self._samplers.batch_sampler):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
            if self._metadata is None:
                return
            effective = self._samplers.effective
            with self._asking("restore"):
                self._adapter.restore(effective, self._metadata)
            if hasattr(effective, "set_epoch") and (now := getattr(effective, "epoch", epoch)) != epoch:
                raise NotResumable(
                    f"{self._path}: the metadata is of epoch {epoch}, the sampler's state of epoch {now}; they are "
                    "not of one checkpoint. Nothing was consumed; use another one"
                )

    def build_loader(self, build: Callable[[Samplers], L]) -> L:
        """Step 4: the loader that `build` makes over the samplers."""
        with self._step("build_loader"):
            assert self._samplers is not None
            loader = build(self._samplers)
            self._loader = loader
            return loader

    def iterate(self) -> Iterator[Any]:
        """Step 5: the loader's first iterator. Those of later epochs are the application's own."""
        with self._step("iterate"):
            assert self._loader is not None
            return iter(self._loader)

    def _selected(self) -> str | None:
        if self._adapter is None or self._resume == "off":
            return None
        if self._resume != "auto":
            return self._resume
        with self._asking("discover"):
            found = self._adapter.discover()
        if found is None:
            return None
        path = os.fspath(found) if isinstance(found, str | os.PathLike) else found
        if type(path) is not str or not path:
            raise Refused(f"discover(): expected a path or None, found {found!r}")
        return path

    def _check(self, metadata: object, path: str) -> None:
        assert self._samplers is not None
        if not isinstance(metadata, ResumeMetadata):
            raise Refused(f"load_metadata(): expected ResumeMetadata, found a {type(metadata).__name__}")
        if metadata.sampling_owner != self._samplers.owner:
            raise NotResumable(
                f"{path}: its sampling state is of the {metadata.sampling_owner}, here the {self._samplers.owner} is "
                "restored. Nothing was restored; build the samplers as they were when it was saved"
            )
        if self._identity not in (None, metadata.checkpoint_identity):
            raise NotResumable(
                f"{path}: expected the checkpoint {self._identity}, found {metadata.checkpoint_identity}. Nothing "
                "was restored; every rank has to take the same one"
            )

    @contextmanager
    def _asking(self, method: str) -> Iterator[None]:
        """What the adapter raises is `NotResumable`, whatever it is; what is ours already stays."""
        try:
            yield
        except MilepostError:
            raise
        except Exception as error:
            raise NotResumable(
                f"resume={self._resume}: {method}() of the adapter failed: {error!r}. Nothing was consumed, and "
                "nothing else was tried in its place"
            ) from error

    @contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        """Take this step where it is the next one. While it is under way and once it failed there is no next one."""
        if not self._left:
            raise Refused(f"{step}(): this resume is under way, failed or came to its end; a start makes a new one")
        if self._left[0] != step:
            raise Refused(f"{step}(): expected {self._left[0]}() as the next step of {' → '.join(ORDER)}")
        left, self._left = self._left[1:], []
        yield
        self._left = left
