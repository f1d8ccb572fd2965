#if Demo
import Coroutine
import Foundation

/// The bytes of a file, read by a thread that may block: disks are slow at times, and a pipe has nobody at its other
/// end.
final class FileBytes: ByteSource, Sendable {
  /// Why a file cannot be read, in the system's words.
  struct Failure: Error, Equatable, CustomStringConvertible {
    var code: Int32

    var isMissing: Bool { code == ENOENT }

    var description: String { DescriptorLimit.text(code) }
  }

  private let descriptor: Int32
  /// nil: a pipe, a device.
  let size: Int?

  /// Blocks: call it through `co_blocking`.
  init(path: String) throws {
    descriptor = Foundation.open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { throw Self.failure() }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw Self.failure() }
    guard status.st_mode & S_IFMT != S_IFDIR else { throw Failure(code: EISDIR) }
    size = status.st_mode & S_IFMT == S_IFREG ? Int(status.st_size) : nil
  }

  deinit {
    if descriptor >= 0 { close(descriptor) }
  }

  /// Suspends until the file has given something.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    // Into memory of its own: a read that is cancelled goes on unobserved, and `buffer` may be gone by then.
    let count = buffer.count
    let bytes = try co_blocking { try self.read(count) }
    buffer.copyBytes(from: bytes)
    return bytes.count
  }

  private func read(_ count: Int) throws -> [UInt8] {
    try [UInt8](unsafeUninitializedCapacity: count) { bytes, filled in
      while true {
        let count = Foundation.read(descriptor, bytes.baseAddress, bytes.count)
        if count < 0 && errno == EINTR { continue }
        guard count >= 0 else { throw Self.failure() }
        filled = count
        return
      }
    }
  }

  private static func failure() -> Failure {
    Failure(code: errno)
  }
}
#endif
