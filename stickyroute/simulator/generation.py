"""One request that generates, from admission to its last byte, on a connection.

Owns the reply's progress and what a fault makes of it. The server feeds it tokens; it knows no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from stickyroute.simulator.faults import Fault
from stickyroute.simulator.kvevents import Origin
from stickyroute.simulator.replies import DONE, Reply, Usage, WholeReply
from stickyroute.simulator.scheduler import Sequence
from stickyroute.simulator.wire import END_OF_CHUNKS, JSON, Connection


class Choice:
    """One sequence of a request: the text it will say, and how much of it is out. `last_s` is engine time;
    `origin` is told with KV events."""

    __slots__ = ("generation", "index", "last_s", "origin", "pieces", "sent", "sequence")

    def __init__(self, generation: Generation, index: int, pieces: Seq[str], origin: Origin) -> None:
        self.generation = generation
        self.index = index
        self.pieces = pieces
        self.origin = origin
        self.sent = 0
        self.last_s = 0.0
        self.sequence: Sequence | None = None


class Generation:
    """Answers one request through `reply`; `on_end(generation, left)` is called once, `left` if the client
    went away.

    `usage` turns the finished sequences into counts. A stream's head is written at once, as vLLM does; with
    `head_waits` (SGLang) it comes with the first token.
    """

    def __init__(
        self,
        connection: Connection,
        reply: WholeReply,
        stream: Reply | None,
        reason: str,
        usage: Callable[[Generation], Usage],
        on_end: Callable[[Generation, bool], None],
        fault: Fault | None = None,
        head_waits: bool = False,
        headers: Callable[[], bytes] | None = None,
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.choices: list[Choice] = []
        self.ended = False
        self._reply = reply
        self._reason = reason
        self._reasons: dict[int, str] = {}
        self._usage = usage
        self._on_end = on_end
        self._fault = fault
        self._tokens = 0
        self._headed = False
        self._silent = False
        self._headers = headers if headers is not None else bytes
        if stream is not None and not head_waits:
            self._head(stream)

    def token(self, choice: Choice) -> None:
        """One more token of a choice."""
        if self.ended or self._silent:
            return
        fault = self._fault
        if fault is not None and self._tokens >= fault.after_tokens:
            self._fail(fault)
            return
        self._tokens += 1
        first = not choice.sent
        piece = choice.pieces[choice.sent]
        choice.sent += 1
        complete = choice.sent == len(choice.pieces)
        if complete:
            self._reasons[choice.index] = self._reason
        stream = self.stream
        if stream is not None:
            if not self._headed:
                self._head(stream)
            data = stream.opening(choice.index) if first else b""
            if complete:
                data += stream.last(choice.index, piece, self._reason)
            else:
                data += stream.token(choice.index, piece)
            self.connection.write(data)
        if complete and len(self._reasons) == len(self.choices):
            self._finish()

    def computed(self, choice: Choice) -> None:
        """A choice without an answer (an embedding) is done."""
        self._reasons[choice.index] = self._reason
        if not self.ended and len(self._reasons) == len(self.choices):
            self._finish()

    def abort(self, error: bytes = b"") -> None:
        """The engine stops: a stream ends in order, with finish reason `abort`, or with an error event
        instead."""
        if self.ended:
            return
        stream = self.stream
        if stream is None:
            self._end(left=False)
            self.connection.close()
            return
        if not self._headed:
            self._head(stream)
        if error:
            data = error + DONE
        else:
            cut = [choice.index for choice in self.choices if choice.index not in self._reasons]
            data = b"".join(stream.last(index, "", "abort") for index in cut) + stream.closing(
                self._usage(self)
            )
        self.connection.write(data + END_OF_CHUNKS)
        self._end(left=False)
        self.connection.finished()

    def left(self) -> None:
        """The client went away."""
        self._end(left=True)

    def forget(self) -> None:
        """The engine died: nobody counts this request any more."""
        self.ended = True

    def reason_of(self, choice: Choice) -> str:
        """Why a choice ended; `abort` when the engine stopped before."""
        return self._reasons.get(choice.index, "abort")

    def _head(self, stream: Reply) -> None:
        self._headed = True
        self.connection.start_stream()
        greeting = stream.greeting()
        if greeting:
            self.connection.write(greeting)

    def _finish(self) -> None:
        usage = self._usage(self)
        self._end(left=False)
        if self.stream is not None:
            self.connection.write(self.stream.closing(usage) + END_OF_CHUNKS)
            self.connection.finished()
            return
        texts = ["".join(choice.pieces) for choice in self.choices]
        reasons = [self._reasons[choice.index] for choice in self.choices]
        self.connection.respond(200, self._reply.body(texts, reasons, usage), JSON, self._headers())

    def _fail(self, fault: Fault) -> None:
        self._fault = None
        if fault.kind == "hang_mid_stream":
            self._silent = True  # nothing more comes out; the sequences run on and the connection stays
            return
        self._end(left=True)
        if fault.kind == "reset":
            self.connection.reset()
        else:
            self.connection.close()

    def _end(self, left: bool) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self, left)
