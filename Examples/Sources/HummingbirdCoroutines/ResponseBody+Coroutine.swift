import Coroutine
public import HTTPTypes
public import Hummingbird
public import NIOCore

extension ResponseBody {
  /// A body that a coroutine writes, after the head of the response is sent.
  ///
  /// ```swift
  /// Response(status: .ok, body: .coroutine { writer in
  ///   for number in 1...10 {
  ///     try writer.write("\(number)\n")
  ///     try co_delay(.seconds(1))
  ///   }
  /// })
  /// ```
  ///
  /// The coroutine begins on the thread of the request's Task, and continues on the shared worker pool after its first
  /// wait. It is cancelled with the Task. The body ends when `write` returns. If it throws, the connection is closed,
  /// so that the client sees that the response is incomplete; Hummingbird logs the error at the level `trace`, as that
  /// of every body. A body whose length is not the declared one throws ``ResponseBodyLengthError``.
  /// - Parameters:
  ///   - contentLength: The number of bytes; nil sends a chunked body.
  ///   - name: The coroutine's name in dumps.
  ///   - write: Writes the body.
  public static func coroutine(
    contentLength: Int? = nil,
    name: String = "response body",
    _ write: @escaping @Sendable (CoroutineBodyWriter) throws -> Void
  ) -> ResponseBody {
    ResponseBody(contentLength: contentLength) { writer in
      // Sound because the Task waits for the end of the coroutine, so only one of them uses the writer.
      nonisolated(unsafe) let body = CoroutineBodyWriter(writer, declared: contentLength)
      try await RouteCoroutine.run(name, on: nil) { try write(body) }
      if let contentLength, body.written != contentLength {
        throw ResponseBodyLengthError(declared: contentLength, written: body.written)
      }
      try await body.writer.finish(body.trailers)
    }
  }
}

/// A response's body is shorter or longer than it was declared.
///
/// The client would take the next response for a part of this one, or the other way round.
public struct ResponseBodyLengthError: Error, CustomStringConvertible {
  /// The number of bytes that `ResponseBody.coroutine` was given.
  public let declared: Int
  /// The number of bytes that were written, with the part that was refused.
  public let written: Int

  /// A sentence that says what to do.
  public var description: String {
    "the body was declared to have \(declared) bytes, and \(written) were written: declare the right number, or none"
  }
}

/// Writes a response's body part by part.
///
/// Used by the coroutine that has received it, until that has ended.
public final class CoroutineBodyWriter {
  /// Headers that follow a chunked body.
  public var trailers: HTTPFields?
  fileprivate var writer: any ResponseBodyWriter
  private let declared: Int?
  fileprivate private(set) var written = 0

  fileprivate init(_ writer: any ResponseBodyWriter, declared: Int?) {
    (self.writer, self.declared) = (writer, declared)
  }

  /// Sends a part of the body.
  ///
  /// Suspends while the client takes less than is written.
  /// - Throws: The error of the connection; the cancellation error, and then the part is not sent;
  ///   ``ResponseBodyLengthError`` if the body gets longer than it was declared, and nothing is sent.
  @available(*, noasync, message: "use Hummingbird's ResponseBodyWriter")
  public func write(_ part: ByteBuffer) throws {
    if let declared, written + part.readableBytes > declared {
      throw ResponseBodyLengthError(declared: declared, written: written + part.readableBytes)
    }
    written += part.readableBytes
    // Sound because the coroutine waits for the end of the call.
    nonisolated(unsafe) var writer = writer
    defer { self.writer = writer }
    try co_awaitToEnd { try await writer.write(part) }
  }

  /// Sends a text as a part of the body; otherwise as ``write(_:)-(ByteBuffer)``.
  @available(*, noasync, message: "use Hummingbird's ResponseBodyWriter")
  public func write(_ text: String) throws { try write(ByteBuffer(string: text)) }
}
