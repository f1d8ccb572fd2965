#if Demo
import Foundation

@testable import CoroutineDemo

/// A pipe that another process opens by its name: what it reads is written when a test wants that.
struct NamedPipe {
  let path: String

  init(_ path: String) throws {
    self.path = path
    // A reader that leaves is a failed write then, instead of the end of all tests.
    signal(SIGPIPE, SIG_IGN)
    guard mkfifo(path, 0o600) == 0 else { throw POSIXError(POSIXErrorCode(rawValue: errno) ?? .EIO) }
  }

  /// Writes `text`, on a thread of its own, as the reader takes it; the pipe stays open after that until `close`.
  func write(_ text: String) -> Writing {
    let writing = Writing()
    let path = path
    Thread.detachNewThread {
      guard let handle = FileHandle(forWritingAtPath: path) else { return }
      // A reader that has left is the test's business, not the writer's.
      try? handle.write(contentsOf: Data(text.utf8))
      writing.handle.withLock { $0 = handle }
      writing.written.happen(())
    }
    return writing
  }

  final class Writing: Sendable {
    /// Happens when all but what the pipe holds, 64 KiB, has been read.
    let written = Event<Void>()
    let handle = Locked<FileHandle?>(nil)

    func close() { handle.withLock { $0 = nil } }
  }
}
#endif
