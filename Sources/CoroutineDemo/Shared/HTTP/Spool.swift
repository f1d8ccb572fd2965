#if Demo
import Coroutine
import Foundation

/// What has arrived of an answer and has not been read yet.
///
/// On Linux URLSession cannot be told to wait: it hands on what the network brings, however slowly that is read. So the
/// bytes lie in a file without a name in between, and memory stays flat whatever the size.
///
///     open ── append … ──► open ── finish ──► finished, with or without a failure
///
/// One thread at a time appends, one coroutine reads. `written` says how far the file may be read; it goes up before
/// `arrivals` is told, so a reader that finds nothing new waits for a message that is still to come.
final class Spool: ByteSource, Sendable {
  private let file: ScratchFile
  private let longest: Int
  private let written = Locked(0)
  private let offset = Locked(0)
  /// Holds one message at most: "there is more" says it all.
  ///
  /// Closed at the end, with the failure where there was one.
  private let arrivals = Channel<Void>(.dropOldest(1))

  /// `longest` is how many bytes are accepted.
  init(longest: Int) throws(OutputError) {
    file = try ScratchFile()
    self.longest = longest
  }

  /// Throws where the disk is full, or the answer longer than it may be.
  func append(_ data: Data) throws {
    let count = written.withLock { $0 } + data.count
    guard count <= longest else { throw SpoolOverflow(longest: longest) }
    try file.write(data)
    written.withLock { $0 = count }
    _ = arrivals.trySend(())
  }

  func finish(_ failure: (any Error)? = nil) {
    arrivals.close(failure)
  }

  /// Suspends until there is something to read, or the end; throws what the answer failed with, after all that came
  /// before.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    while true {
      let start = offset.withLock { $0 }
      if start < written.withLock({ $0 }) {
        let count = try file.read(at: start, into: buffer)
        offset.withLock { $0 = start + count }
        return count
      }
      if try arrivals.receive() == nil { return 0 }
    }
  }
}

/// An answer that is longer than it may be.
struct SpoolOverflow: Error, Equatable, CustomStringConvertible {
  var longest: Int

  var description: String { "it is longer than \(longest / 1_000_000) MB" }
}
#endif
