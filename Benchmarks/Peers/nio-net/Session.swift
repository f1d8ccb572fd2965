import MinimalHTTP
import NIOCore

/// What a server sends for what it has received: the same bytes, or a response for each request that ends in them.
struct Session {
  private static let answer = ByteBuffer(bytes: response)

  private let answersHTTP: Bool
  private var counter = RequestCounter()

  init(answersHTTP: Bool) { self.answersHTTP = answersHTTP }

  /// Returns the bytes to send; nil if there are none.
  mutating func reply(to bytes: ByteBuffer) -> ByteBuffer? {
    guard answersHTTP else { return bytes }
    switch bytes.withUnsafeReadableBytes({ counter.ends(in: $0) }) {
    case 0: return nil
    case 1: return Self.answer
    case let ends:
      var answers = Self.answer
      for _ in 1..<ends { answers.writeImmutableBuffer(Self.answer) }
      return answers
    }
  }
}
