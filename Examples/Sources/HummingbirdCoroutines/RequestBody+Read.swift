import Coroutine
public import Hummingbird
public import NIOCore

extension RequestBody {
  /// Starts to read the body; called once for a request.
  ///
  /// Never suspends.
  @available(*, noasync, message: "use `for try await`")
  public func reader() -> CoroutineBodyReader { CoroutineBodyReader(iterator: makeAsyncIterator()) }

  /// Receives the whole body, and suspends until it has arrived.
  ///
  /// - Throws: An error that is answered with 413 if the body is larger than `limit` bytes; the error of the
  ///   connection; the cancellation error.
  @available(*, noasync, message: "use `collect(upTo:)`")
  public func collected(upTo limit: Int) throws -> ByteBuffer {
    try co_awaitToEnd { try await collect(upTo: limit) }
  }
}

/// Receives a request's body part by part.
///
/// ```swift
/// var body = request.body.reader()
/// while let part = try body.read() { size += part.readableBytes }
/// ```
///
/// Parts are read from the connection when the handler asks for them. So a client that sends faster than the handler
/// reads is stopped when a few parts and the system's buffers are full.
public struct CoroutineBodyReader {
  fileprivate var iterator: RequestBody.AsyncIterator
  /// Thrown by each later read: a sequence that has failed only says that it has ended.
  private var failure: (any Error)?

  fileprivate init(iterator: RequestBody.AsyncIterator) { self.iterator = iterator }

  /// Receives the next part; nil at the end of the body.
  ///
  /// Suspends until a part has arrived.
  /// - Throws: The error of the connection; the cancellation error, also of a deadline. What was not read by then is
  ///   lost, so every later call throws the same error.
  @available(*, noasync, message: "use `for try await`")
  public mutating func read() throws -> ByteBuffer? {
    if let failure { throw failure }
    // Sound because the coroutine waits for the end of the call.
    nonisolated(unsafe) var iterator = iterator
    defer { self.iterator = iterator }
    do {
      return try co_awaitToEnd { try await iterator.next() }
    } catch {
      failure = error
      throw error
    }
  }
}
