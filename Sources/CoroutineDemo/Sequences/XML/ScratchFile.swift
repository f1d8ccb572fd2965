#if Demo
import Foundation

/// A file in the temporary directory that has no name any more, so it goes with the process, however that ends.
final class ScratchFile {
  fileprivate let descriptor: Int32

  init() throws {
    var path = Array(FileManager.default.temporaryDirectory.appending(path: "CoroutineDemo.XXXXXX").path.utf8CString)
    descriptor = mkstemp(&path)
    guard descriptor >= 0 else { throw OutputError(name: "the temporary directory", code: errno) }
    unlink(path)
  }

  deinit { close(descriptor) }

  func write(_ bytes: some Collection<UInt8>) throws {
    var rest = Array(bytes)[...]
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Foundation.write(descriptor, $0.baseAddress, $0.count) }
      if count >= 0 {
        rest = rest.dropFirst(count)
      } else if errno != EINTR {
        throw OutputError(name: "the temporary directory", code: errno)
      }
    }
  }

  /// Reads it from its beginning, one at a time, and counts what has been read.
  func stream() -> ScratchStream { ScratchStream(self) }
}

/// See ``ScratchFile/stream()``.
final class ScratchStream: InputStream {
  private let file: ScratchFile
  private(set) var bytesRead = 0

  fileprivate init(_ file: ScratchFile) {
    self.file = file
    super.init(data: Data())
  }

  override func open() { lseek(file.descriptor, 0, SEEK_SET) }

  override func close() {}

  override var hasBytesAvailable: Bool { true }

  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength length: Int) -> Int {
    while true {
      let count = Foundation.read(file.descriptor, buffer, length)
      if count >= 0 { bytesRead += count }
      if count >= 0 || errno != EINTR { return count }
    }
  }
}
#endif
