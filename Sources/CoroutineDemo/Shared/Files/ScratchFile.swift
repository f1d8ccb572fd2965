#if Demo
import Foundation

/// A file in the temporary directory that has no name any more, so it goes with the process, however that ends.
///
/// Writing appends, reading says from where: both may happen at once, on different threads.
final class ScratchFile: Sendable {
  private static let place = "the temporary directory"
  private let descriptor: Int32

  init() throws(OutputError) {
    var path = Array(FileManager.default.temporaryDirectory.appending(path: "CoroutineDemo.XXXXXX").path.utf8CString)
    descriptor = mkstemp(&path)
    guard descriptor >= 0 else { throw OutputError(name: Self.place, code: errno) }
    unlink(path)
  }

  deinit { close(descriptor) }

  func write(_ bytes: some ContiguousBytes) throws {
    try bytes.withUnsafeBytes { all in
      var rest = all[...]
      while !rest.isEmpty {
        let count = Foundation.write(descriptor, UnsafeRawBufferPointer(rebasing: rest).baseAddress, rest.count)
        if count >= 0 {
          rest = rest.dropFirst(count)
        } else if errno != EINTR {
          throw OutputError(name: Self.place, code: errno)
        }
      }
    }
  }

  /// What is there from `offset` on, as far as it fits; 0 at the end of what has been written.
  func read(at offset: Int, into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    while true {
      let count = pread(descriptor, buffer.baseAddress, buffer.count, off_t(offset))
      if count >= 0 { return count }
      if errno != EINTR { throw OutputError(name: Self.place, code: errno) }
    }
  }

  /// Reads it from its beginning, and counts what has been read.
  func reader() -> ScratchReader { ScratchReader(self) }
}

/// See ``ScratchFile/reader()``.
final class ScratchReader: ByteSource {
  private let file: ScratchFile
  private(set) var bytesRead = 0

  fileprivate init(_ file: ScratchFile) {
    self.file = file
  }

  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    let count = try file.read(at: bytesRead, into: buffer)
    bytesRead += count
    return count
  }
}
#endif
