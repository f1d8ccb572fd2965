import Coroutine
import CoroutineNet
import Glibc
import Synchronization

// The server's side of a conversation. On each route the client's bytes come back, so the client's checks of their
// order and number hold for all of them.
extension NetSoak {
  /// How the server echoes.
  private enum Route: CaseIterable {
    /// By reads and writes.
    case plain
    /// By a copy to a coroutine that echoes.
    case copied
    /// In a child, which takes over what a reader has read ahead.
    case handedOver
    /// Over a copy of the descriptor, which is adopted, while the first one is closed.
    case adopted
  }

  /// Answers with what it receives.
  @Sendable func serve(_ connection: Connection) throws {
    var random = stress.random(-1 - number.add(1, ordering: .relaxed).newValue)
    guard let first = try connection.read(upTo: 1).first, let ending = Ending(rawValue: first) else { return }
    switch Route.allCases.randomElement(using: &random).unsafelyUnwrapped {
    case .plain: try echo(over: connection, ending, &random)
    case .copied: try echoByCopy(over: connection, ending, random)
    case .handedOver:
      var reader = BufferedReader(connection, capacity: Int.random(in: 1...9_000, using: &random))
      for _ in 0..<Int.random(in: 0...2, using: &random) { _ = try reader.fill() }
      let (rest, state) = (reader.takeBuffered(), random)
      try co_scope { scope in
        scope.launch {
          var random = state
          try connection.write(rest)
          try self.echo(over: connection, ending, &random)
        }
      }
    case .adopted:
      let copy = connection.withUnsafeDescriptor { dup($0) }
      let adopted: Connection
      do {
        adopted = try Connection.adopting(copy)
      } catch {
        close(copy)
        throw error
      }
      defer { adopted.close() }
      connection.close()
      try echo(over: adopted, ending, &random)
    }
  }

  private func echoByCopy(over connection: Connection, _ ending: Ending, _ random: SeededRandom) throws {
    let (near, far) = try Connection.pair()
    defer { near.close() }
    try co_scope { scope in
      scope.launch {
        var random = random
        defer { far.close() }
        try self.echo(over: far, ending, &random)
      }
      try co_copy(connection, near, idle: .seconds(600))
    }
  }

  private func echo(over connection: Connection, _ ending: Ending, _ random: inout SeededRandom) throws {
    let isCut = ending == .serverCloses || ending == .serverFails
    var left = isCut ? Int.random(in: 0..<30_000, using: &random) : .max
    while left > 0 {
      let bytes = try connection.read(upTo: Int.random(in: 1...9_000, using: &random))
      if bytes.isEmpty { return }
      if Int.random(in: 0..<8, using: &random) == 0 { try co_yield() }
      if Int.random(in: 0..<64, using: &random) == 0 { try co_delay(.microseconds(300)) }
      try connection.write(bytes)
      left -= min(left, bytes.count)
    }
    if ending == .serverFails { throw HandlerFailure() }
  }

  /// What a handler may throw here: its own failure, and what a client that goes away makes of a read or a write.
  @Sendable func judge(_ error: any Error, _ address: SocketAddress) {
    if error is HandlerFailure { return }
    let code = (error as? NetError)?.code
    if code == ECONNRESET || code == EPIPE || code == ENOTCONN { return }
    find("a handler for \(address) ended with \(error)")
  }
}
