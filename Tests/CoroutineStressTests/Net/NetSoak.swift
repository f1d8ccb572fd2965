import Coroutine
import CoroutineNet
import Glibc
import Synchronization

/// Conversations with an echo server, many at once, that end in every way a connection can end.
///
/// The client's first byte tells the server how the conversation ends on its side. Every later byte is determined by
/// the conversation's seed and by its place, so each received byte shows whether one was lost, repeated or moved.
final class NetSoak: Sendable {
  /// How one conversation ends.
  enum Ending: UInt8, CaseIterable {
    /// The client shuts down its direction and reads to the end: every byte must come back.
    case complete
    /// The client closes while both directions are in use.
    case close
    /// The client resets the connection.
    case reset
    /// The deadline of the client's timeout passes at a random moment.
    case timeout
    /// The client's coroutine is cancelled at a random moment.
    case cancelled
    /// The server closes after some bytes.
    case serverCloses
    /// The server's handler fails after some bytes.
    case serverFails
  }

  struct HandlerFailure: Error {}

  let stress = Stress()
  /// The conversations of each kind that have ended as they should.
  let ended = SoakGuarded([Ending: Int]())
  let findings = SoakGuarded([String]())
  let number = Atomic(0)

  /// Whether each kind of conversation has ended, and `count` of all kinds together.
  func haveEnded(_ count: Int) -> Bool {
    ended.with { $0.count == Ending.allCases.count && $0.values.reduce(0, +) >= count }
  }

  func find(_ text: String) { findings.with { if $0.count < 20 { $0.append(text) } } }

  // MARK: the clients

  /// One conversation, from connecting to the end.
  func converse(with address: SocketAddress) throws {
    let part = number.add(1, ordering: .relaxed).newValue
    var random = stress.random(part)
    let ending = Ending.allCases.randomElement(using: &random).unsafelyUnwrapped
    let talk = Talk(
      soak: self,
      connection: try Connection.connect(to: address),
      ending: ending,
      count: Int.random(in: 1...40_000, using: &random),
      seed: random.next()
    )
    do {
      let limit = Duration.microseconds(Int.random(in: 0..<3_000, using: &random))
      switch ending {
      case .timeout: try co_timeout(limit) { try talk.run(&random) }
      case .cancelled: try talk.run(random, cancelledAfter: limit)
      default: try talk.run(&random)
      }
    } catch {
      if !talk.mayThrow(error) { find("conversation \(part), \(ending): \(error)") }
    }
    talk.connection.close()
    ended.with { $0[ending, default: 0] += 1 }
  }
}

/// The client's side of one conversation.
private struct Talk: Sendable {
  let soak: NetSoak
  let connection: Connection
  let ending: NetSoak.Ending
  let count: Int
  let seed: UInt64

  func run(_ random: inout SeededRandom) throws {
    try connection.write([ending.rawValue])
    let cut = ending == .complete ? Int.max : Int.random(in: 0...count, using: &random)
    var chunks = random
    try co_scope { scope in
      let reader = scope.launch { try read(cut) }
      var sent = 0
      while sent < count {
        let next = min(count, sent + Int.random(in: 1...6_000, using: &chunks))
        try connection.write((sent..<next).map { byte($0) })
        sent = next
      }
      try connection.shutdownWrite()
      let received = try reader.join()
      if ending == .complete, received != count { soak.find("\(received) of \(count) bytes came back") }
    }
  }

  /// Talks in a coroutine of its own, which is cancelled after some time.
  func run(_ random: SeededRandom, cancelledAfter time: Duration) throws {
    let job = co_launch {
      var random = random
      try run(&random)
    }
    try co_delay(time)
    job.cancel()
    try job.join()
  }

  /// Reads and compares up to the end of the stream, or up to `cut` bytes; then it ends the connection.
  private func read(_ cut: Int) throws -> Int {
    var received = 0
    while received < cut {
      let bytes = try connection.read(upTo: 5_000)
      if bytes.isEmpty { return received }
      for value in bytes {
        if value != byte(received) { soak.find("byte \(received) of a conversation, \(ending), is another one") }
        received += 1
      }
    }
    switch ending {
    case .close: connection.close()
    case .reset:
      var linger = linger(l_onoff: 1, l_linger: 0)
      connection.withUnsafeDescriptor { descriptor in
        _ = setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &linger, socklen_t(MemoryLayout<Glibc.linger>.size))
      }
      connection.close()
    default: break
    }
    return received
  }

  private func byte(_ place: Int) -> UInt8 { UInt8(truncatingIfNeeded: (seed &+ UInt64(place)) &* 0x9E37 >> 7) }

  /// Whether the conversation's ending explains the error.
  func mayThrow(_ error: any Error) -> Bool {
    switch ending {
    case .timeout: return error is TimeoutError || isCutOff(error)
    case .cancelled: return error is CancellationError || isCutOff(error)
    case .complete: return false
    case .close, .reset: return (error as? NetError) == .closed || isCutOff(error)
    case .serverCloses, .serverFails: return isCutOff(error)
    }
  }

  private func isCutOff(_ error: any Error) -> Bool {
    let code = (error as? NetError)?.code
    return code == ECONNRESET || code == EPIPE || code == ENOTCONN
  }
}
