#if Demo
import Coroutine
import CoroutineNet
import Synchronization

/// A line chat: rooms, names, and a policy for each way in which a client may misbehave.
final class ChatServer: Sendable {
  /// Clients beyond the limit that may be told so at once; more of them wait to be accepted.
  private static let refusals = 16
  private let options: ChatOptions
  /// Receives what is wrong with the server itself: a shortage of descriptors, a bug.
  private let onError: @Sendable (String) -> Void
  private let lastID = Atomic<Int>(0)

  init(_ options: ChatOptions = ChatOptions(), onError: @escaping @Sendable (String) -> Void = { _ in }) {
    self.options = options
    self.onError = onError
  }

  /// Serves until it is told to stop (`co_stopping`), or is cancelled.
  ///
  /// Every client then gets a good-bye, and this returns what the server has done when the last one has gone, at the
  /// latest after `ChatOptions.drain`.
  /// - Throws: `NetError` if the address cannot be bound.
  func run(at address: SocketAddress, onListening: @escaping (SocketAddress) -> Void = { _ in }) throws -> ChatTally {
    let tally = Promise<ChatTally>()
    let hub = ChatHub.launch(options, tally: tally)
    defer { hub.stop() }
    try co_scope { scope in
      let closing = scope.launch(name: "closing") {
        // Told, or cancelled: in both cases the clients are told.
        defer { try? co_shield { try hub.tell(.closing) } }
        try co_await(co_stopping)
      }
      defer { closing.cancel() }
      try Server.run(address, options: serverOptions, onListening: onListening) { [self] connection in
        let id = lastID.add(1, ordering: .relaxed).newValue
        try ChatSession(id: id, connection: connection, hub: hub, options: options).run()
      }
    }
    hub.stop()
    return try co_shield { try co_await(tally) }
  }

  private var serverOptions: Server.Options {
    var server = Server.Options()
    server.maxConnections = options.limit + Self.refusals
    server.drain = options.drain
    server.stack = ChatSession.stack
    server.onError = { [onError] error, address in onError("\(address): \(error)") }
    return server
  }
}
#endif
