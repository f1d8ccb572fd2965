#if Demo
import FlyingSocks
import Foundation

/// The connection is to be closed now.
struct BrokenOff: Error {}

/// An answer that is sent as badly as networks send: in small pieces, with pauses, or only its first part.
struct PacedBody: AsyncBufferedSequence {
  typealias Element = UInt8

  let data: Data
  let piece: Int
  var pause = Duration.zero
  /// nil: it is sent to its end.
  var breaksOffAfter: Int?

  func makeAsyncIterator() -> Iterator { Iterator(body: self) }

  struct Iterator: AsyncBufferedIteratorProtocol {
    fileprivate let body: PacedBody
    fileprivate var sent = 0

    mutating func next() async throws -> UInt8? {
      try await nextBuffer(suggested: 1)?.first
    }

    mutating func nextBuffer(suggested count: Int) async throws -> Data? {
      if let limit = body.breaksOffAfter, sent >= limit { throw BrokenOff() }
      if sent >= body.data.count { return nil }
      if sent > 0 && body.pause > .zero { try await Task.sleep(for: body.pause) }
      let piece = body.data.dropFirst(sent).prefix(Swift.min(body.piece, count))
      sent += piece.count
      return piece
    }
  }
}
#endif
