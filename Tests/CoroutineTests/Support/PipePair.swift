import Glibc

/// A pair of connected, non-blocking descriptors that are closed with the object.
///
/// Its ends may be closed before: each is closed once.
final class PipePair: Sendable {
  /// The reading end of a pipe; in a socket pair either end reads and writes.
  let reader: Int32
  let writer: Int32
  private let open = Locked<Set<Int32>>([])

  /// A pipe.
  convenience init() {
    var ends: [Int32] = [-1, -1]
    precondition(pipe(&ends) == 0, "No pipe for the test: errno \(errno).")
    self.init(ends: ends)
  }

  /// A pair of stream sockets.
  static func sockets() -> PipePair {
    var ends: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue)
    precondition(socketpair(AF_UNIX, type, 0, &ends) == 0, "No sockets for the test: errno \(errno).")
    return PipePair(ends: ends)
  }

  private init(ends: [Int32]) {
    for end in ends {
      _ = fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK)
      // Programs that other tests start would have copies, and an end be open although it is closed here.
      _ = fcntl(end, F_SETFD, FD_CLOEXEC)
    }
    (reader, writer) = (ends[0], ends[1])
    open.current = Set(ends)
  }

  deinit {
    closeEnd(reader)
    closeEnd(writer)
  }

  func closeEnd(_ end: Int32) {
    if open.withLock({ $0.remove(end) }) != nil { _ = close(end) }
  }

  /// Writes one byte; returns false if there is no room.
  @discardableResult
  func put(_ byte: UInt8 = 1, into end: Int32? = nil) -> Bool {
    withUnsafePointer(to: byte) { write(end ?? writer, $0, 1) } == 1
  }

  /// Reads one byte; returns nil if there is none.
  @discardableResult
  func get(from end: Int32? = nil) -> UInt8? {
    var byte: UInt8 = 0
    return read(end ?? reader, &byte, 1) == 1 ? byte : nil
  }

  /// Writes until there is no room left.
  func fill() {
    let block = [UInt8](repeating: 0, count: 4_096)
    while write(writer, block, block.count) > 0 {}
    while put() {}
  }

  /// Reads all there is.
  func drain() {
    var block = [UInt8](repeating: 0, count: 65_536)
    while read(reader, &block, block.count) > 0 {}
  }
}
