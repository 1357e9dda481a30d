"""A gang of ranks as the driver sees it: call a function on every rank, stream events, notice failures."""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from orca.core.interrupts import run_to_end
from orca.core.limits import allow_files, explained_limits
from orca.core.machine import host_id, search_path
from orca.errors import NotPicklableError, OrcaError, ResourceError, WorkerError
from orca.launch.base import Hello, Launcher, LogLine, Needs, Rank, Source
from orca.launch.channel import BEAT, GOODBYE, Door, Link, pack
from orca.launch.failures import Failure, raised
from orca.launch.hub import Hub
from orca.launch.processes import lives

OnEvent = Callable[[object], None]
OnQuestion = Callable[[object], object]
_Gathers = dict[tuple[int, int], dict[int, bytes]]
"""By turn of the ranks (number of members, count), the values received so far."""

_GRACE_SECONDS = 0.7
_CAUSE_SECONDS = 5.0
"""How long to wait for the cause while only ranks that noticed it have reported."""
_STOPPED_SECONDS = 4.0
_ANSWER_SECONDS = 1.0
_CHECK_SECONDS = 0.25
"""How often the heartbeats are checked."""
_LOST_SECONDS = 2.0
"""How often the runtime is asked for lost ranks."""
_BUSY_SHARE = 0.05
_LOG_LINES = 20


class _Seat:
    """The driver's record of one rank during the gang's life."""

    def __init__(self, hello: Hello, link: Link) -> None:
        self.hello = hello
        self.link = link
        self.last_beat = time.monotonic()
        self.cpu_spent = 0.0
        self.cpu_seen = 0.0
        self.log: deque[str] = deque(maxlen=_LOG_LINES)

    def heard(self) -> float:
        """Return when the rank last gave a sign of life, as far as this process could notice it."""
        self.last_beat = max(self.last_beat, self.link.last_heard)
        return self.last_beat


