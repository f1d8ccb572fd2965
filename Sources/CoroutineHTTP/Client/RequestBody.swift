#if HTTP
import Coroutine
import CoroutineNet
import Synchronization

// The body of a request on its way.
//
// A server may answer before it has the whole body: it refuses it, or streams back what it gets. So a body that the
// system does not take at once is written by a coroutine of its own, while that of the exchange reads.
//
//   WRITING --- the last byte is written ------------------> WRITTEN: the connection may be kept
//      |  cancelled: the answer is no success, or was released    |
//      +---------------------------------------------------> ENDED: the connection is closed with its response
//      |  the program has failed: the connection is closed at once, so that the reader ends
//
// Owner: the coroutine that writes; the exchange only cancels it, and looks at how it has ended.

/// A request's body, which is sent in parts.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/EarlyAnswerTests.swift -->
/// ```swift
/// let response = try client.send(request) { body in
///   for part in parts { try body.write(part) }
/// }
/// ```
public struct RequestBody: ~Copyable {
  private let transport: Transport
  private let declared: UInt64?
  private var written: UInt64 = 0

  init(_ transport: Transport, length: UInt64?) {
    self.transport = transport
    declared = length
  }

  /// Writes a part.
  ///
  /// Suspends while the server takes nothing. The errors end the body: `NetError`, ``TLSError``; ``HTTPError`` if there
  /// are more bytes than were declared; the cancellation error, also when the server has refused the body.
  @available(*, noasync, message: "the body is written in a coroutine: call it there")
  public mutating func write(_ part: UnsafeRawBufferPointer) throws {
    guard part.count > 0 else { return try co_checkCancelled() }
    written += UInt64(part.count)
    guard let declared else {
      let size = Array("\(String(part.count, radix: 16))\r\n".utf8)
      return try size.withUnsafeBytes { size in
        try Self.lineEnd.withUnsafeBytes { try transport.write(size, part, $0) }
      }
    }
    if written > declared { throw HTTPError.length(declared: declared, written: written) }
    try transport.write(part)
  }

  /// Writes a part, as ``write(_:)-(UnsafeRawBufferPointer)``; throws the failure of a generator before any of its
  /// bytes.
  @available(*, noasync, message: "the body is written in a coroutine: call it there")
  public mutating func write(_ part: some Sequence<UInt8>) throws {
    let all = Array(part)
    try part.throwFailure()
    try all.withUnsafeBytes { try write($0) }
  }

  private static let lineEnd = Array("\r\n".utf8)

  mutating func finish() throws {
    if let declared {
      if written != declared { throw HTTPError.length(declared: declared, written: written) }
    } else {
      try Array("0\r\n\r\n".utf8).withUnsafeBytes { try transport.write($0) }
    }
  }
}

/// What a request sends behind its head.
enum OutgoingBody {
  case bytes([UInt8])
  case parts(length: UInt64?, @Sendable (inout RequestBody) throws -> Void)

  /// The number of bytes up to which a body is written before the answer is read: sockets take as many.
  static var small: Int { 16_384 }

  /// Whether it can be sent once more.
  var isRepeatable: Bool { if case .bytes = self { true } else { false } }
}

/// The coroutine that writes a body.
final class Upload: Sendable {
  private let job: Job<Void>
  private let outcome: Outcome

  private final class Outcome: Sendable {
    let isWritten = Atomic<Bool>(false)
    /// Not shared: read when the exchange has failed.
    let failure = ThreadMutex<(any Error)?>(nil)
  }

  init(_ transport: Transport, length: UInt64?, _ write: @escaping @Sendable (inout RequestBody) throws -> Void) {
    let outcome = Outcome()
    self.outcome = outcome
    job = co_launch(name: "http body") {
      do {
        var body = RequestBody(transport, length: length)
        try write(&body)
        try body.finish()
        outcome.isWritten.store(true, ordering: .releasing)
      } catch {
        if co_isCancelled { return }
        outcome.failure.withLock { $0 = error }
        // A server that takes no more may have answered. Of a program that has failed it gets no whole body.
        if !(error is NetError || error is TLSError) { transport.connection.close() }
      }
    }
  }

  deinit { job.cancel() }

  var isWritten: Bool { outcome.isWritten.load(ordering: .acquiring) }
  var failure: (any Error)? { outcome.failure.withLock { $0 } }
  func cancel() { job.cancel() }

  /// Waits for a moment until the last byte, which the server has got, counts as written here; not for a server that
  /// answers without taking the body.
  func settle() { if !isWritten { _ = try? co_timeout(.milliseconds(50)) { try job.join() } } }
}
#endif
