"""The data plane: bytes and sockets, HTTP/1.1 on both sides, no routing.

    client bytes -> listener.ClientConnection -> message.Request -> (proxy decides) -> relay.Relay
                 <- relay splices            <- upstream.UpstreamConnection          <- pool.BackendPool

Two protocol objects meet in one `Relay`: what the backend's socket yields is written to the client's
transport in the same callback, without a task, a queue or a second look at the bytes. Only the first
connection to a backend needs a task; everything else happens inside `data_received`.

A streamed token, the commonest thing here, takes a shorter way: `lane` passes whole chunks on as they are.

Two rules. A request is whole before anything of it is forwarded, so an attempt can be repeated and framing
can not be ambiguous. A response is never held back, so nothing of it can be repeated once its head went out.

This package knows sockets, headers and time limits. It must not know models, keys, policies or metrics: the
object that owns a request (`relay.Owner`) decides, this package carries out.
"""