class _Sorted:
    """Puts what a rank sends into the gang's inbox; its heartbeats have done their work when they arrive."""

    def __init__(self, rank: int, inbox: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._rank, self._inbox = rank, inbox

    def __call__(self, blob: Any) -> None:
        if blob != BEAT:
            self._inbox.put((self._rank, blob))


class Gang:
    """`world` ranks on one runtime, of which the last may be servers. `call` runs a function on all of them."""

    def __init__(
        self,
        launcher: Launcher,
        world: int,
        *,
        servers: int = 0,
        start_seconds: float = 120.0,
        stall_seconds: float = 8.0,
    ) -> None:
        _check_slots(launcher, world - servers)
        launcher.servers = servers
        self.launcher = launcher
        self.world = world
        self.holds: tuple[str, int] | None = None
        """Owner and version of the state that the ranks hold, as far as the driver knows; None for new ranks."""
        self.roles: Sequence[str] = ()
        """Names of the ranks for errors, where they differ."""
        self.received_bytes = 0
        self.start_seconds = start_seconds
        """How long the ranks may take to start."""
        self.started = False
        """Whether the ranks of the last call had started."""
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._seats: dict[int, _Seat] = {}
        self._door: Door | None = None
        self._hub: Hub | None = None
        self._here = host_id()
        self.lock = threading.RLock()
        """Held during a call; hold it longer to do several things without another thread in between."""
        self._stopping = threading.Event()
        self._call_number = 0
        """Ranks repeat it in everything they send, so that nothing of an earlier call is taken for this one's."""
        self._calling = False
        self._looked = 0.0
        """When the runtime was last asked for lost ranks."""

    @property
    def running(self) -> bool:
        return bool(self._seats)

    @property
    def places(self) -> list[Hello]:
        """What each rank reported of itself, in rank order; empty before the start."""
        return [self._seats[rank].hello for rank in sorted(self._seats)]

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        sources: Mapping[str, Source] | None = None,
        needs: Mapping[str, Needs] | None = None,
        on_event: OnEvent | None = None,
        on_question: OnQuestion | None = None,
    ) -> list[Any]:
        """Run ``fn(context, *args)`` on every rank and return the results in rank order.

        Args:
            sources: Data for the ranks, by name.
            needs: Which rows of a source each rank reads; all rows where there is no entry.
            on_event: Called with each event that a rank emits.
            on_question: Called with each question that the ranks ask; returns the answer.
        """
        try:
            task = pack((fn, args))
        except Exception as error:
            raise NotPicklableError(
                f"An object that the workers need cannot be pickled: {error}. Create such objects "
                "inside a creator function, which runs on the worker."
            ) from error
        with self.lock:
            try:
                with explained_limits():
                    return self._call(task, sources or {}, needs or {}, on_event, on_question)
            except BaseException:
                # Whatever went wrong (a rank, the user's interrupt, a callback), ranks must not be left running
                # a call that nobody waits for.
                self._end(force=True)
                raise

    def stop(self) -> None:
        """End the ranks and free everything that was reserved for them."""
        try:
            # A call that another thread still waits for gives up in its next cycle.
            self._stopping.set()
            with self.lock:
                self._stopping.clear()
                self._end(force=False)
        finally:
            self._stopping.clear()

    def refresh(self, ask: bool = False) -> None:
        """Notice ranks that died while the gang was idle; the next call then starts new ones.

        With `ask`, ranks that the runtime can lose without notice have to answer first.
        """
        with self.lock:
            gone = False
            if ask and self.launcher.asks:
                gone = self._ask()
            while not self._inbox.empty():
                gone |= self._unpacked(self._inbox.get()[1]) is GOODBYE
            if gone or (self._seats and self.launcher.lost()):
                self._end(force=True)

    def _ask(self) -> bool:
        """Ask idle ranks for an answer; return whether one has ended. One that is silent is left to the next call."""
        silent = set(self._seats)
        for seat in self._seats.values():
            seat.link.send(("ask",))
        end = time.monotonic() + _ANSWER_SECONDS
        while silent:
            try:
                rank, blob = self._inbox.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            message = self._unpacked(blob)
            if message is GOODBYE:
                return True
            if message[0] == "here":
                silent.discard(rank)
        return False

    def _call(
        self,
        task: bytes,
        sources: Mapping[str, Source],
        needs: Mapping[str, Needs],
        on_event: OnEvent | None,
        on_question: OnQuestion | None,
    ) -> list[Any]:
        self.started = False
        self.refresh()
        if self._calling:  # a second interrupt kept the last call from ending its ranks
            self._end(force=True)
        self._calling = True
        self._call_number += 1
        try:
            deliveries = pack(self.launcher.begin(sources, needs))
            if not self._seats:
                self._start()
            self.started = True
            blob = pack(("call", self._call_number, task, deliveries, search_path()))
            self._looked = now = time.monotonic()
            for seat in self._seats.values():
                seat.last_beat = now
                seat.link.send_packed(blob)
            results = self._collect(on_event, on_question)
        finally:
            self.launcher.finish()
        if not self.launcher.warm:
            self._end(force=False)
        self._calling = False
        return results

    def _start(self) -> None:
        _check_slots(self.launcher, self.world - self.launcher.servers)  # a cluster may have lost hosts
        self.holds = None
        inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._inbox = inbox
        arrivals: queue.SimpleQueue[tuple[Hello, mpc.Connection]] = queue.SimpleQueue()
        allow_files(2 * self.world)  # a connection that is being let in takes two
        door = self._open_door(lambda hello, connection: arrivals.put((hello, connection)))
        self.launcher.start(self.world, door.meeting)
        deadline = time.monotonic() + self.start_seconds
        while len(self._seats) < self.world:
            try:
                hello, connection = arrivals.get(timeout=0.1)
            except queue.Empty:
                missing = sorted(set(range(self.world)) - set(self._seats))
                for rank, reason in self.launcher.deaths().items():
                    raise WorkerError(
                        rank,
                        os.uname().nodename,
                        f"ended while starting: {reason}",
                        log_tail=self.launcher.tail(rank),
                    ) from None
                if self.launcher.preparing():
                    deadline = time.monotonic() + self.start_seconds
                if time.monotonic() > deadline:
                    raise WorkerError(
                        missing[0],
                        "an unknown host",
                        f"did not start within {self.start_seconds:.0f} s (missing ranks: {missing}). Look at "
                        f"the {self.launcher.runtime} runtime's own log, or check that workers can reach the "
                        f"driver at {door.meeting.host}.",
                    ) from None
                continue
            link = Link(connection, _Sorted(hello.rank, inbox), self._hub, unpickle=False)
            self._seats[hello.rank] = _Seat(hello, link)
            link.open()
        self._close_door()
        for rank, place in self._assign().items():
            self._seats[rank].link.send(("welcome", place))

    def _open_door(self, admit: Callable[[Hello, mpc.Connection], None]) -> Door:
        def work() -> None:
            self._hub = Hub()
            self._door = Door(self.launcher.bind, admit)

        run_to_end(work)  # an interrupt would lose a socket that is open but not assigned yet
        assert self._door is not None
        return self._door

    def _close_door(self) -> None:
        """Stop listening: all ranks have joined, or nobody waits for them anymore."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def _assign(self) -> dict[int, Rank]:
        hosts: dict[str, list[int]] = {}
        for rank in sorted(self._seats):
            hosts.setdefault(self._seats[rank].hello.host_id, []).append(rank)
        places: dict[int, Rank] = {}
        for ranks in hosts.values():
            for local_rank, rank in enumerate(ranks):
                hello = self._seats[rank].hello
                threads = max(1, hello.cpus // len(ranks))
                if self.launcher.resources.cpus is not None and rank < self.world - self.launcher.servers:
                    threads = self.launcher.resources.cpus
                place = Rank(rank, self.world, local_rank, len(ranks), hello.host, hello.address, threads)
                places[rank] = replace(place, devices=hello.devices)
        return places

    def _collect(self, on_event: OnEvent | None, on_question: OnQuestion | None) -> list[Any]:
        results: dict[int, Any] = {}
        gathers: _Gathers = {}
        tick = checked = time.monotonic()
        while len(results) < self.world:
            try:
                rank, blob = self._inbox.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                rank, blob = -1, None
            now = time.monotonic()
            if now - tick > 3:
                # This process itself was asleep (suspended laptop, stopped notebook): the ranks are not to blame.
                for seat in self._seats.values():
                    seat.last_beat = min(now, seat.last_beat + now - tick)
            tick = now
            if self._stopping.is_set():
                raise OrcaError("The workers were stopped from another thread.")
            if now - checked > _CHECK_SECONDS:
                # Looking at all ranks after each message would cost the square of their number.
                checked = now
                self._check_beats(set(results))
            if blob is None:
                continue
            message = self._unpacked(blob)
            seat = self._seats[rank]
            if message is GOODBYE:
                self._fail([self._death(rank)])
            kind, number, *content = message
            if number == self._call_number:
                if kind == "event":
                    self._event(seat, content[0], on_event)
                elif kind == "gather":
                    self._gather(gathers, rank, *content)
                elif kind == "question":
                    seat.link.send(("answer", None if on_question is None else on_question(content[0])))
                elif kind == "result":
                    results[rank] = pickle.loads(content[0])
                elif kind == "error":
                    self._fail([raised(rank, seat.hello.host, content[0])])
        return [results[rank] for rank in range(self.world)]

    def _gather(self, gathers: _Gathers, rank: int, turn: tuple[int, int], value: bytes) -> None:
        """Add a rank's value to its turn; when all members have sent theirs, send them the values."""
        values = gathers.setdefault(turn, {})
        values[rank] = value
        members = turn[0]
        if len(values) == members:
            # Packed once: the same bytes go to all. Equal values, such as the None of a barrier, are in it only once.
            distinct: dict[bytes, bytes] = {}
            ordered = [distinct.setdefault(values[member], values[member]) for member in range(members)]
            reply = pickle.dumps(("gathered", ordered), protocol=5)
            for other in range(members):
                self._seats[other].link.send_packed(reply)
            del gathers[turn]

    @staticmethod
    def _unpacked(blob: Any) -> Any:
        """Return a message; one that cannot be read is the last one of its rank."""
        if blob is GOODBYE:
            return GOODBYE
        try:
            return pickle.loads(blob)
        except Exception:
            return GOODBYE

    def _event(self, seat: _Seat, event: object, on_event: OnEvent | None) -> None:
        if isinstance(event, LogLine):
            seat.log.append(event.line)
        if on_event is not None:
            on_event(event)

    def _check_beats(self, done: set[int]) -> None:
        now = time.monotonic()
        if now - self._looked > _LOST_SECONDS:
            self._looked = now
            for rank, reason in self.launcher.lost().items():
                if rank not in done:
                    cause = f"is lost: {reason}."
                    self._fail([Failure(rank, self._seats[rank].hello.host, cause, "", ConnectionError(cause))])
        for rank, seat in self._seats.items():
            silence = now - seat.heard()
            if rank in done or silence < _STOPPED_SECONDS or not self._is_stalled(seat, silence):
                continue
            reasons = "process stopped, or blocked in native code"
            if seat.hello.host_id != self._here:
                reasons = f"its host does not answer at {seat.hello.address}, or {reasons}"
            cause = f"stalled: no heartbeat for {silence:.0f} s ({reasons})."
            self._fail([Failure(rank, seat.hello.host, cause, "", TimeoutError(cause))])

    def _is_stalled(self, seat: _Seat, silence: float) -> bool:
        """Distinguish a rank that will not come back from one in a long call that holds the GIL."""
        if seat.hello.host_id != self._here:
            return silence > 3 * self._stall_seconds
        try:
            if not lives(seat.hello):
                return silence > self._stall_seconds
            process = psutil.Process(seat.hello.pid)
            if process.status() == psutil.STATUS_STOPPED:
                return True
            now = time.monotonic()
            times = process.cpu_times()
            spent = times.user + times.system
            # Threads that wait for the GIL burn a little by themselves; only real work counts as life.
            worked = spent - seat.cpu_spent > _BUSY_SHARE * (now - seat.cpu_seen)
            if worked or process.status() == psutil.STATUS_DISK_SLEEP:
                seat.cpu_spent, seat.cpu_seen = spent, now
            return silence > self._stall_seconds and now - seat.cpu_seen > self._stall_seconds
        except psutil.Error:
            return silence > self._stall_seconds

    def _death(self, rank: int) -> Failure:
        seat = self._seats[rank]
        # The runtime learns of a death a moment after the connection breaks.
        end = time.monotonic() + 2
        reason = ""
        while not reason and time.monotonic() < end:
            reason = self.launcher.deaths().get(rank, "")
            if not reason:
                time.sleep(0.05)
        cause = f"died: {reason or 'its process is gone'}."
        return Failure(rank, seat.hello.host, cause, "", ConnectionError(cause))

    def _fail(self, failures: list[Failure]) -> None:
        """Wait a moment for reports of other ranks, then raise one error that names the first cause."""
        # A rank that raised by itself is the cause; one that died or lost its peer may only be the first to report.
        plain = bool(failures[0].traceback) and not failures[0].echo
        now = time.monotonic()
        end, last = now + (_GRACE_SECONDS / 3 if plain else _GRACE_SECONDS), now + _CAUSE_SECONDS
        while len(failures) < self.world:
            left = (last if all(failure.echo for failure in failures) else end) - time.monotonic()
            if left <= 0:
                break
            try:
                rank, blob = self._inbox.get(timeout=left)
            except queue.Empty:
                break
            message = self._unpacked(blob)
            if any(failure.rank == rank for failure in failures):
                continue
            if message is GOODBYE:
                failures.append(self._death(rank))
            elif message[1] != self._call_number:
                continue
            elif message[0] == "error":
                failures.append(raised(rank, self._seats[rank].hello.host, message[2]))
            elif message[0] == "event" and isinstance(message[2], LogLine):
                self._seats[rank].log.append(message[2].line)
        first = min(failures, key=lambda failure: failure.priority)
        tail = self.launcher.tail(first.rank) or list(self._seats[first.rank].log)
        raise WorkerError(
            first.rank,
            first.host,
            first.cause,
            remote_traceback=first.traceback,
            log_tail=tail,
            failures={failure.rank: failure.error for failure in failures},
            role=self.roles[first.rank] if first.rank < len(self.roles) else "",
        ) from (first.error if first.traceback else None)

    def _end(self, force: bool) -> None:
        if self._door is not None or self._seats or self._hub is not None or self._calling:
            run_to_end(lambda: self._end_ranks(force))

    def _end_ranks(self, force: bool) -> None:
        try:
            self._close_door()
            if not force:
                for seat in self._seats.values():
                    seat.link.send(("stop",))
            # By force, the runtime ends the processes before the links close: a rank that lost its link would
            # leave on its own, and the runtime would report that as a crash.
            self.launcher.stop({rank: seat.hello for rank, seat in self._seats.items()}, 0.0 if force else 3.0)
        finally:
            for seat in self._seats.values():
                seat.link.close(flush_seconds=0.05 if force else 2.0)
                self.received_bytes += seat.link.received_bytes
            self._seats.clear()
            if self._hub is not None:
                self._hub.close()
                self._hub = None
            self.holds = None
            self._calling = False


def _check_slots(launcher: Launcher, workers: int) -> None:
    obstacle = launcher.obstacle(workers)
    if obstacle:
        needs = f" with {launcher.resources} each" if launcher.resources.named else ""
        raise ResourceError(f"workers={workers}{needs} does not fit: {obstacle}")
