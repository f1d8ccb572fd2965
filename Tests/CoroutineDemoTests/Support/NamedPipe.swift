#if Demo
import Foundation

@testable import CoroutineDemo

/// A pipe that another process opens by its name; a test decides when to write.
struct NamedPipe {
  let path: String

  init(_ path: String) throws {
    self.path = path
    // A closed reader then makes the write fail, instead of ending all tests.
    signal(SIGPIPE, SIG_IGN)
    guard mkfifo(path, 0o600) == 0 else { throw POSIXError(POSIXErrorCode(rawValue: errno) ?? .EIO) }
  }

  /// Writes `text`, on a thread of its own, as the reader takes it; the pipe stays open after that until `close`.
  func write(_ text: String) -> Writing {
    let writing = Writing()
    let path = path
    Thread.detachNewThread {
      guard let handle = FileHandle(forWritingAtPath: path) else { return }
      // A closed reader is handled by the test, not by the writer.
      try? handle.write(contentsOf: Data(text.utf8))
      writing.handle.withLock { $0 = handle }
      writing.written.happen(())
    }
    return writing
  }

  final class Writing: Sendable {
    /// Happens when everything but the contents of the pipe, 64 KiB, has been read.
    let written = Event<Void>()
    let handle = Locked<FileHandle?>(nil)

    func close() { handle.withLock { $0 = nil } }
  }
}
#endif
