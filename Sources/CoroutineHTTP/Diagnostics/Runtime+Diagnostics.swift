#if HTTP
public import Coroutine
public import CoroutineNet
import Glibc

/// A server of diagnostics, which ``Coroutine/CoroutineRuntime/serveDiagnostics(at:allowsOtherMachines:)`` has started.
///
/// It serves until ``stop()``, or as long as the process lives, also if no reference is kept.
public final class DiagnosticsServer: Sendable {
  /// The address that it is bound to, with the port that the system chose.
  public let address: SocketAddress
  private let job: Job<Void>

  init(_ address: SocketAddress, _ job: Job<Void>) {
    self.address = address
    self.job = job
  }

  /// Stops serving: closes the listener and all connections.
  ///
  /// Never suspends, and does not wait for the end; any thread. A second call has no effect.
  public func stop() { job.cancel() }
}

extension CoroutineRuntime {
  /// Serves what an operator wants to know of this process, over HTTP/1.1.
  ///
  /// | path | what it has |
  /// |---|---|
  /// | `/` | a page for people |
  /// | `/dump`, `/stacks` | ``Coroutine/CoroutineRuntime/dump(_:)``, as text |
  /// | `/descriptors` | the same of `.descriptors`: the open connections, with peer, opener and idle time |
  /// | `/deadlocks` | circles of coroutines that wait for one another, as text |
  /// | `/coroutine?id=17` | one coroutine: what it waits for, its stack, and what it holds up; or how it has ended |
  /// | `/queues` | queues that hold something: ``Coroutine/CoroutineRuntime/queues(most:)`` |
  /// | `/ended` | the last 256 coroutines that have ended |
  /// | `/snapshot.json`, with `?stacks=1` | every coroutine, with its return addresses |
  /// | `/metrics` | the counters, for Prometheus |
  /// | `/profile?kind=live`, `waiting`, `growth` | a profile, for `go tool pprof` |
  /// | `/trace?seconds=1`, up to 60 | what happens from now on, for ui.perfetto.dev |
  ///
  /// It has its own thread, and answers while all workers and queues are blocked, and while the process has no
  /// descriptor left: it keeps two in reserve, for one client at a time. It needs no further thread; where there is no
  /// memory for a stack, it answers 500. It answers GET and HEAD alone, and no request changes what the program does. A
  /// trace starts the recorder for its time, unless it is on. A profile of the kind `growth` is compared with the
  /// profile before it.
  ///
  /// Names, launch sites and functions of the program are in the answers, and there is no password. So a server for
  /// other machines is refused, unless it is asked for. On a loopback address, a request must name it by an address or
  /// as `localhost`, because a page in a browser could have another name lead here. All users of this machine can read
  /// a loopback address; those that can reach the file can read a Unix socket.
  ///
  /// Never suspends; any thread, also where there is no coroutine. Several servers share the thread.
  ///
  /// - Parameters:
  ///   - address: A loopback address, or a Unix socket. With port 0 the system chooses one.
  ///   - allowsOtherMachines: Whether the address may be one that other machines can reach.
  /// - Returns: The server, for its address and its end; it need not be kept.
  /// - Throws: `NetError`: as `Listener.bind`; `EACCES` if other machines could reach the address, and this was not
  ///   asked for; the error of the system if the thread or its poller cannot be started.
  @discardableResult
  public static func serveDiagnostics(
    at address: SocketAddress,
    allowsOtherMachines: Bool = false
  ) throws(NetError) -> DiagnosticsServer {
    guard allowsOtherMachines || address.isOfThisMachine else {
      throw NetError(code: EACCES, "serving diagnostics to other machines, without allowsOtherMachines, at", address)
    }
    let listener = try Listener.bind(address)
    // One for the connection, one for the files that an answer reads (symbol tables, /proc).
    try listener.keepInReserve(2)
    let scheduler = try DiagnosticsLoop.scheduler(for: address)
    var options = HTTPServer.Options()
    options.server.maxConnections = 32
    options.server.drain = .zero
    options.idle = .seconds(10)
    // A snapshot with stacks keeps freed stacks in memory until its client has taken it.
    options.pause = .seconds(5)
    options.discardedSize = 0
    let handler = DiagnosticsHandler(checksHost: listener.address.port != nil && address.isOfThisMachine)
    CoroutineRuntime.keepEnded()
    let job = co_launch(on: scheduler, name: "diagnostics") { [options] in
      try co_scope { scope in
        // So that an operator who comes late learns since when the queues hold what they hold.
        scope.launch(name: "diagnostics.queues") {
          while true {
            CoroutineRuntime.lookAtQueues()
            try co_delay(.seconds(5))
          }
        }
        defer { scope.cancel() }
        try HTTPServer.run(listeners: [listener], options: options, handler.handle)
      }
    }
    return DiagnosticsServer(listener.address, job)
  }
}

extension SocketAddress {
  /// Whether only this machine can reach a socket that is bound here: loopback, or a Unix socket.
  var isOfThisMachine: Bool {
    let host = canonical.host
    return port == nil || host == "::1" || host.hasPrefix("127.")
  }
}
#endif
